"""``expires``: a worker revokes what has expired, and RabbitMQ drops nothing.

Celery also gives such a message a time to live. If it runs out behind a backlog, RabbitMQ drops the message, no worker
says REVOKED, and ``result.get()`` waits for ever. With early acknowledgement a worker has more messages in its memory,
so this is rarer there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery_dlx_retry.app.clock import expires_header
from celery_dlx_retry.app.context import context_of

if TYPE_CHECKING:
    from celery.app.task import Task


def without_time_to_live(task: Task, options: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a call with ``expires`` as a header only."""
    expires = options.get("expires", task.expires)
    conf = task.app.conf
    # The first protocol has it in its body, where a header does not replace it.
    if expires is None or conf.task_always_eager or conf.task_protocol == 1 or not context_of(task.app).has_amqp:
        return options
    try:
        header = expires_header(task.app, expires)
    except (AttributeError, TypeError, ValueError, OverflowError):
        return options  # Celery raises its own error
    return {**options, "expires": None, "headers": {**(options.get("headers") or {}), "expires": header}}
