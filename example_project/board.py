"""What the demo shows: a live table in a terminal, plain lines everywhere else."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass

from rich.live import Live
from rich.table import Table
from rich.text import Text


@dataclass(frozen=True, kw_only=True)
class Sight:
    """What can be seen at one moment."""

    lanes: tuple[tuple[str, int], ...]  # (how long one waits there, how many wait)
    work: int
    dead: int
    done: int
    sent: int
    worker: str


class Board:
    """Show the newest sight."""

    def __init__(self, console):
        self._console = console
        self._used = set()
        self._last_line = ""

    @contextmanager
    def live(self):
        """Yield ``show(sight)``, to be called as often as one likes."""
        if not self._console.is_terminal or self._console.is_dumb_terminal:
            yield self._show_line
            return
        with Live(console=self._console, auto_refresh=False) as live:
            yield lambda sight: live.update(self._table(sight), refresh=True)

    def _table(self, sight):
        # Show a lane from its first message on, and no unused lane.
        self._used.update(delay for delay, depth in sight.lanes if depth)
        table = Table("queue", "messages", title=f"worker: {sight.worker}", title_justify="left", min_width=66)
        for delay, depth in sight.lanes:
            if delay in self._used:
                table.add_row(f"lane {delay}", self._bar(depth, "yellow"))
        table.add_section()
        table.add_row("work queue", self._bar(sight.work, "blue"))
        table.add_row("dead-letter queue", self._bar(sight.dead, "red"))
        table.add_section()
        table.add_row(f"done, of {sight.sent}", self._bar(sight.done, "green"))
        return table

    def _bar(self, depth, color):
        block = "#" if self._console.options.ascii_only else "█"
        return Text.assemble(f"{depth:>3} ", (block * depth, color), no_wrap=True, overflow="crop")

    def _show_line(self, sight):
        lanes = ", ".join(f"{delay}: {depth}" for delay, depth in sight.lanes if depth) or "empty"
        line = f"  lanes {lanes} | work queue {sight.work} | dead-letter queue {sight.dead} | done {sight.done}"
        if line != self._last_line:
            self._last_line = line
            self._console.print(line, soft_wrap=True)


def dead_letter_table(letters):
    """One row per dead letter: what, why, how often it was tried, and how long it waited before each retry."""
    table = Table("task", "reason", "error", "attempts", "waits")
    for letter in letters:
        record = letter.record
        waits = [f"{failure.delay_ms / 1000:g} s" for failure in letter.history if failure.delay_ms is not None]
        table.add_row(
            record.task.rpartition(".")[2],
            str(record.reason),
            f"{record.error_type}: {record.error}",
            str(record.attempts),
            ", ".join(waits) or "-",
        )
    return table
