"""The rules of the doctor about tasks, settings and the broker; those about work queues are in queue_rules.py."""

from __future__ import annotations

from typing import TYPE_CHECKING

from celery_dlx_retry.doctor.rule import dotted, error, info, is_rabbitmq, warning
from celery_dlx_retry.topology.broker_requirements import OLDEST_VERSION

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_dlx_retry.doctor.facts import Facts, TaskFacts

_FOUR_THREE = (4, 3)
_NAMED = 5
_CONSUMER_TIMEOUT_MS = 30 * 60 * 1000


@error(
    "not-rabbitmq",
    consequence="Celery's own retries are used: they wait in the worker, and a task that fails is lost.",
    cure="Use RabbitMQ (amqp://); dlx_require_rabbitmq = True makes anything else an error.",
)
def _not_rabbitmq(facts: Facts) -> Iterator[str]:
    if facts.transport != "amqp":
        yield f"The broker transport is {facts.transport!r}."


@error(
    "unreachable",
    consequence="A worker waits for the broker. The other findings are about the app alone.",
    cure="Start it, or correct broker_url; then run the doctor again.",
)
def _unreachable(facts: Facts) -> Iterator[str]:
    if facts.unreachable:
        yield facts.unreachable


@error(
    "old-broker",
    consequence="It has no at-least-once dead-lettering, which quorum lanes need; we have never tried it.",
    cure="Upgrade RabbitMQ.",
)
def _old_broker(facts: Facts) -> Iterator[str]:
    if facts.product == "RabbitMQ" and facts.transport == "amqp" and facts.version < OLDEST_VERSION:
        oldest = dotted(OLDEST_VERSION)
        yield f"The broker is RabbitMQ {dotted(facts.version)}; the oldest that we have tried is {oldest}."


@warning(
    "other-broker",
    consequence="Lanes rely on details of RabbitMQ: expiry, alternate exchanges, confirms.",
    cure="Run the test suite against it with DLX_TEST_BROKER_URL, or use RabbitMQ.",
)
def _other_broker(facts: Facts) -> Iterator[str]:
    if facts.transport == "amqp" and facts.product != "RabbitMQ" and not facts.unreachable:
        yield f"The broker calls itself {facts.product!r}."


@error(
    "delay-too-long",
    consequence="No worker starts.",
    cure="Shorten the delay, or raise dlx_max_delay.",
)
def _too_long(facts: Facts) -> Iterator[str]:
    if facts.too_long:
        yield facts.too_long


@error(
    "early-acks",
    consequence="The task is lost if its worker dies while it runs, or if its retry cannot be published.",
    cure="Remove acks_late=False, and write the task so that it can run twice.",
)
def _early_acks(facts: Facts) -> Iterator[str]:
    for task in facts.tasks:
        if task.is_ours and not task.acks_late:
            yield f"The task {task.name} is acknowledged early (acks_late=False)."


@warning(
    "without-app-class",
    consequence="The task loses what that class adds, for example Flask's application context.",
    cure="Derive that class from DLXRetryTask, and remove base=.",
)
def _without_app_class(facts: Facts) -> Iterator[str]:
    for task in facts.tasks:
        if task.is_ours and task.left_out:
            yield f"The task {task.name} does not derive from the app's task class, {task.left_out}."


@error(
    "consumes-dead-letters",
    consequence="Workers consume it: dead letters run again at once, and waits end early.",
    cure="Remove it from task_queues; the worker declares it.",
)
def _consumes_dead_letters(facts: Facts) -> Iterator[str]:
    for name in facts.consumed_by_mistake:
        yield f"{name!r} is in task_queues, and is a lane or a dead-letter queue of ours."


@error(
    "consumer-timeout",
    consequence="The broker takes the task from the worker and gives it to the next one, without end.",
    cure="For waits use DLXRetryTask; for long runs raise consumer_timeout in rabbitmq.conf.",
)
def _consumer_timeout(facts: Facts) -> Iterator[str]:
    if facts.unreachable:
        return  # depends on its version
    if is_rabbitmq(facts, since=_FOUR_THREE) and all(queue.kind == "classic" for queue in facts.queues):
        return  # no longer enforced on classic queues
    timeouts = [queue.arguments.get("consumer-timeout") for queue in facts.queues]
    timeout_ms = min((it for it in timeouts if isinstance(it, int)), default=_CONSUMER_TIMEOUT_MS)
    held = [(f"The task {it.name} waits up to", it.waits_ms, " in a worker") for it in _waiting_in_workers(facts)]
    held += [(f"The schedule's entry {name!r} has a countdown of", (ms,), "") for name, ms in facts.countdowns]
    late = [(it.name, it.time_limit_ms) for it in facts.tasks if it.acks_late and it.time_limit_ms is not None]
    held += [(f"The task {name} may run for", (ms,), " before it is acknowledged") for name, ms in late]
    for what, waits_ms, how in held:
        if (longest := max(waits_ms, default=0)) >= timeout_ms:
            yield (
                f"{what} {longest // 1000} s{how}; the consumer timeout is {timeout_ms // 1000} s, "
                "unless the broker's configuration says otherwise."
            )


@error(
    "permission",
    consequence="Workers stop at their start, retries go back to their queue again and again, or tasks are lost.",
    cure="Grant what `celery dlx permissions` prints; or let another user declare, and set dlx_declare = False.",
)
def _forbidden(facts: Facts) -> Iterator[str]:
    yield from facts.forbidden


@error(
    "missing",
    consequence="A retry that finds no lane goes back to its work queue and runs again.",
    cure="Import the output of `celery dlx plan --format definitions`.",
)
def _missing(facts: Facts) -> Iterator[str]:
    if not facts.declares and facts.missing:
        first, count = facts.missing[0], len(facts.missing)
        yield f"dlx_declare is False, and {count} queues and exchanges do not exist, for example {first!r}."


@error(
    "drift",
    consequence="Tasks wait too long or too short, or messages do not reach their queue.",
    cure="See `celery dlx check`.",
)
def _drift(facts: Facts) -> Iterator[str]:
    yield from facts.differences


@warning(
    "classic-lanes",
    consequence="Tasks that come due while the broker goes down can be lost; with quorum work queues, all of them.",
    cure='Remove the setting: its default is "quorum".',
)
def _classic_lanes(facts: Facts) -> Iterator[str]:
    if facts.lanes == "classic":
        yield 'dlx_queue_type is "classic".'


@warning(
    "nothing-of-ours",
    consequence="Retries wait in the workers, and tasks that fail are lost.",
    cure='Add base=DLXRetryTask to a task, or Celery(task_cls="celery_dlx_retry:DLXRetryTask"); '
    "if the app has a task class, derive it from DLXRetryTask.",
)
def _nothing_of_ours(facts: Facts) -> Iterator[str]:
    if not any(task.is_ours for task in facts.tasks):
        yield "No task of this app has DLXRetryTask as its base class."


@warning(
    "waits-in-worker",
    consequence="Its retries wait in a worker's memory, and it is lost after the last one.",
    cure="Add base=DLXRetryTask; if the app has a task class, derive that class from DLXRetryTask.",
)
def _waits_in_worker(facts: Facts) -> Iterator[str]:
    for task in _waiting_in_workers(facts):
        yield f"The task {task.name} retries, and its base class is not DLXRetryTask."


@warning(
    "own-strategy",
    consequence="The Strategy takes its messages itself: what fails there is acknowledged and gone.",
    cure="Let it send a task of ours for each item that failed; DLXRetryTask takes no other Strategy.",
)
def _own_strategy(facts: Facts) -> Iterator[str]:
    for task in facts.tasks:
        if task.strategy:
            yield f"The task {task.name} has the Strategy {task.strategy}."


@warning(
    "mapped-tasks",
    consequence="A chunk that fails is acknowledged and gone: celery.map runs the bodies, without retries of ours.",
    cure="Send one task for each item, or set Celery(task_cls=...) to DLXRetryTask or a class that derives from it.",
)
def _mapped(facts: Facts) -> Iterator[str]:
    if not facts.maps_are_ours:
        for task in facts.tasks:
            for name in task.mapped:
                yield f"The task {task.name} runs {name} by map(), starmap() or chunks()."


@warning(
    "prefetch-used-up",
    consequence="Waiting tasks use up the prefetch: a worker with a full prefetch is idle and runs nothing.",
    cure="Add base=DLXRetryTask to the tasks that retry; avoid countdown and eta.",
)
def _prefetch_used_up(facts: Facts) -> Iterator[str]:
    if not _waiting_in_workers(facts):
        return
    if is_rabbitmq(facts, since=_FOUR_THREE):
        yield f"RabbitMQ {dotted(facts.version)} has no global prefetch, and tasks of this app wait in its workers."
    for queue in facts.queues:
        if queue.kind == "quorum" and not is_rabbitmq(facts, since=_FOUR_THREE):
            yield f"The quorum queue {queue.name!r} has no global prefetch, and tasks of this app wait in its workers."


@warning(
    "worker-lost-loop",
    consequence="A task that kills its process does so again and again, without limit.",
    cure="Add base=DLXRetryTask, which counts; or remove reject_on_worker_lost.",
)
def _worker_lost_loop(facts: Facts) -> Iterator[str]:
    for task in facts.tasks:
        if not task.is_ours and task.acks_late and task.reject_on_worker_lost:
            yield f"The task {task.name} goes back to its queue whenever its process dies (reject_on_worker_lost=True)."


@warning(
    "unlimited-prefetch",
    consequence="One worker takes the whole queue into its memory; when it dies, all of it is delivered again.",
    cure="Set it to 1, or to the default of 4.",
)
def _unlimited_prefetch(facts: Facts) -> Iterator[str]:
    if facts.prefetch_multiplier == 0:
        yield "worker_prefetch_multiplier is 0."


@warning(
    "unconfirmed-publish",
    consequence="delay() returns before the broker has the task; if the connection breaks then, the task is lost.",
    cure='Set broker_transport_options = {"confirm_publish": True}.',
)
def _unconfirmed_publish(facts: Facts) -> Iterator[str]:
    if facts.transport == "amqp" and not facts.confirm_publish:
        yield "broker_transport_options has no confirm_publish=True."


@warning(
    "result-expiry",
    consequence="The state of a waiting task expires: it reads PENDING, and its chord never ends.",
    cure="Raise result_expires above the longest wait.",
)
def _result_expiry(facts: Facts) -> Iterator[str]:
    if facts.result_expires_ms is not None and facts.result_expires_ms < facts.longest_wait_ms:
        yield (
            f"Results expire after {facts.result_expires_ms // 1000} s, "
            f"and a retry may wait for {facts.longest_wait_ms // 1000} s."
        )


@info(
    "shared-prefix",
    consequence="`dead list` and `status` show their letters, too; replay --all and purge leave them alone.",
    cure="Give each app another dlx_prefix. If the queues are yours (`worker -Q`), name them in task_queues.",
)
def _shared_prefix(facts: Facts) -> Iterator[str]:
    if facts.strangers:
        named = ", ".join(map(repr, facts.strangers[:_NAMED]))
        more = f" and {len(facts.strangers) - _NAMED} more" if len(facts.strangers) > _NAMED else ""
        yield f"Under its dlx_prefix are work queues that this app does not know: {named}{more}."


@info(
    "no-management",
    consequence="Bindings, policies, rates and unacknowledged messages are not checked.",
    cure="Enable rabbitmq_management, or name its URL with --management-url.",
)
def _no_management(facts: Facts) -> Iterator[str]:
    if facts.no_management:
        yield facts.no_management


def _waiting_in_workers(facts: Facts) -> list[TaskFacts]:
    return [task for task in facts.tasks if task.retries and not task.is_ours]
