"""The fingerprint of a dead letter: exception type and innermost frame of the application."""

from __future__ import annotations

import re
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from celery_dlx_retry.wire.dead_record import DeadRecord

_FRAME = re.compile(r'^  File "(?P<path>[^"\n]*)", line (?P<line>\d+), in (?P<function>.+)$', re.MULTILINE)
# Paths of installed packages, of this package, and of the standard library: …/lib/python3.x/.
_INSTALLED = re.compile(
    r"[/\\](?:celery_dlx_retry|site-packages|dist-packages|[Ll]ib[/\\]python\d[\d.]*)[/\\]|^<|[/\\]python\d[\d.]*\.zip[/\\]"
)


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
    """Return the fingerprint of a dead letter; without a traceback (killed, timed out) its task replaces the frame."""
    return Fingerprint(error=record.error_type or str(record.reason), where=_frame(record.traceback) or record.task)


def _frame(traceback: str) -> str:
    frames = list(_FRAME.finditer(traceback))
    ours = [frame for frame in frames if not _INSTALLED.search(frame["path"])]
    if not frames:
        return ""
    innermost = (ours or frames)[-1]
    # Only the last two parts of the path: the rest differs between hosts and releases.
    path = PurePosixPath(innermost["path"].replace("\\", "/"))
    return f"{'/'.join(path.parts[-2:]).lstrip('/')}:{innermost['function'].strip()}"
