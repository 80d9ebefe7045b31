"""An app in a virtual host of its own, its dead letters and its waiting tasks, the commands, and a census."""

from __future__ import annotations

import io
import json
import logging
import re
import sys
import time
from collections import defaultdict
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from amqp import Message as RawMessage
from celery import Celery
from click.testing import CliRunner
from kombu.connection import Connection
from support import eventually

from celery_dlx_retry import DLXRetryTask
from celery_dlx_retry.app.context import context_of
from celery_dlx_retry.broker import declare as declare_module
from celery_dlx_retry.cli import dlx
from celery_dlx_retry.policy.reasons import Reason
from celery_dlx_retry.topology.names import WorkQueue
from celery_dlx_retry.wire.dead_record import DeadRecord, with_record
from celery_dlx_retry.wire.headers import Failure, with_failure
from tests.fuzz.verdict import check_ended, check_json, check_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from click.testing import Result

#: In every message that a fuzzer sends: in a header, a property or its body.
TOKEN = re.compile(r"fz-\d+-z")
WAIT_SECONDS = 3600
JSON = "application/json"
BODY = '[["{token}"], {{}}, {{"callbacks": null, "errbacks": null, "chain": null, "chord": null}}]'
TRACEBACK = 'Traceback (most recent call last):\n  File "shop.py", line 1, in charge\nValueError: no\n'
_DEEP = 200_000


def succeed(value=None):
    return value


def fail(text="no luck"):
    raise ValueError(text)


class House:
    """Two work queues of ours, and one of another app that no message of ours may reach."""

    WORK = ("fz.classic", "fz.quorum")
    VICTIM = "victim.work"

    def __init__(self, vhost: Any, backend: str) -> None:
        self.vhost = vhost
        self._tokens = 0
        self._log = io.StringIO()
        self._handler = logging.StreamHandler(self._log)
        logging.getLogger("celery_dlx_retry").addHandler(self._handler)
        self.conf = {
            "broker_url": vhost.url,
            "result_backend": backend,
            "dlx_prefix": "fz",
            "task_default_queue": self.WORK[0],
            "task_queues": {
                name: {"exchange": name, "routing_key": name, "queue_arguments": {"x-queue-type": name[3:]}}
                for name in self.WORK
            },
        }
        self.app = Celery("fuzz", config_source=dict(self.conf), set_as_current=False)
        for function in (succeed, fail):
            self.app.task(
                function, name=f"fuzz.{function.__name__}", shared=False, base=DLXRetryTask, policy=[WAIT_SECONDS]
            )
        self.names = context_of(self.app).names
        # A broker that is not killed needs no time to settle.
        declare_module.SETTLE_SECONDS, self._settle = 0.0, declare_module.SETTLE_SECONDS
        done = self.run("declare")
        assert done.exit_code == 0, done.output
        with Connection(vhost.url) as connection:
            connection.default_channel.queue_declare(self.VICTIM, durable=True, auto_delete=False)
        self.queues = self.all_queues()

    def all_queues(self) -> set[str]:
        """Of the virtual host, without those in which Celery's workers talk to each other."""
        return {name for name in self.vhost.api.names("queues") if "celery" not in name}

    @property
    def dead(self) -> list[str]:
        return [self.names.dead_letters(name) for name in self.WORK]

    @property
    def lanes(self) -> list[str]:
        return [self.names.lane(WorkQueue(name=name), WAIT_SECONDS * 1000) for name in self.WORK]

    def close(self) -> None:
        declare_module.SETTLE_SECONDS = self._settle
        logging.getLogger("celery_dlx_retry").removeHandler(self._handler)
        context_of(self.app).publisher.close()
        self.app.close()

    def run(self, *words: str, answer: str = "", **environment: str) -> Result:
        """``celery dlx …`` in this process."""
        environment = {"DLX_MANAGEMENT_URL": self.vhost.management_url, **environment}
        return CliRunner().invoke(dlx, list(words), obj=SimpleNamespace(app=self.app), input=answer, env=environment)

    def checked(self, *words: str, answer: str = "", **options: str) -> Result:
        """The same; it ends as a command may end, and prints and logs nothing that it must not."""
        done = self.run(*words, answer=answer, **options)
        check_ended(done, asked=" ".join((*words, answer)))
        if "--json" in words and "--help" not in words and done.exit_code != 2:  # a wrong option
            check_json(done.stdout)
        logged = self._log.getvalue()
        self._log.seek(0)
        self._log.truncate()
        check_text(logged)  # a log has other readers
        return done

    def token(self) -> str:
        self._tokens += 1
        return f"fz-{self._tokens}-z"

    def send(
        self, queue: str, token: str, headers: dict[str, Any], body: str | bytes | None = None, **properties: Any
    ) -> None:
        """Publish as bare AMQP, confirmed."""
        properties = {"content_type": JSON, "content_encoding": "utf-8", "message_id": token, **properties}
        properties = {key: value for key, value in properties.items() if value is not None}
        body = BODY.format(token=token) if body is None else body
        with deep(), self._channel() as channel:
            raw = RawMessage(
                body if isinstance(body, bytes) else body.encode(),
                application_headers=headers,
                delivery_mode=2,
                **properties,
            )
            channel.basic_publish_confirm(raw, routing_key=queue, mandatory=True)

    def letter_headers(self, token: str, work: str, **facts: Any) -> dict[str, Any]:
        """Those of a dead letter as a worker makes it."""
        now_ms = time.time_ns() // 1_000_000
        record = DeadRecord(
            **{
                "reason": Reason.FAILED,
                "task": "fuzz.succeed",
                "task_id": token,
                "queue": work,
                "dead_letter_key": work,
                "worker": "w@h",
                "attempts": 1,
                "died_at_ms": now_ms,
                "error_type": "ValueError",
                "error": "no",
                "traceback": TRACEBACK,
                **facts,
            }
        )
        failure = Failure(attempt=1, at_ms=now_ms, error="ValueError: no", delay_ms=None, worker="w@h")
        headers = {"id": token, "task": record.task, "retries": 0, "lang": "py"}
        return with_record(with_failure(headers, failure), record)

    def bury(self, work: str) -> str:
        """An innocent dead letter; its token is its task id."""
        token = self.token()
        headers = self.letter_headers(token, work)
        self.send(self.names.dead_letters(work), token, headers, correlation_id=token)
        return token

    def park(self, work: str) -> str:
        """An innocent task that waits in a lane."""
        token = self.token()
        failure = Failure(
            attempt=1, at_ms=time.time_ns() // 1_000_000, error="no", delay_ms=WAIT_SECONDS * 1000, worker="w@h"
        )
        headers = with_failure({"id": token, "task": "fuzz.succeed", "retries": 1, "lang": "py"}, failure)
        self.send(self.lanes[self.WORK.index(work)], token, headers, correlation_id=token)
        return token

    def census(self) -> dict[str, list[str]]:
        """The queues in which each message lies, in the whole virtual host, by its token."""
        found = defaultdict(list)
        with deep(), Connection(self.vhost.url) as connection:
            channel = connection.channel()
            channel.auto_decode = False
            for queue in self.all_queues():
                while message := channel.basic_get(queue):
                    found[token_of(message)].append(queue)
            connection.collect()  # gives all of them back
        return dict(found)

    def total(self) -> int:
        """Messages that are ready, in the whole virtual host."""
        with self._channel() as channel:
            return sum(channel.queue_declare(name, passive=True).message_count for name in self.queues)

    def depth(self, queue: str) -> int:
        with self._channel() as channel:
            return int(channel.queue_declare(queue, passive=True).message_count)

    def settled(self, count: int) -> bool:
        """Whether this many messages are ready; those that a reader held come back a moment later."""
        try:
            eventually(lambda: self.total() == count, within=5)
        except AssertionError:
            return False
        return True

    def empty(self) -> None:
        """As at the start."""
        names = self.all_queues()
        with self._channel() as channel:
            for name in names - self.queues:
                channel.queue_delete(name)
            for name in self.queues:
                channel.queue_purge(name)

    @contextmanager
    def _channel(self) -> Iterator[Any]:
        connection = self.__dict__.get("_connection")
        if connection is None or not connection.connected:
            connection = self._connection = Connection(self.vhost.url)
            connection.connect()
            connection.default_channel.confirm_select()
        try:
            yield connection.default_channel
        except Exception:
            connection.collect()
            raise


def token_of(message: Any) -> str:
    """Wherever it is: a hostile header may have replaced another."""
    properties, headers = message.properties, message.headers or {}
    places: Iterable[Any] = (
        *(headers.get("fuzz-token"), properties.get("message_id"), properties.get("correlation_id")),
        *(headers.get("id"), headers.get("dlx-dead-task-id")),
        message.body if isinstance(message.body, str) else bytes(message.body).decode("latin-1"),
    )
    for place in places:
        if isinstance(place, str) and (found := TOKEN.search(place)):
            return found[0]
    return f"unknown: {json.dumps(headers, default=repr)[:300]}"


@contextmanager
def deep() -> Iterator[None]:
    """Let py-amqp write and read tables of any depth: a fuzzer is not the program that must survive them."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(_DEEP)
    try:
        yield
    finally:
        sys.setrecursionlimit(before)
