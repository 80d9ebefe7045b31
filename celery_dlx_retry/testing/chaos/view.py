"""What a chaos run shows while it runs: a live line in a terminal if rich is there, else a line every few seconds."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

LINE_SECONDS = 5.0


class View:
    """Lines of text; ``progress`` is cheap to call often."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._last = 0.0
        self._status: Any = None
        self._console = _console(out)

    @contextmanager
    def live(self) -> Iterator[None]:
        """While it runs."""
        if self._console is None:
            yield
            return
        with self._console.status("starting") as self._status:
            yield
        self._status = None

    def progress(self, line: str) -> None:
        """What is so now; old news are overwritten, or left out."""
        if self._status is not None:
            self._status.update(line)
        elif time.monotonic() - self._last >= LINE_SECONDS:
            self._last = time.monotonic()
            self.say(line)

    def say(self, line: str) -> None:
        """What happened."""
        if self._console is not None:
            self._console.print(line, markup=False, highlight=False, soft_wrap=True)
        else:
            self._out.write(f"{line}\n")
            self._out.flush()

    def table(self, rows: Mapping[str, object]) -> None:
        """Names and values, aligned."""
        width = max(map(len, rows))
        for name, value in rows.items():
            self.say(f"{name:<{width}}  {value}")


def _console(out: TextIO) -> Any:
    if not out.isatty():
        return None
    try:
        from rich.console import Console  # noqa: PLC0415 - optional
    except ImportError:
        return None
    return Console(file=out)
