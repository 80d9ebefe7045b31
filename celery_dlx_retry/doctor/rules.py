"""What the doctor knows: facts about an app and its broker in, findings out, each with its consequence and its cure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from celery_dlx_retry.doctor import checks as symptoms

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from celery_dlx_retry.doctor.facts import Facts

Severity = Literal["error", "warning", "info"]
SEVERITIES = ("error", "warning", "info")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One thing that bites; the fact is found, the rest is known."""

    code: str
    severity: Severity
    consequence: str
    cure: str
    facts: Callable[[Facts], Iterator[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A rule that applies."""

    code: str
    severity: Severity
    fact: str
    consequence: str
    cure: str


def findings(facts: Facts) -> list[Finding]:
    """Whatever applies, the worst first."""
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
        consequence="Celery's own retries are used: they wait in the worker, and what fails is gone.",
        cure="Use RabbitMQ (amqp://); dlx_require_rabbitmq = True makes anything else an error.",
        facts=symptoms.not_rabbitmq,
    ),
    Rule(
        code="unreachable",
        severity="error",
        consequence="A worker waits for it; of the broker nothing is known here, and the rest is about the app alone.",
        cure="Start it, or correct broker_url; then look again.",
        facts=symptoms.unreachable,
    ),
    Rule(
        code="old-broker",
        severity="error",
        consequence="Quorum lanes with at-least-once dead-lettering do not exist there; we never tried it.",
        cure="Upgrade RabbitMQ.",
        facts=symptoms.old_broker,
    ),
    Rule(
        code="other-broker",
        severity="warning",
        consequence="Lanes stand on details of RabbitMQ: expiry, alternate exchanges, confirms.",
        cure="Run the test suite against it with DLX_TEST_BROKER_URL, or use RabbitMQ.",
        facts=symptoms.other_broker,
    ),
    Rule(
        code="delay-too-long",
        severity="error",
        consequence="No worker starts.",
        cure="Shorten the delay, or raise dlx_max_delay.",
        facts=symptoms.too_long,
    ),
    Rule(
        code="early-acks",
        severity="error",
        consequence="It is lost if its worker dies while it runs, and so is a retry that cannot be published.",
        cure="Remove acks_late=False; let the task bear a second run.",
        facts=symptoms.early_acks,
    ),
    Rule(
        code="without-app-class",
        severity="warning",
        consequence="It does without what that class gives to every task, as Flask's application context.",
        cure="Derive that class from DLXRetryTask, and leave base= out.",
        facts=symptoms.without_app_class,
    ),
    Rule(
        code="consumes-dead-letters",
        severity="error",
        consequence="Workers consume it: dead letters run again at once, and waits end early.",
        cure="Take it out of task_queues; we declare it ourselves.",
        facts=symptoms.consumes_dead_letters,
    ),
    Rule(
        code="consumer-timeout",
        severity="error",
        consequence="The broker takes the task from the worker and gives it to the next one, for ever.",
        cure="For waits use DLXRetryTask; for long runs raise consumer_timeout in rabbitmq.conf.",
        facts=symptoms.consumer_timeout,
    ),
    Rule(
        code="quorum-without-dlx",
        severity="error",
        consequence="At the limit the broker drops the message, silently.",
        cure="Run `celery dlx policy`, or make the queue with dlx_queue().",
        facts=symptoms.no_dlx_on_quorum,
    ),
    Rule(
        code="delivery-limit-minus-one",
        severity="error",
        consequence="Before RabbitMQ 4 a message is dropped when it returns for the first time.",
        cure="Set a large positive limit instead.",
        facts=symptoms.limit_minus_one,
    ),
    Rule(
        code="length-limit",
        severity="error",
        consequence="To make room for a retry that comes back, RabbitMQ removes the oldest task of the full queue.",
        cure="Remove the limit.",
        facts=symptoms.length_limit,
    ),
    Rule(
        code="not-durable",
        severity="error",
        consequence="Its messages are gone when the broker restarts, and waiting ones find no queue then.",
        cure="Declare it durable.",
        facts=symptoms.not_durable,
    ),
    Rule(
        code="transient-messages",
        severity="error",
        consequence="What is sent is not written to disk, and gone when the broker restarts.",
        cure='Set task_default_delivery_mode = "persistent", and Exchange(delivery_mode=2).',
        facts=symptoms.transient_messages,
    ),
    Rule(
        code="permission",
        severity="error",
        consequence="Workers stop at their start, retries go back to their queue again and again, or sends are lost.",
        cure="Grant what `celery dlx permissions` prints, or have the plan declared and set dlx_declare = False.",
        facts=symptoms.forbidden,
    ),
    Rule(
        code="missing",
        severity="error",
        consequence="A retry that finds no lane goes back to its work queue and is tried again.",
        cure="Have the output of `celery dlx plan --format definitions` imported.",
        facts=symptoms.missing,
    ),
    Rule(
        code="drift",
        severity="error",
        consequence="Waits are wrong, or messages do not find their way.",
        cure="See `celery dlx check`.",
        facts=symptoms.drift,
    ),
    Rule(
        code="classic-lanes",
        severity="warning",
        consequence="What comes back while the broker goes down can be lost; to quorum work queues, all of it.",
        cure='Remove the setting: its default is "quorum".',
        facts=symptoms.classic_lanes,
    ),
    Rule(
        code="nothing-of-ours",
        severity="warning",
        consequence="Retries wait in the workers, and what fails is gone.",
        cure='Add base=DLXRetryTask to a task, or Celery(task_cls="celery_dlx_retry:DLXRetryTask").',
        facts=symptoms.nothing_of_ours,
    ),
    Rule(
        code="waits-in-worker",
        severity="warning",
        consequence="Its retries are held in a worker's memory, and it is gone after the last one.",
        cure="Add base=DLXRetryTask.",
        facts=symptoms.waits_in_worker,
    ),
    Rule(
        code="prefetch-used-up",
        severity="warning",
        consequence="Waiting tasks use up the prefetch: with as many as that, an idle worker runs nothing.",
        cure="Add base=DLXRetryTask to the tasks that retry; avoid countdown and eta.",
        facts=symptoms.prefetch_used_up,
    ),
    Rule(
        code="worker-lost-loop",
        severity="warning",
        consequence="A task that kills its process does so again and again, without limit.",
        cure="Add base=DLXRetryTask, which counts; or remove reject_on_worker_lost.",
        facts=symptoms.worker_lost_loop,
    ),
    Rule(
        code="low-delivery-limit",
        severity="warning",
        consequence="A worker that dies returns all that it had prefetched: tasks that never ran use up their lives.",
        cure="Raise the limit, or set worker_prefetch_multiplier = 1.",
        facts=symptoms.low_limit,
    ),
    Rule(
        code="unlimited-prefetch",
        severity="warning",
        consequence="One worker takes the whole queue into its memory; when it dies all of it is redelivered.",
        cure="Set it to 1, or to the default of 4.",
        facts=symptoms.unlimited_prefetch,
    ),
    Rule(
        code="undetected-quorum",
        severity="warning",
        consequence="Celery asks for a global prefetch, which quorum queues do not have.",
        cure="Remove the setting.",
        facts=symptoms.undetected_quorum,
    ),
    Rule(
        code="queue-ttl",
        severity="warning",
        consequence="A task that waits longer for a worker is dropped.",
        cure="Remove it, or attach a dead-letter exchange: `celery dlx policy`.",
        facts=symptoms.queue_ttl,
    ),
    Rule(
        code="unconfirmed-publish",
        severity="warning",
        consequence="delay() returns before the broker has the task; a connection that breaks then loses it.",
        cure='Set broker_transport_options = {"confirm_publish": True}.',
        facts=symptoms.unconfirmed_publish,
    ),
    Rule(
        code="result-expiry",
        severity="warning",
        consequence="The state of a waiting task is forgotten: it reads PENDING, and its chord never ends.",
        cure="Raise result_expires above the longest wait.",
        facts=symptoms.result_expiry,
    ),
    Rule(
        code="no-dead-letter-exchange",
        severity="info",
        consequence="What the broker itself throws out of it is not kept; what DLXRetryTask gives up is.",
        cure="Run `celery dlx policy`, or make new queues with dlx_queue().",
        facts=symptoms.no_dlx,
    ),
    Rule(
        code="shared-prefix",
        severity="info",
        consequence="`dead list` and `status` show their letters, too; replay --all and purge leave them alone.",
        cure="Another app's: give each a dlx_prefix of its own. Yours, by `worker -Q`: name them in task_queues.",
        facts=symptoms.shared_prefix,
    ),
    Rule(
        code="unknown-type",
        severity="info",
        consequence="It is taken for a classic one: what bites quorum queues is not found.",
        cure="Name its x-queue-type in task_queues, or look with a user who may configure it.",
        facts=symptoms.unknown_type,
    ),
    Rule(
        code="no-management",
        severity="info",
        consequence="Bindings, policies, rates and unacknowledged messages are not seen.",
        cure="Enable rabbitmq_management, or say where it is: --management-url.",
        facts=symptoms.no_management,
    ),
)
