"""The rules of the doctor about work queues: each function yields a sentence for each queue with its problem."""

from __future__ import annotations

from typing import TYPE_CHECKING

from celery_dlx_retry.doctor.rule import dotted, error, info, is_rabbitmq, warning

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_dlx_retry.doctor.facts import Facts, WorkQueueFacts

_FOUR = (4, 0)
_DEFAULT_LIMIT_OF_FOUR = 20
_LOW_LIMIT = 5


@error(
    "quorum-without-dlx",
    consequence="At the limit the broker drops the message without a trace.",
    cure="Run `celery dlx policy`, or make the queue with dlx_queue().",
)
def _no_dlx_on_quorum(facts: Facts) -> Iterator[str]:
    for queue in facts.queues:
        limit = _delivery_limit(facts, queue)
        if queue.kind == "quorum" and limit is not None and not _has_dlx(queue):
            yield f"The quorum queue {queue.name!r} has a delivery limit of {limit} and no dead-letter exchange."


@error(
    "delivery-limit-minus-one",
    consequence="Before RabbitMQ 4 a message is dropped when it returns for the first time.",
    cure="Set a large positive limit instead.",
)
def _limit_minus_one(facts: Facts) -> Iterator[str]:
    for queue in facts.queues:
        limit = queue.arguments.get("delivery-limit")
        if isinstance(limit, int) and limit < 0 and facts.version < _FOUR and not facts.unreachable:
            yield f"The quorum queue {queue.name!r} has delivery-limit={limit} on RabbitMQ {dotted(facts.version)}."


@error(
    "length-limit",
    consequence="To make room for a retry that comes back, RabbitMQ removes the oldest task of the full queue.",
    cure="Remove the limit.",
)
def _length_limit(facts: Facts) -> Iterator[str]:
    for queue in facts.queues:
        for key in ("max-length", "max-length-bytes"):
            if key in queue.arguments and queue.kind == "classic":
                yield f"The classic work queue {queue.name!r} has {key}={queue.arguments[key]}."


@error(
    "not-durable",
    consequence="Its messages are lost when the broker restarts, and waiting tasks find no queue then.",
    cure="Declare it durable.",
)
def _not_durable(facts: Facts) -> Iterator[str]:
    for queue in facts.queues:
        if not queue.durable:
            yield f"The work queue {queue.name!r} is not durable."


@error(
    "transient-messages",
    consequence="Messages are not written to disk, and lost when the broker restarts.",
    cure='Set task_default_delivery_mode = "persistent", and Exchange(delivery_mode=2).',
)
def _transient_messages(facts: Facts) -> Iterator[str]:
    if facts.transient_messages:
        yield "task_default_delivery_mode is 'transient'."
    for queue in facts.queues:
        if queue.transient:
            yield f"The exchange of the work queue {queue.name!r} makes messages transient."


@warning(
    "low-delivery-limit",
    consequence="A worker that dies returns all prefetched tasks, and this counts for tasks that never ran, too.",
    cure="Raise the limit, or set worker_prefetch_multiplier = 1.",
)
def _low_limit(facts: Facts) -> Iterator[str]:
    for queue in facts.queues:
        limit = _delivery_limit(facts, queue)
        if queue.kind == "quorum" and limit is not None and 0 <= limit <= _LOW_LIMIT and facts.prefetch_multiplier != 1:
            yield (
                f"The quorum queue {queue.name!r} has a delivery limit of {limit}, "
                f"and worker_prefetch_multiplier is {facts.prefetch_multiplier}."
            )


@warning(
    "undetected-quorum",
    consequence="Celery asks for a global prefetch, which quorum queues do not have.",
    cure="Remove the setting.",
)
def _undetected_quorum(facts: Facts) -> Iterator[str]:
    quorum = [queue.name for queue in facts.queues if queue.kind == "quorum"]
    if quorum and not facts.detects_quorum:
        yield f"worker_detect_quorum_queues is False, and {quorum[0]!r} is a quorum queue."


@warning(
    "queue-ttl",
    consequence="A task that waits longer for a worker is dropped.",
    cure="Remove it, or attach a dead-letter exchange: `celery dlx policy`.",
)
def _queue_ttl(facts: Facts) -> Iterator[str]:
    for queue in facts.queues:
        if "message-ttl" in queue.arguments and not _has_dlx(queue):
            yield f"The work queue {queue.name!r} has message-ttl={queue.arguments['message-ttl']}."


@info(
    "no-dead-letter-exchange",
    consequence="Messages that the broker itself drops are lost; those that DLXRetryTask gives up are kept.",
    cure="Run `celery dlx policy`, or make new queues with dlx_queue().",
)
def _no_dlx(facts: Facts) -> Iterator[str]:
    for queue in facts.queues:
        if not _has_dlx(queue) and (queue.kind == "classic" or _delivery_limit(facts, queue) is None):
            yield f"The work queue {queue.name!r} has no dead-letter exchange."


@info(
    "unknown-type",
    consequence="The doctor takes it for a classic queue, and does not find the problems of quorum queues.",
    cure="Name its x-queue-type in task_queues, or run the doctor as a user that can configure it.",
)
def _unknown_type(facts: Facts) -> Iterator[str]:
    for name in facts.unknown_types:
        yield f"The type of the work queue {name!r} is not known: the broker user may not configure it."


def _has_dlx(queue: WorkQueueFacts) -> bool:
    return bool(queue.arguments.get("dead-letter-exchange"))


def _delivery_limit(facts: Facts, queue: WorkQueueFacts) -> int | None:
    limit = queue.arguments.get("delivery-limit")
    if isinstance(limit, int):
        return limit if limit >= 0 else None
    return _DEFAULT_LIMIT_OF_FOUR if is_rabbitmq(facts, since=_FOUR) else None
