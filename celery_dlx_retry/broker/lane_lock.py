"""The lock around lanes: one process at a time binds or deletes the lanes of a prefix.

RabbitMQ cannot delete a quorum queue only if it is empty. So `prune` unbinds a lane first, and deletes it when nothing
is left in it. If another process bound the lane in between, a message could be confirmed and then be deleted with the
queue (test_workers_and_prune_in_a_loop_lose_nothing). The lock is an exclusive queue. It holds no message, and RabbitMQ
deletes it with the connection of its owner, also when the owner is killed.
"""

from __future__ import annotations

import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from amqp.exceptions import AccessRefused, AMQPError, ResourceLocked

from celery_dlx_retry.errors import Forbidden, LanesBusy

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kombu.connection import Connection

    from celery_dlx_retry.topology.names import Names

_POLL_SECONDS = 0.1
_ANSWER_SECONDS = 5.0
# If the machine of the owner vanishes, RabbitMQ notices only by missing heartbeats.
_HEARTBEAT_SECONDS = 60


class LaneLock:
    """Holds the lock from its creation until ``release()``; raises LanesBusy if another process holds it."""

    def __init__(self, connection: Connection, names: Names) -> None:
        # An own connection: closing it releases the lock, whatever went wrong before.
        self._connection = connection.clone(heartbeat=_HEARTBEAT_SECONDS)
        try:
            self._connection.connect()
            self._connection.connection.transport.sock.settimeout(_ANSWER_SECONDS)
            self._connection.default_channel.queue_declare(names.lock(), exclusive=True, auto_delete=False)
        except ResourceLocked as exc:
            self.release()
            raise LanesBusy(prefix=names.prefix) from exc
        except AccessRefused as exc:
            self.release()
            raise Forbidden(kind="queue", name=names.lock(), permission="configure") from exc
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Let the next process have it.

        RabbitMQ deletes the queue before it confirms the close. A bare end of the TCP connection may reach it late, for
        instance through a proxy.
        """
        with suppress(AMQPError, OSError):
            self._connection.release()
        self._connection.collect()


@contextmanager
def lane_lock(connection: Connection, names: Names, *, within: float) -> Iterator[None]:
    """Hold the lock; wait that many seconds for it, then raise LanesBusy."""
    deadline = time.monotonic() + within
    while True:
        try:
            lock = LaneLock(connection, names)
            break
        except LanesBusy:
            if time.monotonic() > deadline:
                raise
            time.sleep(_POLL_SECONDS)  # noqa: TID251 - the broker does not say when a lock is free
    try:
        yield
    finally:
        lock.release()
