"""One log line for each operation that changes something: who did what, and how many."""

from __future__ import annotations

import getpass
import logging
import socket
from typing import Any

from celery_dlx_retry.values.escaping import escaped

logger = escaped(logging.getLogger("celery_dlx_retry.audit"))


def audit(action: str, *, by: str = "", **facts: Any) -> str:
    """Log the line and return it. ``by`` is the operator, by default the user of this process.

    Facts are names and counts, never arguments or credentials.
    """
    words = " ".join(f"{key}={value}" for key, value in facts.items())
    line = f"audit {action} by={by or current_user()} {words}".rstrip()
    logger.info("%s", line)
    return line


def current_user() -> str:
    """Return ``user@host`` of this process."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # the user of a container may have no name
        user = "?"
    return f"{user}@{socket.gethostname()}"
