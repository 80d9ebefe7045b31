"""The tables of docs/monitoring.md, made from what the tools show."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tests.side_by_side.cases import CASES

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tests.side_by_side.world import Seen

COLUMNS = (
    *("A task that …", "Flower: plain Celery", "Flower: ours"),
    *("celery-exporter: plain Celery", "celery-exporter: ours", "our metrics"),
)
HEAD = f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}\n"
WAITING_HEAD = "| While it waits for its retry | plain Celery | ours |\n|---|---|---|\n"
#: In the order in which they happen.
COUNTED = ("started", "retried", "succeeded", "failed", "rejected", "revoked")
TABLES = re.compile(
    f"({re.escape(HEAD)}(?:\\|.*\n)*)|({re.escape(WAITING_HEAD)}(?:\\|.*\n)*)",
)


def outcomes(seen: Mapping[tuple[str, str], Seen]) -> str:
    """Return the table of all tasks."""
    rows = [
        [case.says, *(flower(seen[name, twin]) for twin in ("plain", "ours")),
         *(_exporter(seen[name, twin]) for twin in ("plain", "ours")), _metrics(seen[name, "ours"])]
        for name, case in CASES.items()
    ]  # fmt: skip
    return HEAD + "".join(f"| {' | '.join(row)} |\n" for row in rows)


def waiting(rows: Mapping[str, tuple[str, str]]) -> str:
    """Return the table of what shows a task that waits."""
    return WAITING_HEAD + "".join(f"| {what} | {plain} | {ours} |\n" for what, (plain, ours) in rows.items())


def on_page(page: Path) -> list[str]:
    """Return both tables as they are on the page."""
    return [found[0] for found in TABLES.finditer(page.read_text())]


def write(page: Path, tables: list[str]) -> None:
    """Replace both tables."""
    text = page.read_text()
    for old, new in zip(on_page(page), tables, strict=True):
        text = text.replace(old, new)
    page.write_text(text)


def flower(it: Seen) -> str:
    """Return what Flower shows of a task."""
    if not it.flower:
        return "nothing"
    return _state_in(it) + (", eta" if it.flower["eta"] else "")


def _state_in(it: Seen) -> str:
    """Return the state in Flower. Two processes report a retry of plain Celery, and either report may be the last."""
    is_held = it.events["task-received"] > it.events["task-started"] and it.flower["state"] in {"RETRY", "RECEIVED"}
    return "RETRY or RECEIVED" if is_held else it.flower["state"]


def _exporter(it: Seen) -> str:
    return ", ".join(
        f"{name} {count}{f' ({exception})' if exception else ''}"
        for name in COUNTED
        for (counter, exception), count in sorted(it.exporter.items())
        if counter == name
    ) or "nothing"  # fmt: skip


def _metrics(it: Seen) -> str:
    said = {
        "retries": "{count} retries" if it.metrics["retries", ""] > 1 else "1 retry",
        "recovered": "{count} recovered",
        "dead_letters": "{count} dead letter: {reason}",
    }
    return ", ".join(
        sentence.format(count=count, reason=reason)
        for name, sentence in said.items()
        for (counter, reason), count in it.metrics.items()
        if counter == name
    ) or "nothing"  # fmt: skip
