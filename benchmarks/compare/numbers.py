"""Percentiles, medians and how a figure is written."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

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


def ratio(one: float | None, other: float | None) -> float | None:
    """One by the other, if both are known."""
    return None if one is None or not other else one / other


def figure(value: float | None, unit: str = "") -> str:
    """Three digits are more than a shared machine is worth."""
    if value is None:
        return NONE
    return f"{value:,.0f}{unit}" if abs(value) >= WHOLE_FROM else f"{value:.3g}{unit}"
