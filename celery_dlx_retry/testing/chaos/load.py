"""The tasks of a chaos run, chosen by its seed, and the thread that sends them: each is confirmed, or sent again."""

from __future__ import annotations

import threading
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from celery import Celery

from celery_dlx_retry.broker.connection import BROKER_ERRORS, drop, open_connection
from celery_dlx_retry.errors import Unreachable
from celery_dlx_retry.testing.chaos import project as chaos_project

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator

    from celery_dlx_retry.testing.chaos.run import Pool

AGAIN_SECONDS = 0.3
CONFIRM_SECONDS = 10

#: The kinds of 1000 tasks.
MIX = {
    "succeed": 380,
    "heal_by_policy": 130,
    "heal_by_jitter": 60,
    "heal_by_retry": 120,
    "heal_by_autoretry": 80,
    "exhaust": 80,
    "fail": 60,
    "give_up": 50,
    "crash": 15,
    "overrun": 10,
    "nobody_knows_it": 15,
}


@dataclass(frozen=True, slots=True)
class Job:
    """One task to be sent."""

    id: str
    task: str
    args: tuple[Any, ...]


#: These need a pool process: without one they would kill the worker, or no time limit would end them.
FOR_PREFORK = {"crash", "overrun"}


def jobs(count: int, chance: random.Random, *, pool: Pool = "prefork") -> Iterator[Job]:
    """So many tasks, the same for the same seed."""
    mix = {kind: share for kind, share in MIX.items() if pool == "prefork" or kind not in FOR_PREFORK}
    kinds, weights = list(mix), list(mix.values())
    for kind in chance.choices(kinds, weights, k=count):
        args: tuple[Any, ...] = ()
        if kind.startswith("heal"):
            args = (chance.randint(1, 3),)
        if kind == "heal_by_retry":
            args += (round(chance.uniform(0, 1.5), 3),)
        task_id = str(uuid.UUID(int=chance.getrandbits(128), version=4))
        yield Job(task_id, f"{chaos_project.__name__}.{kind}", args)


class Sender(threading.Thread):
    """Sends as many tasks as it is allowed to send, in order."""

    def __init__(self, load: list[Job], configuration: dict[str, Any]) -> None:
        super().__init__(name="sender", daemon=True)
        self._load = load
        self._app = Celery("sender", config_source=configuration, set_as_current=False)
        self._producer: Any = None
        self._allowed = threading.Semaphore(0)
        self._is_stopped = threading.Event()
        self.sent = 0
        self.sent_again = 0
        self.problem: BaseException | None = None

    def allow(self, count: int) -> None:
        """Let it send so many more."""
        self._allowed.release(count)

    def stop(self) -> None:
        """Send no more, and end."""
        self._is_stopped.set()
        self._allowed.release()
        if self.is_alive():
            self.join(CONFIRM_SECONDS + 5)

    def run(self) -> None:
        """See ``Thread``."""
        try:
            for job in self._load:
                self._allowed.acquire()
                if self._is_stopped.is_set():
                    return
                self._send(job)
        except BaseException as exc:  # noqa: BLE001 - the main thread raises it
            self.problem = exc
        finally:
            self._drop()

    def _send(self, job: Job) -> None:
        while not self._is_stopped.is_set():
            is_in_doubt = False
            try:
                if self._producer is None:
                    self._producer = self._connect()
                is_in_doubt = True
                self._app.send_task(
                    job.task,
                    job.args,
                    task_id=job.id,
                    producer=self._producer,
                    retry=False,
                    mandatory=True,
                    confirm_timeout=CONFIRM_SECONDS,
                )
            except (Unreachable, *BROKER_ERRORS):
                # If only the confirm was lost, this makes a duplicate with the same id.
                self.sent_again += is_in_doubt
                self._drop()
                self._is_stopped.wait(AGAIN_SECONDS)
            else:
                self.sent += 1
                return

    def _connect(self) -> Any:
        connection = self._app.connection_for_write()
        open_connection(connection, timeout_ms=CONFIRM_SECONDS * 1000)
        return self._app.amqp.Producer(connection)

    def _drop(self) -> None:
        if self._producer is not None:
            drop(self._producer.connection)
            self._producer = None
