"""The floor: take a message, publish it to a lane, have it confirmed, acknowledge it; kombu, and no Celery.

python -m benchmarks.compare.floor, with the environment of ``stage.py``
"""

from __future__ import annotations

import json
import multiprocessing
import os
import threading
import time
from pathlib import Path
from typing import Any

from kombu.connection import Connection
from kombu.entity import Exchange, Queue
from kombu.messaging import Consumer, Producer

from benchmarks.compare.contenders import BY_KEY
from benchmarks.compare.slots import Counter

LANE = "bench.lane"
LANE_MS = 1_000
PREFETCH = 8
LAG_SECONDS = 0.1  # what a paced loop may make up for


def work(settings: dict[str, Any]) -> None:
    """Consume for ever. A benchmark runs one such loop for each pool process of a worker."""
    contender = BY_KEY[settings["contender"]]
    is_pipelined = contender.is_pipelined
    count = Counter(Path(settings["folder"]) / "counter").add
    url = settings["url"]
    due = time.monotonic()
    pause = 1 / settings["per_second"] if settings["per_second"] else 0.0
    awaited = {"confirm_publish": contender.is_confirmed and not is_pipelined}
    with Connection(url) as connection, Connection(url, transport_options=awaited) as second:
        channel = (connection if is_pipelined else second).channel()
        waiting: dict[int, Any] = {}
        done = 0

        def on_confirm(tag: int, multiple: bool) -> None:  # noqa: FBT001 - py-amqp's signature
            for each in [it for it in waiting if it <= tag] if multiple else [tag]:
                waiting.pop(each).ack()

        if is_pipelined:
            channel.confirm_select()
            channel.events["basic_ack"].add(on_confirm)
        producer = Producer(channel, auto_declare=False)

        def on_message(message: Any) -> None:
            nonlocal done, due
            done += 1
            due = max(due + pause, time.monotonic() - LAG_SECONDS)
            time.sleep(max(0.0, due - time.monotonic()))  # noqa: TID251 - the pace
            headers = {key: value for key, value in message.headers.items() if not key.startswith("x-")}
            if is_pipelined:
                waiting[done] = message
            producer.publish(
                message.body,
                exchange=LANE if contender.has_lane else "",
                routing_key=message.delivery_info["routing_key"],
                headers=headers,
                content_type=message.content_type,
                content_encoding=message.content_encoding,
                mandatory=True,
                delivery_mode=2,
            )
            if not is_pipelined:
                message.ack()
            count()

        queue = Queue(settings["queues"][0], no_declare=True)
        with Consumer(connection, [queue], on_message=on_message, prefetch_count=PREFETCH, auto_declare=False):
            while True:
                connection.drain_events()


def declare(connection: Connection, queue: str, *, is_quorum: bool) -> None:
    """The work queue and the lane that leads back to it."""
    back: dict[str, Any] = {"x-message-ttl": LANE_MS, "x-dead-letter-exchange": ""}
    if is_quorum:
        back |= {"x-queue-type": "quorum", "x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish"}
    with connection.channel() as channel:
        Queue(queue, Exchange(""), routing_key=queue)(channel).declare()
        Queue(LANE, Exchange(LANE, type="fanout"), queue_arguments=back)(channel).declare()


def main() -> None:
    """Start as many loops as a pool has places."""
    settings = json.loads(os.environ["BENCH_PROJECT"])
    count, pool = settings["concurrency"], settings["pool"]
    with Connection(settings["url"]) as connection:
        declare(connection, settings["queues"][0], is_quorum=BY_KEY[settings["contender"]].lanes == "quorum")
    (Path(settings["folder"]) / "ready").touch()
    if pool == "solo":
        work(settings)
    kind: Any = multiprocessing.Process if pool == "prefork" else threading.Thread
    loops = [kind(target=work, args=(settings,), daemon=True) for _ in range(count)]
    for each in loops:
        each.start()
    for each in loops:
        each.join()


if __name__ == "__main__":
    main()
