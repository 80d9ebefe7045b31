"""One project, its workers and its sender for all tests of a module: each test sends its own tasks and looks at them.

A worker takes seconds to start, a claim about one task takes a tenth of that.
"""

from __future__ import annotations

import secrets
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from harness import Project

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def stage(request: Any, **conf: Any) -> Iterator[Project]:
    """Make the project of a module-scoped fixture, whose ``request`` it takes; ends what was started in it."""
    broker, redis_url, management, folders = (
        request.getfixturevalue(name) for name in ("broker", "redis_url", "management", "tmp_path_factory")
    )
    prefix = f"t{secrets.token_hex(4)}"
    it = Project(url=broker.url, backend=redis_url, prefix=prefix, folder=folders.mktemp(prefix))
    it.conf |= conf
    try:
        yield it
    finally:
        it.close()
        if management:
            management.delete_all(prefix)


@contextmanager
def listening(app: Any, events: list[dict[str, Any]]) -> Iterator[None]:
    """Be a monitor: append every event."""
    ready, done = threading.Event(), threading.Event()

    def listen() -> None:
        with app.connection_for_read() as connection:
            receiver = app.events.Receiver(connection, handlers={"*": events.append})
            with receiver.consumer_context(no_ack=True) as (its_own, *_):
                ready.set()
                while not done.is_set():
                    with suppress(TimeoutError):
                        its_own.drain_events(timeout=0.1)

    thread = threading.Thread(target=listen)
    thread.start()
    try:
        assert ready.wait(10)
        yield
    finally:
        done.set()
        thread.join()
