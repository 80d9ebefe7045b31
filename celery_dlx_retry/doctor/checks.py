"""The doctor's eye: each function finds one thing that bites, and says the fact; pure, over doctor/facts.py."""

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
    """No AMQP, no lanes."""
    if facts.transport != "amqp":
        yield f"The broker transport is {facts.transport!r}."


def unreachable(facts: Facts) -> Iterator[str]:
    """All that follows is about the app alone."""
    if facts.unreachable:
        yield facts.unreachable


def other_broker(facts: Facts) -> Iterator[str]:
    """Speaks AMQP, and may do otherwise in what matters."""
    if facts.transport == "amqp" and facts.product != "RabbitMQ" and not facts.unreachable:
        yield f"The broker calls itself {facts.product!r}."


def old_broker(facts: Facts) -> Iterator[str]:
    """Before the oldest version that we have tried."""
    if facts.product == "RabbitMQ" and facts.transport == "amqp" and facts.version < OLDEST_VERSION:
        yield f"The broker is RabbitMQ {_dotted(facts.version)}; the oldest that we know is {_dotted(OLDEST_VERSION)}."


def nothing_of_ours(facts: Facts) -> Iterator[str]:
    """Nobody uses us."""
    if not any(task.is_ours for task in facts.tasks):
        yield "No task of this app has DLXRetryTask as its base class."


def too_long(facts: Facts) -> Iterator[str]:
    """Asks for more than is allowed."""
    if facts.too_long:
        yield facts.too_long


def without_app_class(facts: Facts) -> Iterator[str]:
    """Ours, by a base= that took the place of the app's own class."""
    for task in facts.tasks:
        if task.is_ours and task.left_out:
            yield f"The task {task.name} does not derive from the app's task class, {task.left_out}."


def early_acks(facts: Facts) -> Iterator[str]:
    """Ours, and acknowledged before they ran."""
    for task in facts.tasks:
        if task.is_ours and not task.acks_late:
            yield f"The task {task.name} is acknowledged early (acks_late=False)."


def worker_lost_loop(facts: Facts) -> Iterator[str]:
    """Not ours, and requeued for ever."""
    for task in facts.tasks:
        if not task.is_ours and task.acks_late and task.reject_on_worker_lost:
            yield f"The task {task.name} goes back to its queue whenever its process dies (reject_on_worker_lost=True)."


def waits_in_worker(facts: Facts) -> Iterator[str]:
    """Retries that are not ours."""
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
    """Held unacknowledged for longer than the broker allows."""
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
    """The broker throws messages out and keeps none."""
    for queue in facts.queues:
        limit = _delivery_limit(facts, queue)
        if queue.kind == "quorum" and limit is not None and not _has_dlx(queue):
            yield f"The quorum queue {queue.name!r} has a delivery limit of {limit} and no dead-letter exchange."


def no_dlx(facts: Facts) -> Iterator[str]:
    """What others reject is not kept."""
    for queue in facts.queues:
        if not _has_dlx(queue) and (queue.kind == "classic" or _delivery_limit(facts, queue) is None):
            yield f"The work queue {queue.name!r} has no dead-letter exchange."


def limit_minus_one(facts: Facts) -> Iterator[str]:
    """Means "no limit" since RabbitMQ 4, and "none at all" before."""
    for queue in facts.queues:
        limit = queue.arguments.get("delivery-limit")
        if isinstance(limit, int) and limit < 0 and facts.version < _FOUR and not facts.unreachable:
            yield f"The quorum queue {queue.name!r} has delivery-limit={limit} on RabbitMQ {_dotted(facts.version)}."


def low_limit(facts: Facts) -> Iterator[str]:
    """Few lives, and neighbours that take them."""
    for queue in facts.queues:
        limit = _delivery_limit(facts, queue)
        if queue.kind == "quorum" and limit is not None and 0 <= limit <= _LOW_LIMIT and facts.prefetch_multiplier != 1:
            yield (
                f"The quorum queue {queue.name!r} has a delivery limit of {limit}, "
                f"and worker_prefetch_multiplier is {facts.prefetch_multiplier}."
            )


def unlimited_prefetch(facts: Facts) -> Iterator[str]:
    """One worker takes all."""
    if facts.prefetch_multiplier == 0:
        yield "worker_prefetch_multiplier is 0."


def undetected_quorum(facts: Facts) -> Iterator[str]:
    """Celery then asks for what a quorum queue does not have."""
    quorum = [queue.name for queue in facts.queues if queue.kind == "quorum"]
    if quorum and not facts.detects_quorum:
        yield f"worker_detect_quorum_queues is False, and {quorum[0]!r} is a quorum queue."


def classic_lanes(facts: Facts) -> Iterator[str]:
    """They do not wait until the work queue has what they give it."""
    if facts.lanes == "classic":
        yield 'dlx_queue_type is "classic".'


def length_limit(facts: Facts) -> Iterator[str]:
    """A retry that comes back to a full queue removes the oldest task from it."""
    for queue in facts.queues:
        for key in ("max-length", "max-length-bytes"):
            if key in queue.arguments and queue.kind == "classic":
                yield f"The classic work queue {queue.name!r} has {key}={queue.arguments[key]}."


def queue_ttl(facts: Facts) -> Iterator[str]:
    """Tasks that vanish when they get old."""
    for queue in facts.queues:
        if "message-ttl" in queue.arguments and not _has_dlx(queue):
            yield f"The work queue {queue.name!r} has message-ttl={queue.arguments['message-ttl']}."


def not_durable(facts: Facts) -> Iterator[str]:
    """Gone when the broker restarts."""
    for queue in facts.queues:
        if not queue.durable:
            yield f"The work queue {queue.name!r} is not durable."


def transient_messages(facts: Facts) -> Iterator[str]:
    """Not on disk."""
    if facts.transient_messages:
        yield "task_default_delivery_mode is 'transient'."
    for queue in facts.queues:
        if queue.transient:
            yield f"The exchange of the work queue {queue.name!r} makes messages transient."


def unconfirmed_publish(facts: Facts) -> Iterator[str]:
    """The first publish."""
    if facts.transport == "amqp" and not facts.confirm_publish:
        yield "broker_transport_options has no confirm_publish=True."


def result_expiry(facts: Facts) -> Iterator[str]:
    """The state of a waiting task is forgotten."""
    if facts.result_expires_ms is not None and facts.result_expires_ms < facts.longest_wait_ms:
        yield (
            f"Results expire after {facts.result_expires_ms // 1000} s, "
            f"and a retry may wait for {facts.longest_wait_ms // 1000} s."
        )


def consumes_dead_letters(facts: Facts) -> Iterator[str]:
    """Workers would take them."""
    for name in facts.consumed_by_mistake:
        yield f"{name!r} is in task_queues, and is a lane or a dead-letter queue of ours."


def forbidden(facts: Facts) -> Iterator[str]:
    """What the broker user lacks."""
    yield from facts.forbidden


def missing(facts: Facts) -> Iterator[str]:
    """Nobody declared it, and we may not."""
    if not facts.declares and facts.missing:
        yield f"dlx_declare is False, and {len(facts.missing)} things do not exist, {facts.missing[0]!r} for one."


def drift(facts: Facts) -> Iterator[str]:
    """See topology/drift.py."""
    yield from facts.differences


def unknown_type(facts: Facts) -> Iterator[str]:
    """The broker does not say, and we take the commoner one."""
    for name in facts.unknown_types:
        yield f"The type of the work queue {name!r} is not known: the broker user may not configure it."


def shared_prefix(facts: Facts) -> Iterator[str]:
    """Queues of another app, or of ours that only a worker names."""
    if facts.strangers:
        named = ", ".join(map(repr, facts.strangers[:_NAMED]))
        more = f" and {len(facts.strangers) - _NAMED} more" if len(facts.strangers) > _NAMED else ""
        yield f"Under its dlx_prefix are work queues that this app does not know: {named}{more}."


def no_management(facts: Facts) -> Iterator[str]:
    """We know less."""
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
