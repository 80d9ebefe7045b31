"""Errors that only operations raise; all others are in errors.py.

An InvalidRequest is exit code 2 of a command, the others are exit code 1.
"""

from __future__ import annotations

from celery_dlx_retry.errors import DLXError


class InvalidRequest(DLXError):
    """An operation was asked for something that it cannot do; nothing was changed."""


class UnknownQueue(InvalidRequest):
    """The app has no queue of this name."""

    sentence = "There is no queue {queue!r} in task_queues."


class NeedsRabbitMQ(InvalidRequest):
    """The app uses another broker: it has no lanes and no dead letters."""

    sentence = (
        "The broker is not RabbitMQ, its transport is {transport!r}: there are no lanes and no dead letters to see. "
        "Give the URL of a RabbitMQ: broker_url, or celery -b amqp://…"
    )


class CannotPrune(DLXError):
    """Lanes cannot be deleted safely."""

    sentence = "Nothing was deleted: {problem}"


class BrokerUnavailable(DLXError):
    """An operation lost its connection to the broker, or did not get one; ``broker`` has no credentials."""

    sentence = "The broker at {broker}, cannot be used: {problem}."


class Stopped(DLXError):
    """The caller cancelled an operation that has no result yet."""

    sentence = "{operation} was stopped before it had a result."
