"""Replay a few dead letters first, and see what happens to them.

A canary has *died again* if it is in a dead-letter queue again, replayed once more. It has *succeeded* or *failed* if
the result backend says so. Otherwise its outcome is *not known*: it waits for its next retry, runs, or succeeded
without storing a result.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Literal
from uuid import uuid4

from celery.backends.base import DisabledBackend
from celery.backends.rpc import RPCBackend

from celery_dlx_retry.broker.counts import depth
from celery_dlx_retry.broker.dead_letters import browse
from celery_dlx_retry.operations.connect import broker_errors
from celery_dlx_retry.wire.task_body import MOST_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kombu.connection import Connection

    from celery_dlx_retry.deadletters.letter import DeadMessage
    from celery_dlx_retry.operations.app_queues import Destinations
    from celery_dlx_retry.operations.monitor import Monitor

    #: Task id -> its state and the time of that state; None if the backend has no result.
    States = Callable[[str], tuple[str, str] | None]

SUCCEEDED, DIED, FAILED, UNKNOWN = "succeeded", "died again", "failed", "not known"

_POLL_SECONDS = 0.2
# Reading a long queue costs the broker time: spend no more than a tenth of the wait on it.
_REST_PER_READ = 9


# Celery's ``get_task_meta()`` decodes the whole result: it can unpickle it, and it calls the class of a stored
# exception. So this module only reads backends that store the state in a column, or the result as JSON.


def states_of(app: Any) -> tuple[States | None, str]:
    """Return a function that reads states from the app's result backend, or None and the reason."""
    try:
        backend = app.backend
        read = _reader(backend)
        if read is None:
            return None, _why_not(backend)
        read(backend, str(uuid4()))
    except Exception as exc:  # noqa: BLE001 - each backend has other errors
        return None, f"the result backend does not answer ({type(exc).__name__})"

    def states(task_id: str) -> tuple[str, str] | None:
        try:
            return read(backend, task_id)
        except Exception:  # noqa: BLE001 - each backend has other errors; a stored value may not be JSON
            return None

    return states, ""


def _why_not(backend: Any) -> str:
    if isinstance(backend, DisabledBackend):
        return "this app has no result backend"
    if isinstance(backend, RPCBackend):
        return "rpc:// gives a result only to the sender of the task"
    if any(_name(cls) in _JSON_READERS for cls in type(backend).__mro__):
        how = f"compressed ({backend.compression})" if _is_compressed(backend) else f"as {backend.serializer}"
        return f"this app stores its results {how}, and only plain JSON is read here"
    return f"{type(backend).__name__} cannot be asked for the state of a task without decoding its result"


def _reader(backend: Any) -> Callable[[Any, str], tuple[str, str] | None] | None:
    for name in map(_name, type(backend).__mro__):
        if name in _COLUMN_READERS:
            return _COLUMN_READERS[name]
        if name in _JSON_READERS:
            return _JSON_READERS[name] if backend.serializer == "json" and not _is_compressed(backend) else None
    return None


def _is_compressed(backend: Any) -> bool:
    return bool(getattr(backend, "compression", None))  # older versions of Celery have no such attribute


def _name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def _from_json(backend: Any, task_id: str) -> tuple[str, str] | None:
    stored = backend.get(backend.get_key_for_task(task_id))
    if not stored or len(stored) > MOST_BYTES:
        return None
    meta = json.loads(stored)
    return str(meta["status"]), str(meta.get("date_done"))


def _from_sqlalchemy(backend: Any, task_id: str) -> tuple[str, str] | None:
    # Only these two columns: SQLAlchemy or Celery would unpickle some of the others.
    table = backend.task_cls
    session = backend.ResultSession()
    try:
        found = session.query(table.status, table.date_done).filter(table.task_id == task_id).first()
    finally:
        session.close()
    return found and (str(found[0]), str(found[1]))


def _from_django(backend: Any, task_id: str) -> tuple[str, str] | None:
    rows = backend.TaskModel._default_manager.filter(task_id=task_id)  # noqa: SLF001 - Django's public name for it
    found = rows.values_list("status", "date_done").first()
    return found and (str(found[0]), str(found[1]))


# By name: the library of a backend may not be installed. Memcached is not among them: its clients unpickle.
_COLUMN_READERS = {
    "celery.backends.database.DatabaseBackend": _from_sqlalchemy,
    "django_celery_results.backends.database.DatabaseBackend": _from_django,
}
_JSON_READERS = {
    "celery.backends.redis.RedisBackend": _from_json,
    "celery.backends.filesystem.FilesystemBackend": _from_json,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryTest:
    """How many letters to replay first, and when the rest follows."""

    count: int
    #: The rest follows if at most this share of the canaries fails.
    most_failed: Fraction = Fraction(0)
    wait_seconds: float = 60.0
    #: Count a canary as succeeded if it has not died within ``wait_seconds``.
    silence_is_success: bool = False

    def passes(self, bad: int, total: int) -> bool:
        """Return True if the rest may follow when this many canaries are bad."""
        return bad <= self.most_failed * total


@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryStop:
    """Why the letters behind the canaries were not replayed."""

    reason: Literal["no canary", "no results", "none replayed", "bad outcomes", "unknown outcomes", "cancelled"]
    canaries: int = 0
    #: How many canaries store no result.
    mute: int = 0
    #: Outcome -> number of canaries.
    outcomes: Mapping[str, int] = field(default_factory=dict)


def stores_no_result(app: Any, letter: DeadMessage) -> bool:
    """Return True if the message or its task says ``ignore_result``."""
    ignored = letter.message.headers.get("ignore_result")
    if ignored is not None:
        return bool(ignored)
    task = app.tasks.get(letter.record.task)
    return bool(app.conf.task_ignore_result if task is None else task.ignore_result)


class Canaries:
    """The letters that are replayed first, with what was known of each before."""

    def __init__(self, app: Any, destination: Destinations, states: States | None) -> None:
        #: None if the result backend cannot be asked.
        self._app, self._destination, self._states = app, destination, states
        self._replays: dict[str, int] = {}
        self._stored: dict[str, Any] = {}
        self._queues: set[str] = set()
        #: Task id -> outcome.
        self.outcomes: dict[str, str] = {}
        #: Task ids of canaries that store no result.
        self.mute: set[str] = set()

    def add(self, letter: DeadMessage) -> None:
        """Remember the state of a letter before its replay; raise NoDestination if it has no work queue."""
        task_id = letter.record.task_id
        self._queues.add(self._destination.dead_letters(letter))
        self._replays[task_id] = letter.replays
        self._stored[task_id] = self._result(task_id)
        self.outcomes[task_id] = UNKNOWN
        if stores_no_result(self._app, letter):
            self.mute.add(task_id)

    def wait(self, connection: Connection, *, seconds: float, monitor: Monitor) -> Counter[str]:
        """Wait until all outcomes are known, the time is up or the caller cancels; return outcome -> count."""
        deadline = time.monotonic() + seconds
        next_read = 0.0
        depths: dict[str, int | None] = {}
        while True:
            self._ask_results()
            now = time.monotonic()
            is_last = now >= deadline or monitor.is_cancelled
            with broker_errors(self._app):
                found = {queue: depth(connection, queue) for queue in self._queues}
                if is_last or (now >= next_read and found != depths):
                    self._read_dead_letters(connection)
                    depths, next_read = found, time.monotonic() + _REST_PER_READ * (time.monotonic() - now)
            if is_last or UNKNOWN not in self.outcomes.values():
                return Counter(self.outcomes.values())
            monitor.wait(min(_POLL_SECONDS, max(0.0, deadline - time.monotonic())))

    def _read_dead_letters(self, connection: Connection) -> None:
        for queue in self._queues:
            if depth(connection, queue) is None:
                continue
            for letter in browse(connection, queue):
                task_id = letter.record.task_id
                if task_id in self.outcomes and letter.replays > self._replays[task_id]:
                    self.outcomes[task_id] = DIED

    def _ask_results(self) -> None:
        for task_id, outcome in self.outcomes.items():
            result = self._result(task_id)
            if outcome != UNKNOWN or result is None or result == self._stored[task_id]:
                continue
            if result[0] == "SUCCESS":
                self.outcomes[task_id] = SUCCEEDED
            elif result[0] in {"FAILURE", "REVOKED"}:
                self.outcomes[task_id] = FAILED

    def _result(self, task_id: str) -> tuple[str, str] | None:
        return self._states(task_id) if self._states else None
