"""What is in the queues, as gauges for Prometheus: one collector for `celery dlx exporter` or for your own registry.

from prometheus_client import REGISTRY

REGISTRY.register(DLXCollector(app))
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from prometheus_client.core import GaugeMetricFamily

from celery_dlx_retry.app.context import context_of
from celery_dlx_retry.errors import DLXError
from celery_dlx_retry.operations.observe import Observation, Observer
from celery_dlx_retry.values.log_lines import escaped, log_fields
from celery_dlx_retry.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from celery import Celery
    from prometheus_client.core import Metric

    class _Add(Protocol):
        def __call__(self, name: str, value: float, *labels: str) -> None: ...


logger = escaped(logging.getLogger(__name__))

#: Prometheus gives up a scrape after ten seconds.
_ANSWER_SECONDS = 8.0


class DLXCollector:
    """Reads the broker when Prometheus scrapes, at most once in ``interval`` seconds.

    A broker that is down gives ``celery_dlx_up 0`` and no other gauge of a queue. The next scrapes try again.

    ``queues`` are work queues, by default all of the app. ``check_interval``: how often, in seconds, to look for
    missing queues and exchanges and to run the doctor's rules. ``peek``: then also read the first dead letter of each
    queue, to know its age; the page Monitoring says what this does to the queue.
    """

    def __init__(  # noqa: PLR0913 - all keywords
        self,
        app: Celery,
        *,
        queues: Iterable[str] = (),
        management_url: str | None = None,
        interval: float = 15.0,
        check_interval: float = 60.0,
        peek: bool = False,
    ) -> None:
        self._app = app
        self._queues, self._management_url = tuple(queues), management_url
        self._interval, self._check_interval, self._peek = interval, check_interval, peek
        self._lock = threading.Lock()
        self._pid = 0
        self._observer = self._new_observer()
        self._reading: _Reading | None = None
        self._is_up: bool | None = None

    def describe(self) -> Iterator[Metric]:
        """Yield the metrics without values, so that a registry can be filled while the broker is down."""
        yield from metrics()

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics."""
        with self._lock:
            reading = self._current()
        reading.done.wait(_ANSWER_SECONDS)
        with self._lock:
            self._log(reading)
        yield from self._metrics(reading.found)

    def close(self) -> None:
        """Close the connection to the broker."""
        with self._lock:
            reading, self._reading = self._reading, None
        if reading is None or reading.done.wait(_ANSWER_SECONDS):
            self._observer.close()

    def _new_observer(self) -> Observer:
        return Observer(
            self._app,
            queues=self._queues,
            management_url=self._management_url,
            check_seconds=self._check_interval,
            peeks=self._peek,
        )

    def _current(self) -> _Reading:
        """Return the reading that runs or is fresh; otherwise start one.

        It runs in a thread, because a broker may stop to answer in the middle of a reading. Scrapes go on meanwhile.
        """
        if self._pid != os.getpid():  # a web server has forked: the connection and the thread belong to the parent
            self._pid, self._reading, self._observer = os.getpid(), None, self._new_observer()
        last = self._reading
        if last is not None and (not last.done.is_set() or time.monotonic() < last.started + self._interval):
            return last
        self._reading = reading = _Reading()
        threading.Thread(target=self._read, args=(reading,), name="celery-dlx-exporter", daemon=True).start()
        return reading

    def _read(self, reading: _Reading) -> None:
        try:
            reading.found = self._observer.read()
        except DLXError as problem:
            reading.problem = str(problem)
        except Exception as problem:
            logger.exception("exporter failed", extra=log_fields("ExporterFailed"))
            reading.problem = repr(problem)
        finally:
            reading.done.set()

    def _log(self, reading: _Reading) -> None:
        """Log once that the broker is down, and once that it is back."""
        is_up = reading.found is not None
        if is_up == self._is_up:
            return
        if not is_up:
            problem = reading.problem or f"no answer within {_ANSWER_SECONDS:g} s"
            logger.error("exporter cannot read the broker: %s", problem, extra=log_fields("BrokerNotRead"))
        elif self._is_up is False:
            logger.info("exporter reads the broker again", extra=log_fields("BrokerReadAgain"))
        self._is_up = is_up

    def _metrics(self, found: Observation | None) -> Iterator[Metric]:
        names = context_of(self._app).names
        gauges = {metric.name: metric for metric in metrics()}

        def add(name: str, value: float, *labels: str) -> None:
            gauges[f"celery_dlx_{name}"].add_metric(labels, value)

        add("up", found is not None)
        add("info", 1, __version__, names.prefix, names.kind, found.broker_version if found else "")
        if found is not None:
            _fill(add, found)
        yield from (metric for metric in gauges.values() if metric.samples)


@dataclass(slots=True)
class _Reading:
    """One reading of the broker, which may still run."""

    started: float = field(default_factory=time.monotonic)
    done: threading.Event = field(default_factory=threading.Event)
    found: Observation | None = None
    problem: str = ""


def _fill(add: _Add, found: Observation) -> None:
    add("management_up", not found.no_management)
    add("missing_objects", len(found.missing))
    for work in found.work_queues:
        add("work_queue_messages", work.messages, work.queue)
        add("work_queue_consumers", work.consumers, work.queue)
    for dead in found.dead_letters:
        add("dead_letter_messages", dead.messages, dead.queue)
        if dead.oldest_ms is not None:
            add("dead_letter_oldest_timestamp_seconds", dead.oldest_ms / 1000, dead.queue)
    if found.orphans is not None:
        add("orphan_messages", found.orphans)
    for waiting in found.waiting or ():
        add("waiting_messages", waiting.messages, waiting.queue, waiting.lane)
    for lane, late_ms in found.overdue_ms.items():
        add("lane_overdue_seconds", late_ms / 1000, lane)
    for (severity, code), count in Counter((it.severity, it.code) for it in found.findings).items():
        add("doctor_findings", count, severity, code)


def metrics() -> list[GaugeMetricFamily]:
    """Return all gauges of the collector, without values."""
    return [GaugeMetricFamily(f"celery_dlx_{name}", text, labels=labels) for name, (text, labels) in _GAUGES.items()]


_QUEUE = ("queue_name",)
_GAUGES: dict[str, tuple[str, Sequence[str]]] = {
    "up": ("1 if the last reading of the broker succeeded, else 0.", ()),
    "info": ("1, with the facts as labels.", ("version", "prefix", "queue_type", "broker_version")),
    "management_up": ("1 if RabbitMQ's HTTP API answers; without it waiting messages are not known.", ()),
    "work_queue_messages": ("Messages in a work queue, with those that workers hold.", _QUEUE),
    "work_queue_consumers": ("Consumers of a work queue.", _QUEUE),
    "waiting_messages": ("Messages that wait in lanes, by work queue and delay.", ("queue_name", "lane")),
    "lane_overdue_seconds": ("At least this long a message of a lane of this delay is overdue.", ("lane",)),
    "dead_letter_messages": ("Messages in the dead-letter queue of a work queue.", _QUEUE),
    "dead_letter_oldest_timestamp_seconds": ("When the first dead letter of a work queue died; with --peek.", _QUEUE),
    "orphan_messages": ("Messages whose work queue does not exist.", ()),
    "missing_objects": ("Queues and exchanges that a worker declares and that do not exist.", ()),
    "doctor_findings": ("Findings of `celery dlx doctor`, without tests of permissions.", ("severity", "code")),
}
