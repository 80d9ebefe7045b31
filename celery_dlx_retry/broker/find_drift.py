"""Find how the objects on the broker differ from our topology."""

from __future__ import annotations

from typing import TYPE_CHECKING

from celery_dlx_retry.broker.declare import check, declare
from celery_dlx_retry.errors import Forbidden, Mismatch, Missing
from celery_dlx_retry.topology.drift import Drift, overridden, unbound
from celery_dlx_retry.topology.specs import QueueSpec, Topology

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kombu.connection import Connection

    from celery_dlx_retry.broker.management import Management
    from celery_dlx_retry.topology.drift import Kind

_DECLARE = "Run `celery dlx declare`, or start a worker."


def find(connection: Connection, topology: Topology, management: Management | None) -> Iterator[Drift]:
    """Yield every difference; change nothing.

    A declare with our arguments shows whether an object has them, but makes an object that does not exist. So it
    follows a passive declare that has found the object (test_looking_for_drift_makes_nothing).
    """
    drifts: list[Drift] = []
    for queue in topology.queues:
        drifts += _one(connection, "queue", queue.name, Topology(queues=(queue,)))
    for exchange in topology.exchanges:
        drifts += _one(connection, "exchange", exchange.name, Topology(exchanges=(exchange,)))
    drifts += _work_queues(connection, topology)
    yield from drifts
    if management is not None:
        gone = {drift.name for drift in drifts if drift.kind == "missing"}
        for drift in unbound(topology, management.bindings()):
            if not gone.intersection(drift.name.split(" -> ")):  # a missing queue is not bound, either
                yield drift
        yield from overridden(topology, management.policies())


def _one(connection: Connection, kind: str, name: str, alone: Topology) -> Iterator[Drift]:
    try:
        check(connection, alone)
        declare(connection, alone)
    except Missing as exc:
        yield _drift("missing", kind, name, str(exc).partition(". ")[0] + ".", _DECLARE)
    except Mismatch as exc:
        fact = f"The {kind} {name!r} has {exc.argument}={exc.found}; it should be {exc.wanted}."
        yield _drift("mismatch", kind, name, fact, "Delete it once it is empty, or choose another dlx_prefix.")
    except Forbidden as exc:
        fact = f"The arguments of the {kind} {name!r} are not checked: the broker user may not {exc.permission} it."
        yield _drift("unchecked", kind, name, fact, "Check as a user that can configure it.")


def _work_queues(connection: Connection, topology: Topology) -> Iterator[Drift]:
    ours = {queue.name for queue in topology.queues}
    for name in sorted({binding.queue for binding in topology.bindings} - ours):
        try:
            check(connection, Topology(queues=(QueueSpec(name=name),)))
        except Missing:  # noqa: PERF203 - the answer that we look for
            yield _drift("missing", "queue", name, f"The work queue {name!r} does not exist.", _DECLARE)
        except Forbidden:
            fact = f"The work queue {name!r} is not checked: the broker user has no permission on it."
            yield _drift("unchecked", "queue", name, fact, "Check as a user with a permission on it.")


def missing_queue(name: str) -> Drift:
    """Return the difference for a queue that the HTTP API does not list."""
    return _drift("missing", "queue", name, f"The queue {name!r} does not exist.", _DECLARE)


def _drift(kind: Kind, what: str, name: str, fact: str, cure: str) -> Drift:
    return Drift(kind=kind, object="queue" if what == "queue" else "exchange", name=name, fact=fact, cure=cure)
