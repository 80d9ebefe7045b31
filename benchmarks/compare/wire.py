"""Bytes between a worker and the broker: a proxy on loopback that counts them."""

from __future__ import annotations

import asyncio
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from benchmarks.compare.stage import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.compare.stage import Stage

CHUNK = 65_536


class Proxy(threading.Thread):
    """Forwards every connection to the broker."""

    def __init__(self, host: str, port: int) -> None:
        super().__init__(daemon=True)
        self._to = (host, port)
        self._loop = asyncio.new_event_loop()
        self._is_up = threading.Event()
        self.port = 0
        self.bytes = 0

    def run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.port = server.sockets[0].getsockname()[1]
        self._is_up.set()
        self._loop.run_forever()

    def wait_until_up(self) -> None:
        self._is_up.wait(10)

    def end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self.join()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        to_broker, from_broker = await asyncio.open_connection(*self._to)
        await asyncio.gather(self._forward(reader, from_broker), self._forward(to_broker, writer))

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(CHUNK):
                self.bytes += len(data)
                writer.write(data)
                await writer.drain()
        except OSError:
            pass  # the worker was killed
        finally:
            writer.close()


@contextmanager
def proxy(url: str) -> Iterator[tuple[Proxy, str]]:
    """A proxy and the URL that leads through it."""
    parts = urlsplit(url)
    it = Proxy(parts.hostname or "127.0.0.1", parts.port or 5672)
    it.start()
    it.wait_until_up()
    try:
        login = parts.netloc.rpartition("@")[0]
        yield it, parts._replace(netloc=f"{login}@127.0.0.1:{it.port}").geturl()
    finally:
        it.end()


def measure(stage: Stage, *, count: int, say: object) -> float:  # noqa: ARG001 - nothing to tell
    """Bytes for one retry, both ways: delivery, publish, confirm, acknowledgement."""
    with proxy(stage.vhost.url) as (counter, url), stage.worker(url=url) as worker:
        worker.wait_until_ready()
        stage.send("loop", count)
        wait_for(lambda: stage.runs() >= count, what="the first runs")
        runs, before = stage.runs(), counter.bytes
        wait_for(lambda: stage.runs() >= runs + 2 * count, what="retries")
        return (counter.bytes - before) / (stage.runs() - runs)
