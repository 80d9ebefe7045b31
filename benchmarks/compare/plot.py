"""The figures as bars: one panel for each measure, one colour for each contender."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from matplotlib.figure import Figure

from benchmarks.compare.contenders import ALL, BY_KEY
from benchmarks.compare.numbers import figure, typical

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.compare.run import Results

COLOURS = {
    "countdown": "#b0b0b0", "native": "#7a7a7a", "classic": "#d9603b", "quorum": "#3b82c4",
    "policy": "#5f9bd1", "all_quorum": "#8fb8de", "floor": "#d8c8a0", "quorum_floor": "#cbb98a", "pipelined": "#c0a860",
}  # fmt: skip
LOGARITHMIC_FROM = 50  # times between the smallest and the greatest


def panels(found: Results) -> dict[str, dict[str, Any]]:
    """Title and values by contender."""
    all_of: dict[str, dict[str, Any]] = {}
    throughput = found.get("throughput") or {}
    for pool, rates in {**throughput, **(found.get("pools") or {})}.items():
        all_of[f"retries per second, {pool}"] = _medians(rates, "per_second")
    for pool, rates in throughput.items():
        all_of[f"worker CPU per retry, ms, {pool}"] = _medians(rates, "worker_ms")
        all_of[f"broker CPU per retry, ms, {pool}"] = _medians(rates, "broker_ms")
    late = found.get("lateness") or {}
    for who, text in (("beside", "beside a crowd"), ("crowd", "of a crowd")):
        all_of[f"lateness p99 {text}, ms"] = {key: it[who]["p99"] for key, it in late.items() if it[who]}
    waiting = found.get("waiting") or {}
    most = max((int(depth) for it in waiting.values() for depth in it["worker_mb"]), default=0)
    all_of[f"worker memory, {most:,} waiting, MB"] = {
        key: it["worker_mb"].get(str(most)) for key, it in waiting.items()
    }
    all_of[f"first task after kill -9, {most:,} waiting, s"] = {
        key: it["recovery_seconds"] for key, it in waiting.items() if str(most) in it["worker_mb"]
    }
    those = {title: {key: value for key, value in bars.items() if value is not None} for title, bars in all_of.items()}
    return {title: bars for title, bars in those.items() if bars}


def draw(found: Results, path: Path) -> None:
    """Write the picture."""
    shown = panels(found)
    columns, rows = 2, max(1, -(-len(shown) // 2))
    picture = Figure(figsize=(12, 2.1 * rows), layout="constrained")
    axes = picture.subplots(rows, columns, squeeze=False)
    for axis in axes.flat[len(shown) :]:
        axis.set_visible(False)
    for axis, (title, bars) in zip(axes.flat, shown.items(), strict=False):
        keys = [each.key for each in reversed(ALL) if each.key in bars]
        values = [max(bars[key], 0.0) for key in keys]
        drawn = axis.barh([BY_KEY[key].title for key in keys], values, color=[COLOURS[key] for key in keys])
        axis.bar_label(drawn, [figure(bars[key]) for key in keys], padding=3, fontsize=8)
        above = [value for value in values if value > 0]
        if above and max(above) > LOGARITHMIC_FROM * min(above):
            axis.set_xscale("log")
        axis.margins(x=0.15)
        axis.set_title(f"{title} (log)" if axis.get_xscale() == "log" else title, fontsize=8.5, loc="left")
        axis.tick_params(labelsize=8)
        axis.spines[["top", "right"]].set_visible(False)
    picture.savefig(path, dpi=110, metadata={"Software": None})


def _medians(rates: Results, name: str) -> dict[str, Any]:
    return {key: typical(rounds, name) for key, rounds in rates.items() if key in BY_KEY}
