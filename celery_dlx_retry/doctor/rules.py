"""Turn facts about an app and its broker into findings, each with its consequence and its cure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from celery_dlx_retry.doctor import checks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from celery_dlx_retry.doctor.facts import Facts

Severity = Literal["error", "warning", "info"]
SEVERITIES = ("error", "warning", "info")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One problem: how to find it, what it causes, and how to cure it."""

    code: str
    severity: Severity
    consequence: str
    cure: str
    facts: Callable[[Facts], Iterator[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A rule that applies, with the fact."""

    code: str
    severity: Severity
    fact: str
    consequence: str
    cure: str


def findings(facts: Facts) -> list[Finding]:
    """Return all findings, the worst first."""
    return [
        Finding(code=rule.code, severity=rule.severity, fact=fact, consequence=rule.consequence, cure=rule.cure)
        for severity in SEVERITIES
        for rule in RULES
        if rule.severity == severity
        for fact in rule.facts(facts)
    ]


RULES = (
    Rule(
        code="not-rabbitmq",
        severity="error",
        consequence="Celery's own retries are used: they wait in the worker, and a task that fails is lost.",
        cure="Use RabbitMQ (amqp://); dlx_require_rabbitmq = True makes anything else an error.",
        facts=checks.not_rabbitmq,
    ),
    Rule(
        code="unreachable",
        severity="error",
        consequence="A worker waits for the broker. The other findings are about the app alone.",
        cure="Start it, or correct broker_url; then run the doctor again.",
        facts=checks.unreachable,
    ),
    Rule(
        code="old-broker",
        severity="error",
        consequence="It has no at-least-once dead-lettering, which quorum lanes need; we have never tried it.",
        cure="Upgrade RabbitMQ.",
        facts=checks.old_broker,
    ),
    Rule(
        code="other-broker",
        severity="warning",
        consequence="Lanes rely on details of RabbitMQ: expiry, alternate exchanges, confirms.",
        cure="Run the test suite against it with DLX_TEST_BROKER_URL, or use RabbitMQ.",
        facts=checks.other_broker,
    ),
    Rule(
        code="delay-too-long",
        severity="error",
        consequence="No worker starts.",
        cure="Shorten the delay, or raise dlx_max_delay.",
        facts=checks.too_long,
    ),
    Rule(
        code="early-acks",
        severity="error",
        consequence="The task is lost if its worker dies while it runs, or if its retry cannot be published.",
        cure="Remove acks_late=False, and write the task so that it can run twice.",
        facts=checks.early_acks,
    ),
    Rule(
        code="without-app-class",
        severity="warning",
        consequence="The task loses what that class adds, for example Flask's application context.",
        cure="Derive that class from DLXRetryTask, and remove base=.",
        facts=checks.without_app_class,
    ),
    Rule(
        code="consumes-dead-letters",
        severity="error",
        consequence="Workers consume it: dead letters run again at once, and waits end early.",
        cure="Remove it from task_queues; the worker declares it.",
        facts=checks.consumes_dead_letters,
    ),
    Rule(
        code="consumer-timeout",
        severity="error",
        consequence="The broker takes the task from the worker and gives it to the next one, without end.",
        cure="For waits use DLXRetryTask; for long runs raise consumer_timeout in rabbitmq.conf.",
        facts=checks.consumer_timeout,
    ),
    Rule(
        code="quorum-without-dlx",
        severity="error",
        consequence="At the limit the broker drops the message without a trace.",
        cure="Run `celery dlx policy`, or make the queue with dlx_queue().",
        facts=checks.no_dlx_on_quorum,
    ),
    Rule(
        code="delivery-limit-minus-one",
        severity="error",
        consequence="Before RabbitMQ 4 a message is dropped when it returns for the first time.",
        cure="Set a large positive limit instead.",
        facts=checks.limit_minus_one,
    ),
    Rule(
        code="length-limit",
        severity="error",
        consequence="To make room for a retry that comes back, RabbitMQ removes the oldest task of the full queue.",
        cure="Remove the limit.",
        facts=checks.length_limit,
    ),
    Rule(
        code="not-durable",
        severity="error",
        consequence="Its messages are lost when the broker restarts, and waiting tasks find no queue then.",
        cure="Declare it durable.",
        facts=checks.not_durable,
    ),
    Rule(
        code="transient-messages",
        severity="error",
        consequence="Messages are not written to disk, and lost when the broker restarts.",
        cure='Set task_default_delivery_mode = "persistent", and Exchange(delivery_mode=2).',
        facts=checks.transient_messages,
    ),
    Rule(
        code="permission",
        severity="error",
        consequence="Workers stop at their start, retries go back to their queue again and again, or tasks are lost.",
        cure="Grant what `celery dlx permissions` prints; or let another user declare, and set dlx_declare = False.",
        facts=checks.forbidden,
    ),
    Rule(
        code="missing",
        severity="error",
        consequence="A retry that finds no lane goes back to its work queue and runs again.",
        cure="Import the output of `celery dlx plan --format definitions`.",
        facts=checks.missing,
    ),
    Rule(
        code="drift",
        severity="error",
        consequence="Tasks wait too long or too short, or messages do not reach their queue.",
        cure="See `celery dlx check`.",
        facts=checks.drift,
    ),
    Rule(
        code="classic-lanes",
        severity="warning",
        consequence="Tasks that come due while the broker goes down can be lost; with quorum work queues, all of them.",
        cure='Remove the setting: its default is "quorum".',
        facts=checks.classic_lanes,
    ),
    Rule(
        code="nothing-of-ours",
        severity="warning",
        consequence="Retries wait in the workers, and tasks that fail are lost.",
        cure='Add base=DLXRetryTask to a task, or Celery(task_cls="celery_dlx_retry:DLXRetryTask").',
        facts=checks.nothing_of_ours,
    ),
    Rule(
        code="waits-in-worker",
        severity="warning",
        consequence="Its retries wait in a worker's memory, and it is lost after the last one.",
        cure="Add base=DLXRetryTask.",
        facts=checks.waits_in_worker,
    ),
    Rule(
        code="prefetch-used-up",
        severity="warning",
        consequence="Waiting tasks use up the prefetch: a worker with a full prefetch is idle and runs nothing.",
        cure="Add base=DLXRetryTask to the tasks that retry; avoid countdown and eta.",
        facts=checks.prefetch_used_up,
    ),
    Rule(
        code="worker-lost-loop",
        severity="warning",
        consequence="A task that kills its process does so again and again, without limit.",
        cure="Add base=DLXRetryTask, which counts; or remove reject_on_worker_lost.",
        facts=checks.worker_lost_loop,
    ),
    Rule(
        code="low-delivery-limit",
        severity="warning",
        consequence="A worker that dies returns all prefetched tasks, and this counts for tasks that never ran, too.",
        cure="Raise the limit, or set worker_prefetch_multiplier = 1.",
        facts=checks.low_limit,
    ),
    Rule(
        code="unlimited-prefetch",
        severity="warning",
        consequence="One worker takes the whole queue into its memory; when it dies, all of it is delivered again.",
        cure="Set it to 1, or to the default of 4.",
        facts=checks.unlimited_prefetch,
    ),
    Rule(
        code="undetected-quorum",
        severity="warning",
        consequence="Celery asks for a global prefetch, which quorum queues do not have.",
        cure="Remove the setting.",
        facts=checks.undetected_quorum,
    ),
    Rule(
        code="queue-ttl",
        severity="warning",
        consequence="A task that waits longer for a worker is dropped.",
        cure="Remove it, or attach a dead-letter exchange: `celery dlx policy`.",
        facts=checks.queue_ttl,
    ),
    Rule(
        code="unconfirmed-publish",
        severity="warning",
        consequence="delay() returns before the broker has the task; if the connection breaks then, the task is lost.",
        cure='Set broker_transport_options = {"confirm_publish": True}.',
        facts=checks.unconfirmed_publish,
    ),
    Rule(
        code="result-expiry",
        severity="warning",
        consequence="The state of a waiting task expires: it reads PENDING, and its chord never ends.",
        cure="Raise result_expires above the longest wait.",
        facts=checks.result_expiry,
    ),
    Rule(
        code="no-dead-letter-exchange",
        severity="info",
        consequence="Messages that the broker itself drops are lost; those that DLXRetryTask gives up are kept.",
        cure="Run `celery dlx policy`, or make new queues with dlx_queue().",
        facts=checks.no_dlx,
    ),
    Rule(
        code="shared-prefix",
        severity="info",
        consequence="`dead list` and `status` show their letters, too; replay --all and purge leave them alone.",
        cure="Give each app another dlx_prefix. If the queues are yours (`worker -Q`), name them in task_queues.",
        facts=checks.shared_prefix,
    ),
    Rule(
        code="unknown-type",
        severity="info",
        consequence="The doctor takes it for a classic queue, and does not find the problems of quorum queues.",
        cure="Name its x-queue-type in task_queues, or run the doctor as a user that can configure it.",
        facts=checks.unknown_type,
    ),
    Rule(
        code="no-management",
        severity="info",
        consequence="Bindings, policies, rates and unacknowledged messages are not checked.",
        cure="Enable rabbitmq_management, or name its URL with --management-url.",
        facts=checks.no_management,
    ),
)
