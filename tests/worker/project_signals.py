"""The tasks of project_metrics.py; every process of it writes each signal that it gets into the file of records."""

from __future__ import annotations

import json
import os
from dataclasses import FrozenInstanceError, fields

from project_metrics import app

from celery_dlx_retry import signals

__all__ = ["app"]


def is_frozen(event) -> bool:
    try:
        setattr(event, fields(event)[0].name, "changed")
    except FrozenInstanceError:
        return True
    return False


def write(signal, sender, event, **_):
    line = {
        "signal": signal.name,
        "sender": sender,
        "event": type(event).__name__,
        "frozen": is_frozen(event),
        **{name: str(getattr(event, name)) for name in ("reason", "task_id", "state", "count") if hasattr(event, name)},
    }
    descriptor = os.open(os.environ["PROJECT_RECORDS"], os.O_WRONLY | os.O_APPEND)
    try:
        os.write(descriptor, (json.dumps(line) + "\n").encode())
    finally:
        os.close(descriptor)


for each in signals.SIGNALS.values():
    each.connect(write)
