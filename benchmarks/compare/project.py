"""The Celery project that every worker runs: ``celery -A benchmarks.compare.project worker``.

The environment configures it; see ``stage.py``.
"""

from __future__ import annotations

import gc
import json
import os
import time
from pathlib import Path
from typing import Any

from amqp.channel import Channel
from celery import Celery, Task
from celery.signals import worker_process_init, worker_ready

from benchmarks.compare.contenders import BY_KEY, POLICY
from benchmarks.compare.slots import Counter
from celery_dlx_retry import DLXRetryTask, Fixed

LOOP_SECONDS = 1
LONG_SECONDS = 3_600
LATE_SECONDS = 2
LANES = 30

settings = json.loads(os.environ["BENCH_PROJECT"])
folder = Path(settings["folder"])
contender = BY_KEY[settings["contender"]]
is_dlx = contender.way == "dlx"

app = Celery("bench", set_as_current=False)
app.conf.update(contender.conf(settings["url"], settings["queues"]))
if not settings["has_prefetch_limit"]:
    app.conf.worker_prefetch_multiplier = 0
if is_dlx:
    app.conf.update(dlx_prefix="bench", dlx_queue_type=contender.lanes)
options: dict[str, Any] = {
    "bind": True, "base": DLXRetryTask if is_dlx else Task, "max_retries": None, "shared": False,
}  # fmt: skip

count = Counter(folder / "counter").add


def note(kind: str, value: float) -> None:
    """Append a line, whole also when processes write at the same time."""
    descriptor = os.open(folder / "notes", os.O_WRONLY | os.O_APPEND)
    os.write(descriptor, f"{kind} {value:.6f}\n".encode())
    os.close(descriptor)


if contender is POLICY:

    @app.task(name="bench.loop", policy=Fixed(LOOP_SECONDS, retries=None), **options)
    def loop(_self: Any) -> None:
        """Retried for ever."""
        count()
        raise ConnectionError("the bank does not answer")

else:

    @app.task(name="bench.loop", default_retry_delay=LOOP_SECONDS, **options)
    def loop(self: Any) -> None:
        """Retried for ever."""
        count()
        raise self.retry()


@app.task(name="bench.once", default_retry_delay=LONG_SECONDS, **options)
def once(self: Any) -> None:
    """Retried into a wait that outlasts the measurement."""
    count()
    raise self.retry()


@app.task(name="bench.plain", **options)
def plain(_self: Any) -> None:
    """What a task costs that succeeds."""
    count()


@app.task(name="bench.fresh", **options)
def fresh(_self: Any, sent_at: float) -> None:
    """How long a new task was on its way."""
    note("fresh", time.time() - sent_at)


@app.task(name="bench.late", default_retry_delay=LATE_SECONDS, **options)
def late(self: Any, due: float | None = None) -> None:
    """Retried once, and how late that was."""
    if due is None:
        raise self.retry(args=(time.time() + LATE_SECONDS,))
    note("late", time.time() - due)


@app.task(name="bench.crowd", default_retry_delay=settings["crowd_seconds"], **options)
def crowd(self: Any, due: float | None = None) -> None:
    """The same, among many."""
    if due is None:
        raise self.retry(args=(time.time() + settings["crowd_seconds"],))
    note("crowd", time.time() - due)


for number in range(settings["tasks"]):
    # As many as a real project has, with thirty delays among them.

    @app.task(name=f"bench.other_{number}", default_retry_delay=10 + number % LANES, **options)
    def other(_self: Any) -> None:
        """Never sent."""


@worker_process_init.connect
def settle(**_: Any) -> None:
    """The first full collection writes into every page that a child shares with its parent; not amid a measurement."""
    gc.collect()


@worker_ready.connect
def tell(**_: Any) -> None:
    """The parent waits for it."""
    settle()
    (folder / "ready").touch()


def capture(publish: Any) -> Any:
    """Write down each retry as it goes over the wire, so that copies of it can fill a queue."""

    def publish_and_tell(channel: Any, message: Any, exchange: str = "", routing_key: str = "", **kwargs: Any) -> Any:
        properties = dict(message.properties)
        headers = properties.get("application_headers") or {}
        if headers.get("retries"):
            body = message.body if isinstance(message.body, str) else message.body.decode()
            written = {"body": body, "properties": properties, "exchange": exchange, "routing_key": routing_key}
            part = folder / f"{headers['task']}.part"
            part.write_text(json.dumps(written))
            part.rename(folder / f"{headers['task']}.json")
        return publish(channel, message, exchange, routing_key, **kwargs)

    return publish_and_tell


if settings["is_captured"]:
    Channel._basic_publish = Channel.basic_publish = capture(Channel._basic_publish)  # noqa: SLF001
