"""Bytes between a worker and the broker: a proxy on loopback that counts them."""

from __future__ import annotations

import socket
import threading
from contextlib import contextmanager, suppress
from socketserver import BaseRequestHandler, ThreadingTCPServer
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from benchmarks.compare.stage import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.compare.stage import Stage

CHUNK = 65_536


class Proxy(ThreadingTCPServer):
    """Forwards every connection to the broker."""

    daemon_threads = True

    def __init__(self, broker: tuple[str, int]) -> None:
        super().__init__(("127.0.0.1", 0), Forwarder)
        self.broker = broker
        self.bytes = 0


class Forwarder(BaseRequestHandler):
    """One connection."""

    server: Proxy

    def handle(self) -> None:
        with socket.create_connection(self.server.broker) as broker:
            threading.Thread(target=self._copy, args=(broker, self.request), daemon=True).start()
            self._copy(self.request, broker)

    def _copy(self, source: socket.socket, to: socket.socket) -> None:
        with suppress(OSError):  # the worker was killed
            while data := source.recv(CHUNK):
                self.server.bytes += len(data)
                to.sendall(data)


@contextmanager
def proxy(url: str) -> Iterator[tuple[Proxy, str]]:
    """A proxy and the URL that leads through it."""
    parts = urlsplit(url)
    with Proxy((parts.hostname or "127.0.0.1", parts.port or 5672)) as it:
        threading.Thread(target=it.serve_forever, daemon=True).start()
        login = parts.netloc.rpartition("@")[0]
        try:
            yield it, parts._replace(netloc=f"{login}@127.0.0.1:{it.server_address[1]}").geturl()
        finally:
            it.shutdown()


def measure(stage: Stage, *, count: int, say: object) -> float:  # noqa: ARG001 - it prints nothing
    """Bytes for one retry, both ways: delivery, publish, confirm, acknowledgement."""
    with proxy(stage.vhost.url) as (counter, url), stage.worker(url=url) as worker:
        worker.wait_until_ready()
        stage.send("loop", count)
        wait_for(lambda: stage.runs() >= count, what="the first runs")
        runs, before = stage.runs(), counter.bytes
        wait_for(lambda: stage.runs() >= runs + 2 * count, what="retries")
        return (counter.bytes - before) / (stage.runs() - runs)
