"""Percentiles, medians, ratios within a round, and how a figure is written."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    #: Rates of one contender, a round each; None where there was none.
    Rounds = Sequence[dict[str, float] | None]

NONE = "-"
WHOLE_FROM = 100


def percentile(values: Sequence[float], share: float) -> float:
    """The value that this share of them does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def middle(values: Iterable[float | None]) -> float | None:
    """The median of those that there are."""
    there = [value for value in values if value is not None]
    return median(there) if there else None


def typical(rounds: Rounds | None, name: str) -> float | None:
    """The median of this figure over the rounds."""
    return middle(each[name] for each in rounds or () if each)


def in_turns(formula: Callable[..., float | None], *contenders: Rounds | None) -> float | None:
    """The median of what a formula makes of each round.

    Within a round the contenders follow each other at once; by the next one a shared machine may be a third slower.
    """
    rounds: Iterable[tuple[Any, ...]] = zip(*(each or () for each in contenders), strict=False)
    return middle(formula(*each) for each in rounds if all(each))


def total_cpu(rate: dict[str, float]) -> float:
    """Of worker and broker, in ms."""
    return rate["worker_ms"] + rate["broker_ms"]


def ratio(one: float | None, other: float | None) -> float | None:
    """One by the other, if both are known."""
    return None if one is None or not other else one / other


def figure(value: float | None, unit: str = "") -> str:
    """Three digits are more than a shared machine is worth."""
    if value is None:
        return NONE
    return f"{value:,.0f}{unit}" if abs(value) >= WHOLE_FROM else f"{value:.3g}{unit}"
