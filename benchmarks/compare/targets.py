"""What we mean to reach, as ratios within one run, and whether we did."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.compare.numbers import figure, in_turns, middle, ratio, total_cpu

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.compare.run import Results

#: Ours, and the floor that has the same lane.
OURS = {"classic": "floor", "quorum": "quorum_floor"}
PREFORK = "prefork"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """``least`` or ``most`` is the bound; a value of None could not be measured."""

    text: str
    value: float | None
    least: float | None = None
    most: float | None = None
    unit: str = " times"

    @property
    def wanted(self) -> str:
        """The bound."""
        if self.least is not None:
            return f"≥ {self.least:g}{self.unit}"
        return f"≤ {self.most:g}{self.unit}"

    @property
    def measured(self) -> str:
        """The value."""
        return figure(self.value, self.unit)

    @property
    def verdict(self) -> str:
        """Met, missed, or unknown."""
        if self.value is None:
            return "not measured"
        is_met = self.value >= self.least if self.least is not None else self.value <= (self.most or 0)
        return "met" if is_met else "**missed**"


def targets(found: Results) -> Iterator[Target]:
    """Yield the targets that these results can answer."""
    rates = (found.get("throughput") or {}).get(PREFORK) or {}
    for ours, floor in OURS.items():
        yield from _throughput(rates, ours, floor)
        yield from _beside_native(rates, ours)
        yield from _waiting(found.get("waiting") or {}, ours)
        yield from _fresh(found.get("fresh") or {}, ours)
        yield from _lateness(found.get("lateness") or {}, ours)
        yield from _growth((found.get("growth") or {}).get(ours) or {}, ours)
        yield from _start(found.get("start") or {}, ours)
    yield from _beside_native(rates, "all_quorum")


def _throughput(rates: Results, ours: str, floor: str) -> Iterator[Target]:
    if not (mine := rates.get(ours)):
        return
    yield Target(text=f"{ours}: retries/s, of countdown's", value=_times("per_second", rates, ours), least=1.3)
    yield Target(
        text=f"{ours}: CPU, of the floor's with such a lane and a plain task's together",
        value=in_turns(
            lambda it, least, task: ratio(total_cpu(it), total_cpu(least) + total_cpu(task)),
            *(mine, rates.get(floor), rates.get("plain")),
        ),
        most=1.5,
    )
    yield Target(text=f"{ours}: broker CPU, of countdown's", value=_times("broker_ms", rates, ours), most=1.5)


def _beside_native(rates: Results, ours: str) -> Iterator[Target]:
    if ours in rates:
        whose = "of native delayed delivery's"
        yield Target(
            text=f"{_name(ours)}: retries/s, {whose}", value=_times("per_second", rates, ours, "native"), least=2
        )
        yield Target(
            text=f"{_name(ours)}: broker CPU, {whose}", value=_times("broker_ms", rates, ours, "native"), most=0.25
        )


def _times(name: str, rates: Results, ours: str, theirs: str = "countdown") -> float | None:
    return in_turns(lambda one, other: ratio(one[name], other[name]), rates.get(ours), rates.get(theirs))


def _name(ours: str) -> str:
    return "quorum, with a quorum work queue" if ours == "all_quorum" else ours


def _waiting(waiting: Results, ours: str) -> Iterator[Target]:
    if not (mine := waiting.get(ours)) or not mine["worker_mb"]:
        return
    depth, grown = max(mine["worker_mb"].items(), key=lambda item: int(item[0]))
    theirs = ((waiting.get("countdown") or {}).get("worker_mb") or {}).get(depth)
    many = f"{int(depth):,} waiting"
    yield Target(text=f"{ours}: worker memory, {many}, of countdown's", value=ratio(grown, theirs), most=0.02)
    yield Target(text=f"{ours}: worker memory, {many}", value=grown, most=5, unit=" MB")
    costs = {int(each): cost for each, cost in mine["retry_ms"].items() if int(each)}
    if len(costs) > 1:
        yield Target(
            text=f"{ours}: CPU of one more retry, {max(costs):,} waiting, of {min(costs):,} waiting",
            value=ratio(costs[max(costs)], costs[min(costs)]),
            most=1.2,
        )


def _fresh(fresh: Results, ours: str) -> Iterator[Target]:
    for rabbitmq, those in fresh.items():
        mine = those.get(ours) or {}
        if mine.get("idle"):
            yield Target(
                text=f"{ours}: latency of new tasks, {mine['waiting']:,} waiting, of idle, RabbitMQ {rabbitmq}",
                value=middle(mine["times"]) if mine["beside"] else None,
                most=1.1,
            )


def _lateness(late: Results, ours: str) -> Iterator[Target]:
    if not (mine := late.get(ours)) or not mine["beside"] or not mine["crowd"]:
        return
    for who, text in (("crowd", "of a crowd"), ("beside", "beside a crowd")):
        native = (late.get("native") or {}).get(who) or {}
        yield Target(
            text=f"{ours}: lateness p99 {text}, of native delayed delivery's",
            value=ratio(mine[who]["p99"], native.get("p99")),
            most=0.1,
        )
    yield Target(text=f"{ours}: early", value=float(sum(it["early"] for it in mine.values() if it)), most=0, unit="")


def _growth(growth: Results, ours: str) -> Iterator[Target]:
    if growth:
        few, many = min(growth, key=int), max(growth, key=int)
        yield Target(
            text=f"{ours}: CPU of a retry with {many} work queues, of {few}",
            value=in_turns(lambda more, less: ratio(total_cpu(more), total_cpu(less)), growth[many], growth[few]),
            most=1.2,
        )


def _start(start: Results, ours: str) -> Iterator[Target]:
    mine, theirs = (start.get(key) or {} for key in (ours, "countdown"))
    if mine.get("again") and theirs.get("again"):
        value = 1000 * (mine["again"] - theirs["again"])
        text = f"{ours}: start with 200 tasks and 30 lanes, more than Celery's own"
        yield Target(text=text, value=value, most=200, unit=" ms")
