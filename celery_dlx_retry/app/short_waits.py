"""A mode for tests: every retry waits in the shortest lane, and its message and events have the decided delay.

The rest of the way is the same as in production: the same processes publish, confirm and acknowledge.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_blocks = 0


def are_on() -> bool:
    """Return whether this process is in such a block."""
    return _blocks > 0


@contextmanager
def short_waits() -> Iterator[None]:
    """Let no retry of this process wait for long until the block ends; ``celery_dlx_retry.testing`` uses it."""
    global _blocks  # noqa: PLW0603 - one mode for all apps of the process
    _blocks += 1
    try:
        yield
    finally:
        _blocks -= 1
