"""Trace what one task crosses in this package, and print calls, hops and modules of each path.

python -m benchmarks.paths              # half a minute; a private RabbitMQ
python -m benchmarks.paths --show a     # and every call of path (a)

A hop is a call of a function of ours in another file than the call of ours before it. A hop costs a reader a new file.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import tempfile
import time
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from celery_dlx_retry.testing.rabbitmq import given
from tests.provision import provide
from tests.workers import celery, start_worker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

WITHIN_SECONDS = 60.0
#: Nothing of ours runs in an idle worker for so long.
QUIET_SECONDS = 2.0
PATHS = {
    "a": ("paths.retried", "fails in a pool process; its retry reaches a lane"),
    "b": ("paths.exhausted", "fails without a retry left; a dead letter"),
    "c": ("paths.slow", "hard time limit in the main process; retried"),
    "d": ("countdown", "apply_async(countdown=37), second call of a process"),
    "e": ("paths.done", "succeeds"),
}
#: What HOUSE allows: hops and modules.
LIMITS = {"a": (55, 20), "b": (45, 18), "c": (40, 16)}


@dataclass(frozen=True)
class TracedPath:
    """The calls of one path, in order, of all processes."""

    calls: tuple[str, ...]

    @property
    def files(self) -> list[str]:
        """The file of each call."""
        return [call.partition(":")[0] for call in self.calls]

    @property
    def hops(self) -> int:
        """How often the file changes from one call to the next."""
        return sum(here != there for here, there in itertools.pairwise(self.files))

    @property
    def modules(self) -> int:
        """How many files take part."""
        return len(set(self.files))


class Traces:
    """The trace files of all processes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def size(self) -> int:
        """All bytes so far."""
        return sum(path.stat().st_size for path in self._folder.glob("*.trace"))

    def wait_until_quiet(self) -> None:
        """Return when no process has written for a while."""
        size, since, end = self.size(), time.monotonic(), time.monotonic() + WITHIN_SECONDS
        while time.monotonic() < min(end, since + QUIET_SECONDS):
            time.sleep(0.05)  # noqa: TID251 - a look at the files
            if self.size() != size:
                size, since = self.size(), time.monotonic()

    def of(self, act: Callable[[], None]) -> TracedPath:
        """Do something and return the calls that it led to."""
        before = {path: path.stat().st_size for path in self._folder.glob("*.trace")}
        act()
        self.wait_until_quiet()
        calls: list[str] = []
        for path in sorted(self._folder.glob("*.trace")):
            text = path.read_text()[before.get(path, 0) :]
            calls += text.split()
        return TracedPath(tuple(calls))


@contextmanager
def worker(folder: Path, environment: dict[str, str]) -> Iterator[None]:
    """Run a prefork worker with one process."""
    flags = ("--pool", "prefork", "--concurrency", "1", "-l", "INFO")
    flags += ("--without-gossip", "--without-mingle", "--without-heartbeat")
    command = celery("benchmarks.paths.project", "worker", *flags)
    started = start_worker(command, log=folder / "worker.log", environment=environment)
    try:
        started.wait_until_ready(within=WITHIN_SECONDS)
        yield
    finally:
        started.stop()


def traced(folder: Path, url: str) -> dict[str, TracedPath]:
    """Trace every path; the second time, when nothing is made for the first time any more."""
    environment = {**os.environ, "DLX_PATHS_FOLDER": str(folder), "DLX_PATHS_BROKER": url, "C_FORCE_ROOT": "1"}
    os.environ.update(environment)
    from benchmarks.paths import project  # noqa: PLC0415 - it reads the environment

    found = {}
    with worker(folder, environment):
        traces = Traces(folder)
        for letter, (name, _) in PATHS.items():
            if name == "countdown":
                continue
            for _turn in range(2):
                traces.wait_until_quiet()
                found[letter] = traces.of(lambda name=name: project.app.tasks[name].delay() and None)  # type: ignore[misc]
    later = project.app.tasks["paths.done"]
    later.apply_async(countdown=37)
    project.start_trace()
    found["d"] = Traces(folder).of(lambda: later.apply_async(countdown=37) and None)
    sys.setprofile(None)
    return dict(sorted(found.items()))


def main() -> int:
    """Print the table; the exit code says whether a path is longer than allowed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="", help="a RabbitMQ for this run (default: a private one)")
    parser.add_argument("--show", default="", metavar="LETTER", help="print every call of this path")
    options = parser.parse_args()
    with closing(given(options.url) or provide()) as broker, tempfile.TemporaryDirectory() as folder:
        found = traced(Path(folder), broker.url)
    print(f"{'path':60} calls  hops  modules")
    is_short = True
    for letter, path in found.items():
        hops, modules = LIMITS.get(letter, (0, 0))
        allowed = f"  (at most {hops} / {modules})" if hops else ""
        is_short &= not hops or (path.hops <= hops and path.modules <= modules)
        print(f"({letter}) {PATHS[letter][1]:56} {len(path.calls):5} {path.hops:5} {path.modules:8}{allowed}")
    if options.show:
        print("\n".join(found[options.show].calls))
    return 0 if is_short else 1


if __name__ == "__main__":
    sys.exit(main())
