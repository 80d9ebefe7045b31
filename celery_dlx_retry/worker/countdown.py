"""Publish a call with ``countdown=``, ``eta=`` or ``expires=``.

A countdown or an eta waits in the broker. What has expired is revoked by a worker, and RabbitMQ drops nothing: Celery
also gives such a message a time to live, and if that ends behind a backlog, RabbitMQ drops the message, no worker says
REVOKED, and ``result.get()`` waits without end.
"""

from __future__ import annotations

import functools
from datetime import timedelta
from itertools import islice
from numbers import Real
from typing import TYPE_CHECKING, Any

from celery.utils.log import get_logger
from celery.utils.time import maybe_make_aware
from kombu.exceptions import OperationalError
from kombu.utils.functional import fxrange

from celery_dlx_retry.app.clock import delay_ms
from celery_dlx_retry.app.context import context_of
from celery_dlx_retry.app.routes import NoRouter, destination, routed
from celery_dlx_retry.broker.connection import addresses
from celery_dlx_retry.errors import DLXError, PublishError, TopologyError, Unroutable
from celery_dlx_retry.events import CountdownScheduled, emit
from celery_dlx_retry.topology.wait_route import WaitKind
from celery_dlx_retry.values.log_lines import escaped, log_fields
from celery_dlx_retry.wire.headers import COPIES
from celery_dlx_retry.worker.celery_publish import send

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from celery import Celery
    from celery.app.task import Task

logger = escaped(get_logger(__name__))


def is_appointment(app: Celery, options: Mapping[str, Any]) -> bool:
    """Return whether a call with these options has a wait, and can wait in the broker."""
    if not (options.get("countdown") or options.get("eta")) or app.conf.task_always_eager:
        return False
    context = context_of(app)
    if not context.has_amqp or not context.settings.countdown or app.conf.task_protocol == 1:
        return False
    try:
        return delay_ms(app, countdown=options.get("countdown"), eta=options.get("eta")) > 0
    except (DLXError, ValueError, TypeError, AttributeError, OverflowError):
        return False  # Celery has a word for each


def make(task: Task, apply_async: Callable[..., Any], args: Any, kwargs: Any, options: dict[str, Any]) -> Any:
    """Celery's ``apply_async``, for an appointment: returns when the broker has it."""
    apply_async = functools.partial(apply_async, args, kwargs)
    app = task.app
    options = {**routed(task, args, kwargs, options), "router": NoRouter()}
    queue = destination(app, options)
    # CC and BCC name more queues: Celery publishes to all of them, and the worker that gets a message sends it on.
    if queue is None or _goes_elsewhere(app, options) or not COPIES.isdisjoint(options.get("headers") or ()):
        sentence = "left to Celery task=%s: it leads to no one queue of the app on its broker"
        logger.debug(sentence, task.name, extra=log_fields("LeftToCelery", task=task.name))
        return apply_async(**options)
    context = context_of(app)
    when = {"countdown": options.pop("countdown", None), "eta": options.pop("eta", None)}
    try:
        context.publisher.reach(_pauses(app, options))
        work_queue = context.ensure_work_queue(queue)
        there = context.wait_route(work_queue, delay_ms(app, **when), wish=WaitKind.COUNTDOWN)
        headers = {**(options.get("headers") or {}), "eta": _eta_header(app, **when)}
        result = send(task, apply_async, {**options, "headers": headers}, queue=work_queue, there=there)
    except (TopologyError, Unroutable) as problem:
        # Nothing is published, the broker says so. The worker that gets it sends it on, if it may.
        fields = log_fields("LeftToCelery", task=task.name, cause=type(problem).__name__)
        logger.warning("left to Celery task=%s: %s", task.name, problem, extra=fields)
        return apply_async(**options, **when)
    except PublishError as problem:
        raise OperationalError(str(problem)) from problem
    task_id = str(getattr(result, "id", ""))
    emit(CountdownScheduled(task=task.name, task_id=task_id, queue=work_queue.name, delay_ms=there.length_ms))
    return result


def _goes_elsewhere(app: Celery, options: Mapping[str, Any]) -> bool:
    """Whether the caller gave a connection to another broker than the app's."""
    producer = options.get("producer") or options.get("publisher")
    given = options.get("connection") or (producer.connection if producer is not None else None)
    if given is None:
        return False
    ours = app.connection_for_write()
    return not set(addresses(given)) & set(addresses(ours))


def _pauses(app: Celery, options: Mapping[str, Any]) -> Iterator[float]:
    """How often and when Celery would try again to reach the broker."""
    retry = options.get("retry")
    if not (app.conf.task_publish_retry if retry is None else retry):
        return iter(())
    policy = {**app.conf.task_publish_retry_policy, **(options.get("retry_policy") or {})}
    start, longest = policy.get("interval_start", 0), policy.get("interval_max", 1)
    pauses = fxrange(start, start + longest, policy.get("interval_step", 0.2), repeatlast=True)
    most = policy.get("max_retries", 3)
    return islice(pauses, most)


def _eta_header(app: Celery, *, countdown: Any, eta: Any) -> str:
    """The header that Celery would write."""
    if countdown:
        eta = maybe_make_aware(app.now() + timedelta(seconds=countdown), app.timezone)
    return eta if isinstance(eta, str) else str(eta.isoformat())


def without_time_to_live(task: Task, options: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a call with ``expires`` as a header only."""
    expires = options.get("expires", task.expires)
    conf = task.app.conf
    # The first protocol has it in its body, where a header does not replace it.
    if expires is None or conf.task_always_eager or conf.task_protocol == 1 or not context_of(task.app).has_amqp:
        return options
    try:
        header = _expires_header(task.app, expires)
    except (AttributeError, TypeError, ValueError, OverflowError):
        return options  # Celery raises its own error
    return {**options, "expires": None, "headers": {**(options.get("headers") or {}), "expires": header}}


def _expires_header(app: Celery, expires: Any) -> str:
    """Return the header that Celery writes for ``expires``."""
    if isinstance(expires, Real):
        expires = maybe_make_aware(app.now() + timedelta(seconds=float(expires)), app.timezone)
    return expires if isinstance(expires, str) else str(expires.isoformat())
