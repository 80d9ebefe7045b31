"""Write the message of a retry as Celery's ``apply_async`` would, the very same one, in a third of the time.

Celery's protocol and Kombu's serializer write it here, too. Only the way between them is left out: options merged and
taken apart again, a router, a producer, signals to nobody. Whoever listens there, or has put something of their own
into that way, or asks for what is not foreseen here gets all of it. tests/unit/test_writing.py holds one against the
other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery import signals
from kombu.messaging import Producer
from kombu.serialization import dumps
from kombu.utils.functional import maybe_list

from celery_dlx_retry.app.context import context_of
from celery_dlx_retry.app.routes import PLACES, all_options
from celery_dlx_retry.broker.sync_publisher import PERSISTENT
from celery_dlx_retry.celery_compat import dumps_models
from celery_dlx_retry.wire.header_size import check_properties, has_room, room_beside
from celery_dlx_retry.wire.message import Message
from celery_dlx_retry.worker.patch_detection import is_function, is_method

if TYPE_CHECKING:
    from collections.abc import Callable
    from functools import partial

_FORESEEN = PLACES.union(
    ("task_id", "root_id", "parent_id", "group_id", "group_index", "retries", "chord", "chain", "shadow", "origin"),
    ("link", "link_error", "time_limit", "soft_time_limit", "ignore_result", "replaced_task_nesting", "reply_to"),
    ("argsrepr", "kwargsrepr", "stamped_headers", "headers", "priority", "serializer"),
    ("delivery_mode", "add_to_parent"),
)
_SIGNALS = (signals.before_task_publish, signals.after_task_publish, signals.task_sent)


def written(task: Any, apply_async: partial[Any], options: dict[str, Any]) -> tuple[Any, Message] | None:
    """What ``apply_async`` of these arguments would return, and publish; None if it is to be asked itself.

    Raises what it would raise.
    """
    if not _is_celerys_own(task, apply_async.func):
        return None
    given = all_options(task, options)
    stamps = {name: given[name] for name in given.get("stamped_headers") or ()}
    if not _is_foreseen(task, given, stamps):
        return None
    args, kwargs = apply_async.args
    return _write(task, args, kwargs, given, stamps)


def _is_celerys_own(task: Any, apply_async: Callable[..., Any]) -> bool:
    """Whether all on the way is Celery's, and nobody listens there."""
    app = task.app
    return (
        context_of(app).is_sending_plain
        and not any(signal.receivers for signal in _SIGNALS)
        and is_method(apply_async, "celery.app.task")
        and is_method(task.shadow_name, "celery.app.task")
        and is_method(app.send_task, "celery.app.base")
        and is_method(app.amqp.create_task_message, "celery.app.amqp")
        and is_function(app.amqp.send_task_message, "celery.app.amqp")
        and is_function(Producer.publish, "kombu.messaging")
    )


def _is_foreseen(task: Any, given: dict[str, Any], stamps: dict[str, Any]) -> bool:
    """Whether nothing is asked for but what is written here."""
    limits = (task.soft_time_limit, task.time_limit)
    return (
        not dumps_models(task)
        and not (all(limits) and limits[0] > limits[1])  # Celery has a word to say about it
        and bool(given.get("task_id") and given.get("serializer"))
        and _FORESEEN.isdisjoint(stamps)
        and not any(value is not None and name not in _FORESEEN and name not in stamps for name, value in given.items())
    )


def _write(
    task: Any, args: Any, kwargs: Any, given: dict[str, Any], stamps: dict[str, Any]
) -> tuple[Any, Message] | None:
    app, option = task.app, given.get
    if task.typing and (check := getattr(task, "__header__", None)) is not None:
        check(*(args or ()), **(kwargs or {}))
    root_id, parent_id = option("root_id"), option("parent_id")
    if not (root_id and parent_id) and (parent := app.current_worker_task):
        root_id = root_id or parent.request.root_id or parent.request.id
        parent_id = parent_id or parent.request.id
    ignore_result = option("ignore_result", task.ignore_result)
    headers, properties, body, _ = app.amqp.create_task_message(
        given["task_id"],
        task.name,
        args,
        kwargs,
        group_id=option("group_id"),
        group_index=option("group_index"),
        retries=option("retries", 0),
        chord=option("chord"),
        callbacks=maybe_list(option("link")),
        errbacks=maybe_list(option("link_error")),
        reply_to=option("reply_to") or app.thread_oid,
        time_limit=option("time_limit"),
        soft_time_limit=option("soft_time_limit"),
        root_id=root_id,
        parent_id=parent_id,
        shadow=option("shadow") or None,
        chain=option("chain"),
        ignore_result=ignore_result,
        origin=option("origin"),
        argsrepr=option("argsrepr"),
        kwargsrepr=option("kwargsrepr"),
        stamped_headers=option("stamped_headers"),
        replaced_task_nesting=option("replaced_task_nesting", 0),
        **stamps,
    )
    headers.update(option("headers") or {})
    check_properties({**properties, "priority": option("priority")})
    if not has_room(headers, room=room_beside(properties)):
        return None
    if not ignore_result:
        app.backend.on_task_call(context_of(app).capture(), given["task_id"])
    content_type, content_encoding, data = dumps(body, given["serializer"])
    result = task.AsyncResult(given["task_id"])
    result.ignored = ignore_result
    return result, Message(
        body=data,
        content_type=content_type,
        content_encoding=content_encoding,
        headers=headers,
        properties={**properties, "priority": option("priority"), "delivery_mode": PERSISTENT},
    )
