"""Remember which dead letters an operation has seen, in a temporary file: their number costs no memory."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from typing import TYPE_CHECKING, final

from celery_dlx_retry.deadletters.export import shown
from celery_dlx_retry.wire.headers import without_broker_headers

if TYPE_CHECKING:
    from celery_dlx_retry.deadletters.letter import DeadMessage


@final
class SeenLetters:
    """Counts equal letters, and knows which task ids died when."""

    def __init__(self) -> None:
        # An empty name is a temporary file. SQLite deletes it when the connection is closed.
        self._database = sqlite3.connect("")
        self._database.execute("CREATE TABLE letter (key BLOB PRIMARY KEY, count INTEGER) WITHOUT ROWID")
        self._database.execute("CREATE TABLE death (key BLOB PRIMARY KEY) WITHOUT ROWID")

    def __enter__(self) -> SeenLetters:
        return self

    def __exit__(self, *_: object) -> None:
        self._database.close()

    def add(self, letter: DeadMessage) -> None:
        """Count a letter."""
        self._database.execute(
            "INSERT INTO letter VALUES (?, 1) ON CONFLICT (key) DO UPDATE SET count = count + 1", (_key(letter),)
        )
        if _has_death(letter):
            self._database.execute("INSERT OR IGNORE INTO death VALUES (?)", (_digest(*_death(letter)),))

    def take(self, letter: DeadMessage) -> bool:
        """Take an equal letter from the count; return False if none is left."""
        taken = self._database.execute(
            "UPDATE letter SET count = count - 1 WHERE key = ? AND count > 0", (_key(letter),)
        )
        return taken.rowcount == 1

    def has_other_version(self, letter: DeadMessage) -> bool:
        """Return True if a letter with this queue, task id and time of death was counted."""
        found = self._database.execute("SELECT 1 FROM death WHERE key = ?", (_digest(*_death(letter)),))
        return _has_death(letter) and found.fetchone() is not None


def _has_death(letter: DeadMessage) -> bool:
    return bool(letter.record.task_id and letter.record.died_at_ms)


def _death(letter: DeadMessage) -> list[bytes]:
    record = letter.record
    return [text.encode("utf-8", "replace") for text in (letter.queue, record.task_id, str(record.died_at_ms))]


def _key(letter: DeadMessage) -> bytes:
    """Return a key of queue, task id, time of death, headers and body: an edited letter is another letter."""
    body = letter.message.body
    try:
        kept = {repr(key): shown(value) for key, value in without_broker_headers(letter.message.headers).items()}
        headers = json.dumps(kept, sort_keys=True, default=str)  # a quorum queue sorts headers when it adds its own
    except RecursionError:
        headers = ""
    body = body.encode("utf-8", "surrogatepass") if isinstance(body, str) else bytes(body)
    return _digest(*_death(letter), headers.encode(), body)


def _digest(*parts: bytes) -> bytes:
    return hashlib.sha256(b"".join(b"%d:%s" % (len(part), part) for part in parts)).digest()
