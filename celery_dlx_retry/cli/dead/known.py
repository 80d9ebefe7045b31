"""Dead letters that were seen before: a file in the background, so that their number costs no memory."""

from __future__ import annotations

import hashlib
import sqlite3
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Self

    from celery_dlx_retry.core.deadletter import DeadMessage


class KnownLetters:
    """Counts letters by what makes each the one it is."""

    def __init__(self) -> None:
        # An empty name: a file of SQLite's own, which is gone when it is closed.
        self._database = sqlite3.connect("")
        self._database.execute("CREATE TABLE letter (key BLOB PRIMARY KEY, count INTEGER) WITHOUT ROWID")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._database.close()

    def add(self, letter: DeadMessage) -> None:
        """One more lies there."""
        self._database.execute(
            "INSERT INTO letter VALUES (?, 1) ON CONFLICT (key) DO UPDATE SET count = count + 1", (_key(letter),)
        )

    def takes(self, letter: DeadMessage) -> bool:
        """Whether this one lies there, and no other was taken for it before."""
        taken = self._database.execute(
            "UPDATE letter SET count = count - 1 WHERE key = ? AND count > 0", (_key(letter),)
        )
        return taken.rowcount == 1


def _key(letter: DeadMessage) -> bytes:
    """A task dies in one queue at one time; what has no id or no time of death is known by its body.

    Not by the body of others: whoever edits a letter does not make it another one.
    """
    record, body = letter.record, letter.message.body
    parts = [letter.queue.encode(), record.task_id.encode("utf-8", "replace"), str(record.died_at_ms).encode()]
    if not (record.task_id and record.died_at_ms):
        parts.append(body.encode("utf-8", "surrogatepass") if isinstance(body, str) else bytes(body))
    return hashlib.sha256(b"\0".join(parts)).digest()
