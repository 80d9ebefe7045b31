"""The fingerprint of a dead letter: exception type and innermost frame of the application."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from celery_dlx_retry.events import DeadLettered

if TYPE_CHECKING:
    from celery_dlx_retry.wire.dead_record import DeadRecord

_FRAME = re.compile(r'^  File "(?P<path>[^"\n]*)", line (?P<line>\d+), in (?P<function>.+)$', re.MULTILINE)
# Ours, Celery's and those of its libraries, installed or as a checkout.
_FRAMEWORK = re.compile(
    r"[/\\](?:celery_dlx_retry|billiard|kombu|(?:site|dist)-packages[/\\](?:celery|amqp|vine))[/\\]"
    r"|[/\\]celery[/\\](?:app[/\\](?:autoretry|task|trace)|(?:concurrency|worker)[/\\]\w+)\.py$"
)
_INSTALLED = re.compile(r"[/\\](?:site|dist)-packages[/\\]")
# The standard library: …/lib/python3.x/, python3xx.zip and frozen modules.
_PYTHON = re.compile(r"[/\\][Ll]ib[/\\]python\d[\d.]*[/\\]|^<|[/\\]python\d[\d.]*\.zip[/\\]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fingerprint:
    """What failed, and where. Letters with the same fingerprint are one group."""

    error: str
    where: str

    @property
    def group(self) -> str:
        """Return eight digits. They do not depend on the host, the release, or the line within a function."""
        return blake2b(f"{self.error}\0{self.where}".encode("utf-8", "replace"), digest_size=4).hexdigest()


def fingerprint(record: DeadRecord) -> Fingerprint:
    """Return the fingerprint of a dead letter.

    Without a frame of the application (killed, timed out, crash loop, unknown task) its task is the place.
    """
    return Fingerprint(error=record.error_type or str(record.reason), where=_frame(record.traceback) or record.task)


@lru_cache(maxsize=64)  # many letters have the same traceback
def _frame(traceback: str) -> str:
    frames = [it for it in _FRAME.finditer(traceback) if not _FRAMEWORK.search(it["path"])]
    installed = [it for it in frames if _INSTALLED.search(it["path"])]
    own = [it for it in frames if it not in installed and not _PYTHON.search(it["path"])]
    if not (own or installed):
        return ""
    innermost = (own or installed)[-1]
    # Only the last two parts of the path: the rest differs between hosts and releases.
    path = PurePosixPath(innermost["path"].replace("\\", "/"))
    return f"{'/'.join(path.parts[-2:]).lstrip('/')}:{innermost['function'].strip()}"


def dead_lettered(record: DeadRecord, *, confirm_ms: float = 0.0) -> DeadLettered:
    """Return the event of a message with this record."""
    return DeadLettered(
        task=record.task,
        task_id=record.task_id,
        queue=record.queue,
        reason=record.reason.value,
        attempts=record.attempts,
        group=fingerprint(record).group,
        error_type=record.error_type,
        error=record.error,
        worker=record.worker,
        confirm_ms=confirm_ms,
    )
