"""Check names of queues and exchanges, and routing keys."""

from __future__ import annotations

#: The most bytes of an AMQP short string: a name, a routing key, a text property.
NAME_BYTES = 255


def name_problem(name: object, *, most: int = NAME_BYTES) -> str:
    """Return why this cannot be a name on the broker; empty if it can."""
    if not isinstance(name, str):
        return "it must be a str"
    try:
        length = len(name.encode())
    except UnicodeEncodeError:
        return "it must be valid Unicode, and has a lone surrogate"
    return "" if 1 <= length <= most else f"it must have 1 to {most} bytes, and has {length}"


def new_name_problem(name: object, *, most: int = NAME_BYTES) -> str:
    """Return why we do not give this name to a queue; empty if we do.

    RabbitMQ accepts more names. But a name with a newline in it would forge a line in a log.
    """
    if problem := name_problem(name, most=most):
        return problem
    text = str(name)
    if not text.isprintable():
        return "it must have printable characters only"
    return "RabbitMQ keeps names that begin with 'amq.' for itself" if text.startswith("amq.") else ""
