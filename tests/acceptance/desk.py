"""An operator's desk: an app with a classic and a quorum work queue, dead letters of both, and the command line."""

from __future__ import annotations

import json
import subprocess
import time
from dataclasses import replace
from functools import cached_property
from subprocess import CompletedProcess
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from celery import Celery
from click.testing import CliRunner
from kombu.connection import Connection
from support import eventually

from celery_dlx_retry.app.context import context_of
from celery_dlx_retry.broker import declare as declare_module
from celery_dlx_retry.broker.dead_letters import browse
from celery_dlx_retry.broker.sync_publisher import Publisher
from celery_dlx_retry.cli import dlx
from celery_dlx_retry.policy.reasons import Reason
from celery_dlx_retry.topology.names import WorkQueue
from celery_dlx_retry.topology.objects import shared_objects, work_queue_objects
from celery_dlx_retry.wire.dead_record import DeadRecord, with_record
from celery_dlx_retry.wire.headers import Failure, with_failure
from tests.workers import celery

if TYPE_CHECKING:
    from click.testing import Result

TRACEBACK = """\
Traceback (most recent call last):
  File "/srv/releases/7/shop/tasks.py", line 12, in charge
    bank.charge(order)
  File "/usr/lib/python3.11/site-packages/bank/client.py", line 99, in charge
    raise ValueError("no")
ValueError: no
"""


def succeed(value=None):
    return value


def fail(text="no luck"):
    raise ValueError(text)


class Desk:
    """Everything of one test module; each test buries its own letters and leaves the queues empty."""

    def __init__(self, project: Any, management_url: str, *, is_staffed: bool = False) -> None:
        self.project = project
        self._api = {"DLX_MANAGEMENT_URL": management_url}
        self.work = {kind: f"{project.prefix}.{kind}" for kind in ("classic", "quorum")}
        # The commands are to read dead letters of either type; a worker would not start with the other.
        self._names = {kind: project.names if is_staffed else replace(project.names, kind=kind) for kind in self.work}
        project.conf["task_default_queue"] = self.work["classic"]
        project.conf["task_queues"] = {
            name: {"exchange": name, "routing_key": name, "queue_arguments": {"x-queue-type": kind}}
            for kind, name in self.work.items()
        }
        self.publisher = Publisher(lambda: Connection(project.url), confirm_timeout_ms=10_000)
        declare_module.SETTLE_SECONDS, settle = 0.0, declare_module.SETTLE_SECONDS
        with Connection(project.url) as connection:
            for kind, name in self.work.items():
                connection.default_channel.queue_declare(
                    name, durable=True, auto_delete=False, arguments={"x-queue-type": kind}
                )
                names = self._names[kind]
                declare_module.declare(
                    connection, shared_objects(names) | work_queue_objects(names, WorkQueue(name=name))
                )
        declare_module.SETTLE_SECONDS = settle

    @cached_property
    def app(self) -> Any:
        """The same app in this process, with some of its tasks."""
        app = Celery("desk", config_source=dict(self.project.conf), set_as_current=False)
        for function in (succeed, fail):
            app.task(function, name=f"project.{function.__name__}", shared=False)
        return app

    def close(self) -> None:
        self.publisher.close()
        if "app" in self.__dict__:
            context_of(self.app).publisher.close()
            self.app.close()

    def dead_queue(self, kind: str) -> str:
        return self.project.names.dead_letters(self.work[kind])

    def bury(self, task_id: str, kind: str = "classic", *, args: Any = (), kwargs: Any = None, **facts: Any) -> None:
        """A dead letter, made as a worker makes them."""
        sent = {key: facts.pop(key) for key in ("serializer", "compression", "reply_to") if key in facts}
        embed = {"callbacks": None, "errbacks": None, "chain": None, "chord": None, **facts.pop("embed", {})}
        more, rule = facts.pop("headers", {}), facts.pop("rule", {})
        now_ms = time.time_ns() // 1_000_000
        record = DeadRecord(
            **{
                "reason": Reason.FAILED,
                "task": "project.succeed",
                "task_id": task_id,
                "queue": self.work[kind],
                "dead_letter_key": self.work[kind],
                "worker": "w@h",
                "attempts": 1,
                "died_at_ms": now_ms,
                "error_type": "ValueError",
                "error": "no",
                "traceback": TRACEBACK,
                **facts,
            }
        )
        headers = {"id": task_id, "task": record.task, "retries": 0, "lang": "py", "argsrepr": "'secret'", **more}
        failure = Failure(attempt=1, at_ms=now_ms, error="ValueError: no", delay_ms=None, worker="w@h", **rule)
        headers = with_record(with_failure(headers, failure), record)
        with self.publisher.producer() as producer:
            producer.publish(
                [list(args), kwargs or {}, embed],
                exchange=self.project.names.dead(),
                routing_key=record.dead_letter_key,
                headers=headers,
                correlation_id=task_id,
                **sent,
            )

    def dlx(
        self, *arguments: str, code: int | None = 0, answer: str = "", app: Any = None, **environment: str
    ) -> Result:
        """What ``shell`` does, in this process: a tenth of the time. ``code=None``: any, but no traceback."""
        done = self.run(*arguments, answer=answer, app=app, **environment)
        assert code is None or done.exit_code == code, done.stdout + done.stderr
        return done

    def run(self, *arguments: str, answer: str = "", app: Any = None, **environment: str) -> Result:
        """The same, with any exit code."""
        obj = SimpleNamespace(app=app or self.app)
        done = CliRunner().invoke(dlx, ["dead", *arguments], obj=obj, input=answer, env={**self._api, **environment})
        if done.exception and not isinstance(done.exception, SystemExit):
            raise done.exception
        return done

    def shell(self, *arguments: str, code: int = 0, answer: str = "", **environment: str) -> CompletedProcess:
        """``celery -A project dlx dead …`` to its end, which has to have this exit code."""
        done = subprocess.run(
            self.command(*arguments),
            env={**self.project.environment(), **self._api, **environment},
            input=answer,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == code, done.stdout + done.stderr
        assert "Traceback (most recent" not in done.stderr
        return done

    @staticmethod
    def command(*arguments: str) -> list[str]:
        return celery("project", "dlx", "dead", *arguments)

    def popen(self, *arguments: str, **environment: str) -> Any:
        return subprocess.Popen(
            self.command(*arguments),
            env={**self.project.environment(), **self._api, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def json(self, *arguments: str, **options: Any) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.dlx(*arguments, "--json", **options).stdout.splitlines()]

    def letters(self, kind: str) -> list[Any]:
        with Connection(self.project.url) as connection:
            return list(browse(connection, self.dead_queue(kind)))

    def dead_ids(self, kind: str) -> list[str]:
        return [letter.record.task_id for letter in self.letters(kind)]

    def lying(self, count: int, *kinds: str) -> None:
        """Wait until so many dead letters are there and nobody holds one."""
        kinds = kinds or ("classic", "quorum")
        eventually(lambda: sum(self.project.depth(self.dead_queue(kind)) or 0 for kind in kinds) == count)

    def take(self, queue: str) -> list[Any]:
        """All messages of a queue, and out of it."""
        found = []
        with Connection(self.project.url) as connection:
            channel = connection.default_channel
            channel.auto_decode = False
            while message := channel.basic_get(queue, no_ack=True):
                found.append(message)
        return found

    def clear(self) -> None:
        with Connection(self.project.url) as connection:
            for kind, name in self.work.items():
                for queue in (name, self.dead_queue(kind), self._names[kind].orphans()):
                    connection.default_channel.queue_purge(queue)
