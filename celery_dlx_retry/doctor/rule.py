"""A rule of the doctor: how to find a problem, what it causes, and how to cure it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from celery_dlx_retry.doctor.facts import Facts

    Check = Callable[[Facts], Iterator[str]]

Severity = Literal["error", "warning", "info"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "info")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """``facts`` yields one sentence for each problem."""

    code: str
    severity: Severity
    consequence: str
    cure: str
    facts: Check


#: All rules, in the order of their functions.
RULES: list[Rule] = []


def _rule(code: str, *, severity: Severity, consequence: str, cure: str) -> Callable[[Check], Check]:
    """Decorate the function that finds a problem."""

    def add(check: Check) -> Check:
        RULES.append(Rule(code=code, severity=severity, consequence=consequence, cure=cure, facts=check))
        return check

    return add


error, warning, info = (partial(_rule, severity=severity) for severity in SEVERITIES)


def is_rabbitmq(facts: Facts, *, since: tuple[int, ...]) -> bool:
    """Return whether the broker is RabbitMQ of this version or newer."""
    return facts.product == "RabbitMQ" and facts.version >= since


def dotted(version: tuple[int, ...]) -> str:
    """Return ``3.10.7``."""
    return ".".join(map(str, version))
