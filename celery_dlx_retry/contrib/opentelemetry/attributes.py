"""The attributes of our spans and metrics, by OpenTelemetry's conventions for messaging where they have a name."""

from __future__ import annotations

from typing import TypeAlias

Attributes: TypeAlias = "dict[str, str | int | float | bool]"

# https://opentelemetry.io/docs/specs/semconv/messaging/
SYSTEM = "messaging.system"
OPERATION_NAME, OPERATION_TYPE = "messaging.operation.name", "messaging.operation.type"
DESTINATION = "messaging.destination.name"
MESSAGE_ID = "messaging.message.id"
ERROR_TYPE, EXCEPTION_TYPE = "error.type", "exception.type"
OPERATION_DURATION = "messaging.client.operation.duration"
# As opentelemetry-instrumentation-celery names it.
TASK = "celery.task_name"
# There is no convention for these.
ATTEMPT, REPLAYS = "celery.dlx.attempt", "celery.dlx.replays"
DELAY, WAY = "celery.dlx.delay_ms", "celery.dlx.way"
REASON, LINK = "celery.dlx.reason", "celery.dlx.link"

#: The type of each operation that we name.
TYPES = {"process": "process", "retry": "send", "dead-letter": "send", "replay": "send"}

_LONGEST = 255


def text(value: str) -> str:
    """Return a text that every exporter can encode: names and ids of unknown messages are the sender's."""
    if len(value) <= _LONGEST and value.isascii():
        return value
    return value[:_LONGEST].encode("utf-8", "replace").decode()


def operation(name: str, queue: str) -> Attributes:
    """Return the attributes of an operation on a work queue."""
    return {SYSTEM: "rabbitmq", OPERATION_NAME: name, OPERATION_TYPE: TYPES[name], DESTINATION: queue}


def class_of(error: str) -> str:
    """Return the class of an error that is given as ``Type: text``."""
    return text(error.partition(":")[0])
