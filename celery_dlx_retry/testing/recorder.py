"""The kit for tests of tasks: no task waits, decisions are recorded, and the test asserts what they were."""

from __future__ import annotations

import os
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from kombu.connection import Connection

from celery_dlx_retry.broker.connection import addresses, shown
from celery_dlx_retry.errors import ConfigurationError
from celery_dlx_retry.policy.reasons import Reason
from celery_dlx_retry.testing.assertions import Subject, are_settled, story, wrong_deaths, wrong_delays, wrong_successes
from celery_dlx_retry.testing.broker import RabbitMQ
from celery_dlx_retry.testing.patches import hooked
from celery_dlx_retry.testing.rabbitmq import URL
from celery_dlx_retry.testing.records import RecordFile
from celery_dlx_retry.testing.sandbox import wait_until
from celery_dlx_retry.testing.worker_process import running_worker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from celery_dlx_retry.testing.records import Record


#: Transports that reach no other process.
_LOCAL = ("memory", "filesystem")


class WrongBroker(ConfigurationError):
    """``broker``, ``known``."""

    sentence = (
        "A task was about to be sent to {broker}, but {known}. Set app.conf.broker_url = dlx_rabbitmq.url before the "
        "app first sends: in a fixture with scope='session' and autouse=True, in the conftest.py beside your tests. "
        "If that broker is for tests, name it: DLX_TEST_BROKER_URL."
    )


def check_broker(app: Any, known: list[str], refuse: Callable[[str], None]) -> None:
    """Raise ``WrongBroker`` if an app that is about to send a task sends to none of these URLs."""
    if app.conf.task_always_eager:
        return  # Celery takes a producer all the same, and sends nothing
    # Not the setting: Celery keeps its connections when the setting changes.
    if problem := _problem(app.producer_pool.connections.connection, known):
        refuse(str(problem))
        raise problem


def known_brokers() -> list[str]:
    """Return the URLs of every ``RabbitMQ`` in use in this process, and of the one that the environment names."""
    return [*RabbitMQ.in_use, *filter(None, [os.environ.get(URL)])]


def _problem(connection: Connection, urls: list[str]) -> WrongBroker | None:
    if connection.transport_cls in _LOCAL:
        return None
    known = [address for url in urls for address in addresses(Connection(url))]
    if known and set(addresses(connection)) <= set(known):
        return None
    others = " or ".join(dict.fromkeys(map(str, known)))
    return WrongBroker(
        broker=shown(connection), known=f"this test's broker is {others}" if others else "this test has no broker"
    )


@contextmanager
def record(*, broker: str = "") -> Iterator[Recorder]:
    """Record what becomes of tasks, and let none of them wait, until the block ends.

    ``broker`` is the URL of a broker that the test may send to, besides every RabbitMQ of ``provide()`` and
    ``dlx_rabbitmq``.
    """
    with TemporaryDirectory(prefix="celery-dlx-retry-") as folder:
        file = RecordFile(Path(folder) / "records")
        recorder = Recorder(file, broker=broker)
        with hooked(file, check=lambda app: check_broker(app, recorder.brokers(), file.refuse)):
            yield recorder


class Recorder:
    """The records of a test's tasks.

    An assertion takes a task, its name, or a result. It is about every message of that task, or about the message of
    that result. It waits ``within`` so many seconds until all messages that were sent to a worker have ended.
    """

    def __init__(self, file: RecordFile, *, broker: str = "") -> None:
        self._file = file
        self._given = [broker] if broker else []

    def brokers(self) -> list[str]:
        """Return the URLs of the brokers that the test may send to."""
        return [*self._given, *known_brokers()]

    @property
    def records(self) -> list[Record]:
        """Return all records, oldest first."""
        return self._file.read()

    @contextmanager
    def worker(self, app: str, *flags: str, broker: str | None = None) -> Iterator[None]:
        """Run ``celery -A app worker`` with these flags; it records, too. ``broker`` is the URL of another broker.

        It imports modules from the same places as this process. In a Django project it opens the test's databases; if
        the test has none, a task that opens one fails with a sentence that says so.
        """
        if broker:
            self._given.append(broker)
        with running_worker(app, *flags, records=self._file.path, broker=broker):
            yield
        if self._file.refusal:
            raise AssertionError(self._file.refusal)

    def assert_retried(self, what: Any, *, delays: Any, within: float = 10.0) -> None:
        """Assert the delays of all its retries, in seconds or as timedelta; [] means no retry.

        A delay, or the whole list, may be a ``pytest.approx``.
        """
        __tracebackhide__ = True
        self._claim(what, lambda messages: wrong_delays(messages, delays), within=within)

    def assert_dead(self, what: Any = None, *, reason: str | None = None, within: float = 10.0) -> None:
        """Assert that it is a dead letter, for this reason."""
        __tracebackhide__ = True
        if reason is not None and reason not in list(Reason):
            raise ValueError(f"There is no reason {reason!r}. Reasons are {', '.join(sorted(Reason))}.")
        self._claim(what, lambda messages: wrong_deaths(messages, reason), within=within)

    def assert_succeeded(self, what: Any = None, *, within: float = 10.0) -> None:
        """Assert that it succeeded, after any number of retries."""
        __tracebackhide__ = True
        self._claim(what, wrong_successes, within=within)

    def _claim(self, what: Any, flaw: Callable[[dict[str, list[Record]]], str], *, within: float) -> None:
        __tracebackhide__ = True
        subject = Subject(what)
        is_settled = wait_until(
            lambda: bool(self._file.refusal) or are_settled(subject.messages(self.records)), within=within
        )
        messages = subject.messages(self.records)
        if self._file.refusal:
            problem = self._file.refusal
        elif not messages:
            others = ", ".join(sorted({record.task for record in self.records}))
            found = f"Nothing is recorded of {subject}, only of {others}." if others else "Nothing is recorded."
            problem = f"{found} Was {subject} sent, or run by apply(), in this test?"
        elif not is_settled:
            problem = (
                f"Not at its end after {within:g} s: {subject}. Does a worker that records consume its queue? "
                "Start one, or set task_always_eager."
            )
        else:
            problem = flaw(messages)
        if problem:
            raise AssertionError(f"{problem}\nRecorded:\n{story(messages)}" if messages else problem)
