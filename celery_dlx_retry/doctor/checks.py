"""The checks of the doctor: each function looks for one problem in doctor/facts.py and yields a sentence for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from celery_dlx_retry.topology.broker_requirements import OLDEST_VERSION

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_dlx_retry.doctor.facts import Facts, TaskFacts, WorkQueueFacts

_FOUR = (4, 0)
_FOUR_THREE = (4, 3)
_NAMED = 5
_DEFAULT_LIMIT_OF_FOUR = 20
_LOW_LIMIT = 5
_CONSUMER_TIMEOUT_MS = 30 * 60 * 1000


def not_rabbitmq(facts: Facts) -> Iterator[str]:
    """The broker does not speak AMQP, so it has no lanes."""
    if facts.transport != "amqp":
        yield f"The broker transport is {facts.transport!r}."


def unreachable(facts: Facts) -> Iterator[str]:
    """The broker does not answer; the other checks are about the app alone."""
    if facts.unreachable:
        yield facts.unreachable


def other_broker(facts: Facts) -> Iterator[str]:
    """The broker speaks AMQP and is not RabbitMQ: it may differ in important details."""
    if facts.transport == "amqp" and facts.product != "RabbitMQ" and not facts.unreachable:
        yield f"The broker calls itself {facts.product!r}."


def old_broker(facts: Facts) -> Iterator[str]:
    """The broker is older than the oldest version that we have tried."""
    if facts.product == "RabbitMQ" and facts.transport == "amqp" and facts.version < OLDEST_VERSION:
        oldest = _dotted(OLDEST_VERSION)
        yield f"The broker is RabbitMQ {_dotted(facts.version)}; the oldest that we have tried is {oldest}."


def nothing_of_ours(facts: Facts) -> Iterator[str]:
    """No task uses DLXRetryTask."""
    if not any(task.is_ours for task in facts.tasks):
        yield "No task of this app has DLXRetryTask as its base class."


def too_long(facts: Facts) -> Iterator[str]:
    """A task asks for a delay above dlx_max_delay."""
    if facts.too_long:
        yield facts.too_long


def without_app_class(facts: Facts) -> Iterator[str]:
    """A task has base=DLXRetryTask and so lacks the task class of the app."""
    for task in facts.tasks:
        if task.is_ours and task.left_out:
            yield f"The task {task.name} does not derive from the app's task class, {task.left_out}."


def early_acks(facts: Facts) -> Iterator[str]:
    """A DLXRetryTask is acknowledged before it runs."""
    for task in facts.tasks:
        if task.is_ours and not task.acks_late:
            yield f"The task {task.name} is acknowledged early (acks_late=False)."


def worker_lost_loop(facts: Facts) -> Iterator[str]:
    """A task that is not ours is requeued without end if it kills its process."""
    for task in facts.tasks:
        if not task.is_ours and task.acks_late and task.reject_on_worker_lost:
            yield f"The task {task.name} goes back to its queue whenever its process dies (reject_on_worker_lost=True)."


def waits_in_worker(facts: Facts) -> Iterator[str]:
    """A task that is not ours retries."""
    for task in _waiting_in_workers(facts):
        yield f"The task {task.name} retries, and its base class is not DLXRetryTask."


def prefetch_used_up(facts: Facts) -> Iterator[str]:
    """Waiting tasks count against the prefetch."""
    if not _waiting_in_workers(facts):
        return
    if _is_rabbitmq(facts, since=_FOUR_THREE):
        yield f"RabbitMQ {_dotted(facts.version)} has no global prefetch, and tasks of this app wait in its workers."
    for queue in facts.queues:
        if queue.kind == "quorum" and not _is_rabbitmq(facts, since=_FOUR_THREE):
            yield f"The quorum queue {queue.name!r} has no global prefetch, and tasks of this app wait in its workers."


def consumer_timeout(facts: Facts) -> Iterator[str]:
    """A message stays unacknowledged for longer than the broker allows."""
    if facts.unreachable:
        return  # depends on its version
    if _is_rabbitmq(facts, since=_FOUR_THREE) and all(queue.kind == "classic" for queue in facts.queues):
        return  # no longer enforced on classic queues
    timeouts = [queue.arguments.get("consumer-timeout") for queue in facts.queues]
    timeout_ms = min((it for it in timeouts if isinstance(it, int)), default=_CONSUMER_TIMEOUT_MS)
    for task in _waiting_in_workers(facts):
        longest = max(task.waits_ms, default=0)
        if longest >= timeout_ms:
            yield (
                f"The task {task.name} waits up to {longest // 1000} s in a worker; "
                f"the consumer timeout is {timeout_ms // 1000} s, unless the broker's configuration says otherwise."
            )
    for name, countdown_ms in facts.countdowns:
        if countdown_ms >= timeout_ms:
            yield (
                f"The schedule's entry {name!r} has a countdown of {countdown_ms // 1000} s; "
                f"the consumer timeout is {timeout_ms // 1000} s, unless the broker's configuration says otherwise."
            )
    for task in facts.tasks:
        if task.acks_late and task.time_limit_ms is not None and task.time_limit_ms >= timeout_ms:
            yield (
                f"The task {task.name} may run for {task.time_limit_ms // 1000} s before it is acknowledged; "
                f"the consumer timeout is {timeout_ms // 1000} s, unless the broker's configuration says otherwise."
            )


def no_dlx_on_quorum(facts: Facts) -> Iterator[str]:
    """The broker drops messages at the delivery limit and keeps none."""
    for queue in facts.queues:
        limit = _delivery_limit(facts, queue)
        if queue.kind == "quorum" and limit is not None and not _has_dlx(queue):
            yield f"The quorum queue {queue.name!r} has a delivery limit of {limit} and no dead-letter exchange."


def no_dlx(facts: Facts) -> Iterator[str]:
    """Rejected messages are not kept."""
    for queue in facts.queues:
        if not _has_dlx(queue) and (queue.kind == "classic" or _delivery_limit(facts, queue) is None):
            yield f"The work queue {queue.name!r} has no dead-letter exchange."


def limit_minus_one(facts: Facts) -> Iterator[str]:
    """The limit -1 means "no limit" since RabbitMQ 4, and "drop at once" before."""
    for queue in facts.queues:
        limit = queue.arguments.get("delivery-limit")
        if isinstance(limit, int) and limit < 0 and facts.version < _FOUR and not facts.unreachable:
            yield f"The quorum queue {queue.name!r} has delivery-limit={limit} on RabbitMQ {_dotted(facts.version)}."


def low_limit(facts: Facts) -> Iterator[str]:
    """A low delivery limit, and prefetched tasks that use it up."""
    for queue in facts.queues:
        limit = _delivery_limit(facts, queue)
        if queue.kind == "quorum" and limit is not None and 0 <= limit <= _LOW_LIMIT and facts.prefetch_multiplier != 1:
            yield (
                f"The quorum queue {queue.name!r} has a delivery limit of {limit}, "
                f"and worker_prefetch_multiplier is {facts.prefetch_multiplier}."
            )


def unlimited_prefetch(facts: Facts) -> Iterator[str]:
    """One worker takes all messages."""
    if facts.prefetch_multiplier == 0:
        yield "worker_prefetch_multiplier is 0."


def undetected_quorum(facts: Facts) -> Iterator[str]:
    """Celery then asks for a global prefetch, which a quorum queue does not have."""
    quorum = [queue.name for queue in facts.queues if queue.kind == "quorum"]
    if quorum and not facts.detects_quorum:
        yield f"worker_detect_quorum_queues is False, and {quorum[0]!r} is a quorum queue."


def classic_lanes(facts: Facts) -> Iterator[str]:
    """Classic lanes do not wait until the work queue has confirmed a message."""
    if facts.lanes == "classic":
        yield 'dlx_queue_type is "classic".'


def length_limit(facts: Facts) -> Iterator[str]:
    """A retry that comes back to a full queue removes the oldest task from it."""
    for queue in facts.queues:
        for key in ("max-length", "max-length-bytes"):
            if key in queue.arguments and queue.kind == "classic":
                yield f"The classic work queue {queue.name!r} has {key}={queue.arguments[key]}."


def queue_ttl(facts: Facts) -> Iterator[str]:
    """Messages expire and are lost."""
    for queue in facts.queues:
        if "message-ttl" in queue.arguments and not _has_dlx(queue):
            yield f"The work queue {queue.name!r} has message-ttl={queue.arguments['message-ttl']}."


def not_durable(facts: Facts) -> Iterator[str]:
    """The queue is lost when the broker restarts."""
    for queue in facts.queues:
        if not queue.durable:
            yield f"The work queue {queue.name!r} is not durable."


def transient_messages(facts: Facts) -> Iterator[str]:
    """Messages are not written to disk."""
    if facts.transient_messages:
        yield "task_default_delivery_mode is 'transient'."
    for queue in facts.queues:
        if queue.transient:
            yield f"The exchange of the work queue {queue.name!r} makes messages transient."


def unconfirmed_publish(facts: Facts) -> Iterator[str]:
    """Celery sends tasks without waiting for a confirm."""
    if facts.transport == "amqp" and not facts.confirm_publish:
        yield "broker_transport_options has no confirm_publish=True."


def result_expiry(facts: Facts) -> Iterator[str]:
    """The state of a waiting task expires before the task runs."""
    if facts.result_expires_ms is not None and facts.result_expires_ms < facts.longest_wait_ms:
        yield (
            f"Results expire after {facts.result_expires_ms // 1000} s, "
            f"and a retry may wait for {facts.longest_wait_ms // 1000} s."
        )


def consumes_dead_letters(facts: Facts) -> Iterator[str]:
    """Workers would consume our lanes or dead letters."""
    for name in facts.consumed_by_mistake:
        yield f"{name!r} is in task_queues, and is a lane or a dead-letter queue of ours."


def forbidden(facts: Facts) -> Iterator[str]:
    """The broker user lacks a permission."""
    yield from facts.forbidden


def missing(facts: Facts) -> Iterator[str]:
    """Something does not exist, and dlx_declare is False."""
    if not facts.declares and facts.missing:
        first, count = facts.missing[0], len(facts.missing)
        yield f"dlx_declare is False, and {count} queues and exchanges do not exist, for example {first!r}."


def drift(facts: Facts) -> Iterator[str]:
    """The broker differs from the plan; see topology/drift.py."""
    yield from facts.differences


def unknown_type(facts: Facts) -> Iterator[str]:
    """The broker does not name the type of a queue; the doctor assumes the more common one."""
    for name in facts.unknown_types:
        yield f"The type of the work queue {name!r} is not known: the broker user may not configure it."


def shared_prefix(facts: Facts) -> Iterator[str]:
    """Queues of another app, or queues of this app that only ``worker -Q`` names."""
    if facts.strangers:
        named = ", ".join(map(repr, facts.strangers[:_NAMED]))
        more = f" and {len(facts.strangers) - _NAMED} more" if len(facts.strangers) > _NAMED else ""
        yield f"Under its dlx_prefix are work queues that this app does not know: {named}{more}."


def no_management(facts: Facts) -> Iterator[str]:
    """The HTTP API does not answer, so some checks are left out."""
    if facts.no_management:
        yield facts.no_management


def _waiting_in_workers(facts: Facts) -> list[TaskFacts]:
    return [task for task in facts.tasks if task.retries and not task.is_ours]


def _is_rabbitmq(facts: Facts, *, since: tuple[int, ...]) -> bool:
    return facts.product == "RabbitMQ" and facts.version >= since


def _has_dlx(queue: WorkQueueFacts) -> bool:
    return bool(queue.arguments.get("dead-letter-exchange"))


def _delivery_limit(facts: Facts, queue: WorkQueueFacts) -> int | None:
    limit = queue.arguments.get("delivery-limit")
    if isinstance(limit, int):
        return limit if limit >= 0 else None
    return _DEFAULT_LIMIT_OF_FOUR if _is_rabbitmq(facts, since=_FOUR) else None


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
