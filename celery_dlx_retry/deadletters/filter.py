"""Select dead letters by id, queue, task, reason, exception, text, age, group."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from celery_dlx_retry.deadletters.letter import DeadMessage


_GROUP = re.compile(r"[0-9a-f]{8}")
_CLASS = re.compile(r"[\w*?\[\]!-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class LetterFilter:
    """Matches letters that meet every condition; of several values of one condition, any."""

    ids: frozenset[str] = frozenset()
    #: Work queues, for a dead-letter queue that several of them share.
    queues: frozenset[str] = frozenset()
    #: Names; ``*`` matches any text.
    tasks: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    exceptions: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    #: Text in the error, the traceback or the representation of the arguments; case does not matter.
    text: str = ""
    died_before_ms: int | None = None
    died_after_ms: int | None = None
    #: Only letters with headers or properties that cannot be decoded.
    unreadable: bool = False

    @property
    def is_empty(self) -> bool:
        """Return whether it matches every letter."""
        return all(getattr(self, field.name) == field.default for field in fields(self))

    @property
    def impossible(self) -> str:
        """Say why no letter can match; empty if one can."""
        for group in self.groups:
            if not _GROUP.fullmatch(group):
                return f"{group!r:.80} is not the id of a group, which has eight digits from 0 to f"
        for name in self.exceptions:
            if not _CLASS.fullmatch(name):
                return f"{name!r:.80} is not the name of a class: give it without its module and text, as in KeyError"
        before_ms, after_ms = self.died_before_ms, self.died_after_ms
        if before_ms is not None and after_ms is not None and before_ms <= after_ms:
            return "no letter died before the one time and after the other"
        return ""

    @property
    def told(self) -> str:
        """Return the conditions for a log: only the number of ids, and not the text, which may be an argument."""
        parts = [f"ids:{len(self.ids)}"] if self.ids else []
        for name in ("tasks", "reasons", "exceptions", "groups"):
            parts += [f"{name}:{'|'.join(values)}"] if (values := getattr(self, name)) else []
        for name, value in (
            ("text", self.text),
            ("older", self.died_before_ms),
            ("newer", self.died_after_ms),
            ("unreadable", self.unreadable),
        ):
            parts += [name] if value else []
        return ",".join(parts) or "all"

    def __call__(self, letter: DeadMessage) -> bool:
        """Return whether this letter matches."""
        record = letter.record
        return (
            (not self.ids or record.task_id in self.ids)
            and (not self.queues or bool(self.queues & {record.queue, record.dead_letter_key}))
            and (not self.reasons or str(record.reason) in self.reasons)
            and (not self.tasks or _matches(record.task, self.tasks))
            and (not self.exceptions or _matches(record.error_type, self.exceptions))
            and self._has_age(record.died_at_ms)
            and (not self.unreadable or bool(letter.unreadable))
            and (not self.text or self._has_text(letter))
            and (not self.groups or letter.fingerprint.group in self.groups)
        )

    def _has_age(self, died_at_ms: int) -> bool:
        if self.died_before_ms is None and self.died_after_ms is None:
            return True
        if not died_at_ms:
            return False  # its age is not known
        return (self.died_before_ms is None or died_at_ms < self.died_before_ms) and (
            self.died_after_ms is None or died_at_ms >= self.died_after_ms
        )

    def _has_text(self, letter: DeadMessage) -> bool:
        headers, record = letter.message.headers, letter.record
        texts = (record.error, record.traceback, headers.get("argsrepr"), headers.get("kwargsrepr"))
        return any(self.text.casefold() in str(text).casefold() for text in texts if text)


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
