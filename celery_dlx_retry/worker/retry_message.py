"""The message of a retry: the received one with new headers, unless the retry changes something."""

from __future__ import annotations

import operator
import time
from inspect import signature
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any

from celery import Celery, signals
from celery.app.amqp import AMQP
from celery.app.task import Context
from celery.canvas import Signature
from kombu.exceptions import EncodeError
from kombu.messaging import Producer
from kombu.serialization import dumps, registry

from celery_dlx_retry.broker.encoding import bytes_of
from celery_dlx_retry.broker.sync_publisher import PERSISTENT
from celery_dlx_retry.celery_compat import dumps_models
from celery_dlx_retry.errors import Unpublishable
from celery_dlx_retry.events import with_written_headers
from celery_dlx_retry.policy.rule_retries import history_facts, with_rule_retry
from celery_dlx_retry.wire.header_size import has_room, room_beside
from celery_dlx_retry.wire.headers import Failure, with_address, with_failure
from celery_dlx_retry.wire.message import Message
from celery_dlx_retry.wire.trimmed_headers import trimmed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from celery_dlx_retry.app.context import AppContext
    from celery_dlx_retry.policy.rule_retries import RuleRetry
    from celery_dlx_retry.worker.outcome import Retry
    from celery_dlx_retry.worker.retry import RetryCall
    from celery_dlx_retry.worker.run_state import DeliveryInfo, RunState

_SIGNALS = (signals.before_task_publish, signals.after_task_publish, signals.task_sent)
# What Celery takes from the request of a task for its retry, besides arguments and headers.
_CARRIED = (
    *("id", "root_id", "parent_id", "group", "group_index", "shadow", "expires", "timelimit", "retries", "reply_to"),
    *("replaced_task_nesting", "origin", "stamps", "stamped_headers", "delivery_info", "chain", "chord"),
    *("callbacks", "errbacks"),
)
_IN_BODY = ("callbacks", "errbacks", "chain", "chord")
# Every other header is the sender's own, and Celery shows it as a part of ``request.headers``.
_CELERYS = frozenset(vars(Context)) | {"lang", "task", "argsrepr", "kwargsrepr", "compression"}
# The options of a call of apply_async().
_OPTIONS = frozenset(
    name
    for function in (Celery.send_task, AMQP.as_task_v2, Producer.publish)
    for name in signature(function).parameters
)
_IMMUTABLE = frozenset((str, int, float, bool, bytes, type(None)))
_MISSING = object()
_OURS = "celery_dlx_retry.worker.task"


def is_copy(task: Any, call: RetryCall, run: RunState, context: AppContext) -> bool:
    """Return whether a retry is the received message with new headers.

    It is not if the call or the body changed something, if a signal has a receiver, or if code on the way of a publish
    is not Celery's own. Then Celery writes the message.
    """
    request = task.request
    message, received, now = request.delivery_info.message, run.received, vars(request)
    headers = message.headers
    return (
        received is not None
        and call.args is None
        and call.kwargs is None
        and not call.options
        and context.is_sending_plain
        and message.compression is None
        and message.content_type in registry.type_to_name
        and "task" in headers  # the first protocol has all in its body
        and "headers" not in headers
        and _has_plain_stamps(headers.get("stamped_headers"))
        and not (task.priority and message.properties.get("priority") is None)
        and request.delivery_info.get("priority") == message.properties.get("priority")  # the body may change it
        and not (task.soft_time_limit and task.time_limit and task.soft_time_limit > task.time_limit)  # Celery refuses
        and not dumps_models(task)
        and not any(signal.receivers for signal in _SIGNALS)
        and all(now.get(name, _MISSING) is received.get(name, _MISSING) for name in _CARRIED)
        and _is_celerys_way(task, call)
        and _has_its_arguments(request, run)
    )


def has_room_to_count(message: Message) -> bool:
    """Return whether a retry of it can count; not one with a header that AMQP cannot carry."""
    try:
        return has_room(message.headers, room=room_beside(message.properties))
    except Unpublishable:
        return False


def copied_headers(headers: Mapping[str, Any], request: Any, retry: Retry, rule: RuleRetry | None) -> dict[str, Any]:
    """Return the headers of a retry that is a copy of the message with these headers."""
    return {**noted_headers(headers, request, retry, rule), "retries": retry.number}


def noted_headers(
    headers: Mapping[str, Any], request: Any, retry: Retry, rule: RuleRetry | None, *, queue: str = ""
) -> dict[str, Any]:
    """Return the headers with the failure in their history, the address of the sender, and the new eta."""
    info: DeliveryInfo = request.delivery_info
    failure = Failure(
        attempt=retry.number,
        at_ms=time.time_ns() // 1_000_000,
        error=retry.error,
        delay_ms=retry.delay_ms,
        worker=request.hostname or "",
        **({} if rule is None else history_facts(rule)),
    )
    if rule is not None:
        headers = with_rule_retry(headers, rule, retries=retry.number - 1)
    headers = with_written_headers(
        headers,
        kind="retry",
        task=info.message.headers.get("task") or "",
        task_id=request.id,
        queue=queue or info.queue.name,
        attempts=retry.number,
        error=retry.error,
        delay_ms=retry.delay_ms,
    )
    noted = with_address(
        with_failure(headers, failure),
        exchange=info.get("exchange"),
        routing_key=info.get("routing_key"),
        queue=info.queue.name,
    )
    noted["eta"] = retry.eta
    return noted


def current_headers(request: Any) -> dict[str, Any]:
    """Return the headers of the message of a request; the body and hooks may have changed those of the sender."""
    headers = {
        **(request.headers or {}),
        **{
            key: value
            for key, value in request.delivery_info.message.headers.items()
            if key in _CELERYS or (isinstance(key, str) and key.startswith("dlx-"))
        },
    }
    if "parent_id" in headers:
        # As Celery writes them: a retry is a child of its task.
        headers |= {
            "root_id": headers.get("root_id") or request.id,
            "parent_id": headers["parent_id"] or request.id,
        }
    return headers


def copy_with(context: AppContext, message: Message, headers: Mapping[str, Any]) -> Message:
    """Return a received message as it is published again."""
    if message.compression is not None:
        # Kombu has decompressed the body, and compresses it again.
        return context.capture().written(message.with_headers(headers))
    room = room_beside(message.properties)
    if not has_room(headers, room=room):
        headers = trimmed(headers, room=room)
    return Message(
        body=message.body,
        content_type=message.content_type or "application/data",
        content_encoding=message.content_encoding,
        headers=headers,
        properties={**message.kept_properties, "delivery_mode": PERSISTENT},
    )


def is_unchanged(given: Any, before: Any) -> bool:
    """Return whether a retry has the arguments that it had; by identity, because not all values can be compared."""
    if given is None or before is None:
        return given is None
    if isinstance(given, dict):
        return given.keys() == before.keys() and all(given[key] is before[key] for key in given)
    return len(given) == len(before) and all(map(operator.is_, given, before))


def _has_its_arguments(request: Any, run: RunState) -> bool:
    """Return whether arguments, links and chain are still those of the received body."""
    args, kwargs = request.args, request.kwargs
    if args is None or kwargs is None or not (is_unchanged(args, run.args) and is_unchanged(kwargs, run.kwargs)):
        return False
    embed = {name: getattr(request, name) for name in _IN_BODY}
    if not any(embed.values()) and _IMMUTABLE.issuperset(map(type, (*args, *kwargs.values()))):
        return True
    # A body can change a list or a dict in place: only the bytes tell.
    message = request.delivery_info.message
    try:
        *_, written = dumps((args, kwargs, embed), registry.type_to_name[message.content_type])
    except (EncodeError, KeyError):
        return False
    return (written.encode() if isinstance(written, str) else written) == bytes_of(message)


def _has_plain_stamps(names: Any) -> bool:
    """Return whether no stamp has the name of an option: Celery's own retry takes such a stamp for the option."""
    return not names or (
        isinstance(names, (list, tuple)) and all(type(it) is str and it not in _OPTIONS for it in names)
    )


def _function(method: Any) -> Any:
    return method.__func__ if type(method) is MethodType else None


def _is_celerys_way(task: Any, call: RetryCall) -> bool:
    """Return whether all code on the way of a publish is Celery's and Kombu's own.

    By the module that the code runs in: functools.wraps() copies names only, and a proxy of wrapt is no function.
    """
    app, amqp = task.app, task.app.amqp
    functions = (
        (_function(task.apply_async), _OURS),
        (_function(task.signature_from_request), _OURS),
        (_function(call.celerys_retry), "celery.app.task"),
        (_function(call.celerys_apply_async), "celery.app.task"),
        (_function(task.shadow_name), "celery.app.task"),
        (Signature.apply_async, "celery.canvas"),
        (_function(app.send_task), "celery.app.base"),
        (_function(amqp.create_task_message), "celery.app.amqp"),
        (amqp.send_task_message, "celery.app.amqp"),
        (Producer.publish, "kombu.messaging"),
    )
    return all(
        type(function) is FunctionType and function.__globals__.get("__name__") == module
        for function, module in functions
    )
