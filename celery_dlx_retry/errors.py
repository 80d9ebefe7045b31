"""Every exception of the package, but those that only operations raise: operations/operation_errors.py.

Each class has its facts as attributes and writes its own sentence: what is wrong, what is expected, what to do. The
facts are the names in the sentence.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, ClassVar

from celery_dlx_retry.sentences import LARGEST, written


class DLXError(Exception):
    """Takes its facts as keyword arguments; ``sentence`` turns them into the message."""

    sentence: ClassVar[str] = "{detail}"

    def __init__(self, **facts: Any) -> None:
        self.facts = facts
        super().__init__(written(self.sentence, facts))

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["facts"][name]
        except KeyError:
            raise AttributeError(name) from None

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.facts)


def _rebuild(cls: type[DLXError], facts: dict[str, Any]) -> DLXError:
    return cls(**facts)


class ConfigurationError(DLXError, ValueError):
    """The program or its settings are wrong; fails at definition or start."""


class InvalidDelay(ConfigurationError):
    """A delay is not a finite number of seconds from 0 on."""

    sentence = "{what} is {value!r}; it must be a timedelta or a number of seconds, finite and not negative."


class InvalidPolicy(ConfigurationError):
    """A value of a policy, budget or breaker is wrong."""

    sentence = "{what} is {value!r}; it must be {wanted}."


class InvalidTask(InvalidPolicy):
    """A policy, budget or breaker of a task is wrong."""

    sentence = "The task {task!r}: {problem}"


class ForeignStrategy(ConfigurationError):
    """A DLXRetryTask has a Strategy that is not Celery's."""

    sentence = (
        "The task {task!r} has the Strategy {strategy}, which runs it without our retries and dead letters. "
        "Remove DLXRetryTask or the Strategy from the task; to wrap Celery's strategy, override start_strategy()."
    )


class InvalidSetting(ConfigurationError):
    """A dlx_* setting or worker flag has a bad value."""

    sentence = "{setting} is {value!r}; it must be {wanted}."


class UnknownSetting(ConfigurationError):
    """A dlx_* setting does not exist."""

    sentence = "There is no setting {setting!r}. {suggestion}"


class InvalidQueue(ConfigurationError):
    """RabbitMQ cannot do what dlx_queue() asks for."""

    sentence = "dlx_queue({queue!r}): {problem}."


class InvalidRoute(ConfigurationError):
    """``retry(exchange=…, routing_key=…)`` names no queue of the app."""

    sentence = (
        "A retry asks for exchange {exchange!r} and routing key {routing_key!r}, which lead to no queue in "
        "task_queues. Use retry(queue=...) instead, or add the queue."
    )


class DelayTooLong(ConfigurationError):
    """A retry asks to wait longer than dlx_max_delay; ``delay`` and ``limit`` are texts."""

    sentence = (
        "{who} asks to wait {delay}; dlx_max_delay allows {limit}. "
        "Ask for less, or raise dlx_max_delay and restart the workers."
    )


class HeadersTooLong(ConfigurationError):
    """The headers of a message leave no room for those of a retry."""

    sentence = (
        "The headers of a retry have {size} bytes; one frame has room for {room}, and a few bytes must stay free. "
        "Put less into headers and stamps; arguments may have any size."
    )


class Unpublishable(ConfigurationError):
    """AMQP or the broker refuses the content of a message. No fact quotes a value, which may be a secret."""

    sentence = "The message cannot be published: {what} {problem}."


class BadBrokerURL(ConfigurationError):
    """The broker's URL cannot be read. No fact quotes a part of it, because any part may be the password."""

    sentence = (
        "{which} cannot be read. Write amqp://USER:PASSWORD@HOST:PORT/VHOST. In a password and in a virtual host write "
        "%2F for /, %3F for ?, %23 for #, %40 for @, %3B for ;, %5B for [ and %5D for ]."
    )


class NotRabbitMQ(ConfigurationError):
    """The setting dlx_require_rabbitmq is on and the broker is something else."""

    sentence = (
        "The broker transport is {transport!r}, but dlx_require_rabbitmq is set and DLXRetryTask needs RabbitMQ "
        "(amqp:// or pyamqp://). Change broker_url, or unset dlx_require_rabbitmq to use Celery's own retries."
    )


class TopologyError(DLXError):
    """The broker disagrees with what we need; stops the worker."""


class Mismatch(TopologyError):
    """An object exists with other arguments."""

    sentence = (
        "The {kind} {name!r} exists with {argument}={found}; we need {wanted}. "
        "Delete it once it is empty, or set another dlx_prefix (or dlx_dead_letter_queue), and start the worker again."
    )


class Missing(TopologyError):
    """An object does not exist, and this process does not declare it."""

    sentence = "The {kind} {name!r} does not exist. {cure}"


class Forbidden(TopologyError):
    """The user lacks a permission."""

    sentence = (
        "The broker user may not {permission} the {kind} {name!r}. "
        "Grant it that permission: `celery dlx permissions` prints what each role needs. "
        "If it may not declare, let another user declare, and set dlx_declare = False."
    )


class NoAnswer(TopologyError):
    """A quorum queue exists and does not answer."""

    sentence = (
        "The quorum queue {name!r} exists and did not answer within {seconds} s; it must answer before messages are "
        "sent to it. It is recovering, or it has no majority: `rabbitmq-queues quorum_status` shows its members. Start "
        "the worker again when the queue has a leader. If its only member is a follower with term 0, the broker "
        "crashed in the second in which the queue was made, and it is empty: delete it with `rabbitmqctl delete_queue`."
    )


class LanesBusy(TopologyError):
    """Another process makes or prunes lanes."""

    sentence = (
        "Another process makes or prunes lanes of {prefix!r} and holds their lock. "
        "Try again in a few seconds; if that process ends, the broker frees the lock."
    )


class Unsuitable(TopologyError):
    """The broker lacks something that we need."""

    sentence = "The broker is {broker}: {problem}. {cure}"


class PublishError(DLXError):
    """The broker did not confirm a message; the delivery goes back to its queue."""


class RetryNotPublished(PublishError):
    """Another base class of a task did not publish its retry."""

    sentence = (
        "A retry of the task {task!r} was not published: apply_async() of another of its base classes, or send_task() "
        "of its app, did not publish it, or published other messages, too. Name DLXRetryTask first among the bases, "
        "call super().apply_async() there once, and publish other messages with another producer."
    )


class Nacked(PublishError):
    """The broker refused a message."""

    sentence = "The broker refused the message for exchange {exchange!r}, routing key {routing_key!r} (a full queue?)."


class Unroutable(PublishError):
    """No queue took a message."""

    sentence = "No queue takes messages for exchange {exchange!r}, routing key {routing_key!r}."


class Unconfirmed(PublishError):
    """No confirm in time: the broker may have it or not."""

    sentence = (
        "The broker did not confirm within {timeout_ms} ms (a memory or disk alarm?) the message for exchange "
        "{exchange!r}, routing key {routing_key!r}."
    )


class PublishForbidden(PublishError):
    """The user lacks a permission."""

    sentence = (
        "The broker user lacks a permission: {problem}. Grant it what `celery dlx permissions` prints for its role."
    )


class Unreachable(PublishError):
    """The connection failed."""

    sentence = "The broker cannot be reached: {problem}."


class LetterError(DLXError):
    """A command cannot do this with a dead letter; it stays where it is."""


class Unreadable(LetterError):
    """The body of a letter cannot be decoded safely, or is not that of a task."""

    sentence = "The dead letter cannot be changed: {problem}."


class ArgumentsDoNotFit(LetterError):
    """The task of a letter does not take these arguments."""

    sentence = "The task {task!r} does not take these arguments: {problem}. Nothing was changed."


class NoDestination(LetterError):
    """The work queue of a letter is not known, or not known to this app."""

    sentence = "The dead letter stays: {problem}. If you know its work queue, replay it with --to-queue."


class InvalidExportLine(LetterError):
    """A line of a file is not an exported dead letter."""

    sentence = "Line {line} is not an exported dead letter: {problem}. Nothing was imported."


class CrashLoop(DLXError):
    """A message has killed too many workers; it becomes a dead letter."""

    sentence = "This task was started at least {crashes} times by workers that died before it ended."


class DeadLetter(DLXError):
    """Raise it in a task to make a dead letter now, without asking the policy: ``DeadLetter("why")``."""

    def __init__(self, detail: str = "") -> None:
        super().__init__(detail=detail)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.detail,)


class RetryIn(DLXError):
    """Raise it in a task to choose the delay of the next retry: ``RetryIn(37)``, or ``RetryIn(timedelta(hours=1))``."""

    def __init__(self, seconds: float | timedelta, detail: str = "") -> None:
        if not _is_delay(seconds):
            raise InvalidDelay(what="RetryIn.seconds", value=seconds)
        super().__init__(seconds=seconds, detail=detail or f"retry in {seconds} s")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.seconds, self.detail)


def _is_delay(value: object) -> bool:
    # The same check as in values.durations.to_ms(), which imports this module.
    if isinstance(value, timedelta):
        return value >= timedelta(0)
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < LARGEST


class QueueBusy(DLXError):
    """Reading a quorum queue now would change the order of its messages."""

    sentence = "The quorum queue {queue!r} cannot be read without changing the order of its messages: {problem}."


class NoManagement(DLXError):
    """The HTTP management API does not answer; some commands show less."""

    sentence = (
        "The management API at {url} cannot be used: {problem}. "
        "Enable the plugin rabbitmq_management, give the user the tag 'monitoring', or name another "
        "URL with --management-url."
    )


class BadManagementURL(DLXError):
    """--management-url cannot be read. It has no facts: any part of the URL may be the password."""

    sentence = (
        "The URL of the management API cannot be read. Write http://USER:PASSWORD@HOST:PORT or https://… instead. "
        "In a password write %2F for /, %3F for ?, %23 for #, %40 for @, %5B for [ and %5D for ]."
    )


class ClearTextManagementURL(DLXError):
    """--management-url would send the broker's password in clear text; ``url`` is without credentials."""

    sentence = (
        "The broker's password is only sent encrypted, because the broker's URL is amqps:// or broker_use_ssl is set; "
        "{url} is not encrypted. Name an https:// URL, or one with its own credentials: http://USER:PASSWORD@HOST:PORT."
    )


class MetricsNotServed(ConfigurationError):
    """--dlx-metrics-port cannot be used."""

    sentence = "The metrics cannot be served on --dlx-metrics-port {port}: {problem}."


class NoBroker(DLXError):
    """No RabbitMQ is available for tests and the demo; ``tried`` says why each attempt failed."""

    sentence = (
        "No RabbitMQ is available ({tried}). Name one with DLX_TEST_BROKER_URL=amqp://guest:guest@127.0.0.1//, "
        "start Docker and `pip install 'testcontainers[rabbitmq]'`, or install rabbitmq-server."
    )
