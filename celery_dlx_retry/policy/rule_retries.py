"""Count the retries that each rule of a policy has granted to a message, in a header of the message."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from celery_dlx_retry.values.durations import is_count

if TYPE_CHECKING:
    from collections.abc import Mapping

#: JSON: ``{path: retries, …}``, one entry for each rule that has granted a retry; ``RuleRetry`` says what a path is.
RULE_RETRIES = "dlx-rule-retries"

_MOST_RULES = 100
_PATH = re.compile(r"[0-9]{1,4}(\.[0-9]{1,4}){0,9}")


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleRetry:
    """One retry that a rule granted."""

    #: The position of the rule: ``"0"`` is the first rule, ``"0.2"`` is the third rule of its policy.
    path: str
    #: What the rule matches, for people.
    name: str
    #: 1 is the first retry that this rule grants.
    retry: int


def history_facts(rule: RuleRetry | None) -> dict[str, Any]:
    """Return the facts about the rule that granted a retry, for the history of the message."""
    return {} if rule is None else {"rule": rule.name, "rule_retry": rule.retry}


def rule_retries_of(headers: Mapping[str, Any], *, retries: int) -> dict[str, int]:
    """Return the retries so far by the path of their rule; nothing if the header is missing, foreign or forged.

    ``retries`` is the count of all retries of the message. The policy counts those that no rule has granted: if the
    rules could claim more than all, the message would be retried for ever.
    """
    text = headers.get(RULE_RETRIES)
    if text is None:
        return {}
    try:
        counts = json.loads(text)
    except (TypeError, ValueError, RecursionError):
        return {}
    if not isinstance(counts, dict) or len(counts) > _MOST_RULES:
        return {}
    counts = {path: count for path, count in counts.items() if _PATH.fullmatch(path) and is_count(count)}
    return counts if sum(counts.values()) <= retries else {}


def with_rule_retry(headers: Mapping[str, Any], rule: RuleRetry | None, *, retries: int) -> dict[str, Any]:
    """Return the headers with one more retry of this rule; ``retries`` is the count of all retries before it."""
    if rule is None:
        return dict(headers)
    counts = {path: count for path, count in rule_retries_of(headers, retries=retries).items() if path != rule.path}
    newest = [*counts.items(), (rule.path, rule.retry)][-_MOST_RULES:]
    return {**headers, RULE_RETRIES: json.dumps(dict(newest), separators=(",", ":"))}
