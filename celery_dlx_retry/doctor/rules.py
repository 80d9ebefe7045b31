"""Turn facts about an app and its broker into findings, by all rules of the doctor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from celery_dlx_retry.doctor import app_rules, broker_rules, now_rules, queue_rules
from celery_dlx_retry.doctor.rule import RULES, SEVERITIES, Severity

if TYPE_CHECKING:
    from collections.abc import Iterable

    from celery_dlx_retry.doctor.facts import Facts

_FILES = [it.__name__ for it in (app_rules, broker_rules, now_rules, queue_rules)]
#: The worst first. A rule is added when its file is imported, so the files need an order of their own.
ALL_RULES = sorted(RULES, key=lambda it: (SEVERITIES.index(it.severity), _FILES.index(it.facts.__module__)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A rule that applies, with the fact."""

    code: str
    severity: Severity
    fact: str
    consequence: str
    cure: str
    #: The setting dlx_doctor_accept names it.
    accepted: bool = False


def is_accepted(code: str, fact: str, accept: Iterable[str]) -> bool:
    """Return whether an entry of dlx_doctor_accept is this code, or this code, a colon and a part of the fact."""
    return any(code == name and part in fact for name, _, part in (entry.partition(":") for entry in accept))


def findings(facts: Facts, *, accept: Iterable[str] = ()) -> list[Finding]:
    """Return all findings, the worst first."""
    accept = tuple(accept)
    return [
        Finding(
            code=rule.code,
            severity=rule.severity,
            fact=fact,
            consequence=rule.consequence,
            cure=rule.cure,
            accepted=is_accepted(rule.code, fact, accept),
        )
        for rule in ALL_RULES
        for fact in rule.facts(facts)
    ]
