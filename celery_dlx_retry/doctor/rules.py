"""Turn facts about an app and its broker into findings, by all rules of the doctor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from celery_dlx_retry.doctor import app_rules, now_rules, queue_rules  # noqa: F401 - they add their rules
from celery_dlx_retry.doctor.rule import RULES, SEVERITIES, Severity

if TYPE_CHECKING:
    from celery_dlx_retry.doctor.facts import Facts


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A rule that applies, with the fact."""

    code: str
    severity: Severity
    fact: str
    consequence: str
    cure: str


def findings(facts: Facts) -> list[Finding]:
    """Return all findings, the worst first."""
    return [
        Finding(code=rule.code, severity=rule.severity, fact=fact, consequence=rule.consequence, cure=rule.cure)
        for rule in sorted(RULES, key=lambda it: SEVERITIES.index(it.severity))
        for fact in rule.facts(facts)
    ]
