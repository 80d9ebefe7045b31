"""Who changed what: one line per changing command, on stderr and in the log ``celery_dlx_retry.audit``."""

from __future__ import annotations

import getpass
import logging
import socket
from typing import Any

from celery_dlx_retry.cli.output import echo
from celery_dlx_retry.values.escaping import escaped

logger = escaped(logging.getLogger("celery_dlx_retry.audit"))


def audit(action: str, **facts: Any) -> None:
    """Say that something was done; facts are names and counts, never arguments or credentials."""
    told = " ".join(f"{key}={value}" for key, value in facts.items())
    line = f"audit {action} by={who()} {told}".rstrip()
    logger.info("%s", line)
    echo(line, err=True)


def who() -> str:
    """The user at this machine."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        user = "?"
    return f"{user}@{socket.gethostname()}"
