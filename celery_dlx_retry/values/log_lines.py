"""What all log lines of this package share: they are one line, and their facts are fields of the log record."""

from __future__ import annotations

import logging
from typing import Any

from celery_dlx_retry.values.escaping import printable

#: The names that Celery's TaskFormatter and django-structlog use, and where we have the same facts.
_CELERYS_NAMES = {"task_name": "dlx_task", "task_id": "dlx_task_id"}


def log_fields(event: str, /, **facts: Any) -> dict[str, Any]:
    """Return ``extra`` for a log call: the name of the line, and its facts with the prefix ``dlx_``.

    Facts are names, numbers and ids: never arguments, bodies or the text of an error.
    """
    found: dict[str, Any] = {"dlx_event": event}
    for name, value in facts.items():
        found[f"dlx_{name}"] = printable(value) if isinstance(value, str) else value
    return found


def request_fields(event: str, request: Any, /) -> dict[str, Any]:
    """Return the same for a line about a Celery request."""
    return log_fields(event, task=request.name, task_id=request.id)


def escaped(logger: logging.Logger) -> logging.Logger:
    """Return the same logger. From now on no message can forge a second line in its log."""
    logger.addFilter(_LINES)
    return logger


class _Lines(logging.Filter):
    """Keeps the message of each record on one line, and names its task. A traceback follows as it is."""

    def filter(self, record: logging.LogRecord) -> bool:
        _name_task(record)
        try:
            line = record.getMessage()
        except Exception:  # noqa: BLE001 - logging itself reports an object that cannot be printed
            return True
        if not line.isprintable():
            record.msg, record.args = printable(line), ()
        return True


def _name_task(record: logging.LogRecord) -> None:
    """Give the record ``task_name`` and ``task_id``, unless it has them.

    The main process of a worker has no current task, and Celery's formatter would show ``???``. They are no part of
    ``extra``: logging raises KeyError if the record factory of an app sets the same names.
    """
    values = record.__dict__
    for name, ours in _CELERYS_NAMES.items():
        if values.get(ours) and not values.get(name):
            values[name] = values[ours]


_LINES = _Lines()
