"""Convert durations: users write seconds, the broker counts milliseconds."""

from __future__ import annotations

import math
from datetime import timedelta
from fractions import Fraction
from typing import TypeAlias, TypeGuard

from celery_dlx_retry.errors import InvalidDelay
from celery_dlx_retry.sentences import LARGEST

Seconds: TypeAlias = int | float | timedelta

_SECOND_MS = 1000
_UNITS = (("day", 86_400_000), ("h", 3_600_000), ("min", 60_000))
_LAST_EXACT = 2**53  # from here on a float may differ from the number that was typed


def to_ms(value: Seconds, *, what: str) -> int:
    """Return whole milliseconds, rounded up: a delay may be late, never early.

    ``what`` names the value in the error: ``"Fixed.delay"``.
    """
    if (type(value) is int or type(value) is float) and 0 <= value < _LAST_EXACT and value == int(value):
        return int(value) * 1000  # most delays; faster than fractions
    if isinstance(value, timedelta):
        # Not total_seconds(): it returns a float, which loses microseconds beyond 270 years.
        milliseconds = Fraction(value // timedelta(microseconds=1), 1000)
    elif is_number(value):
        milliseconds = as_fraction(value) * 1000
    else:
        raise InvalidDelay(what=what, value=value)
    if milliseconds < 0:
        raise InvalidDelay(what=what, value=value)
    return math.ceil(milliseconds)


def format_duration(milliseconds: int) -> str:
    """Return a duration for a sentence, unrounded: ``4000 days``, ``1 h 30 min``, ``5.001 s``, ``90 ms``."""
    if 0 < milliseconds < _SECOND_MS:
        return f"{milliseconds} ms"
    parts, rest = [], milliseconds
    for unit, length_ms in _UNITS:
        count, rest = divmod(rest, length_ms)
        parts += [f"{count} {unit}{'s' if unit == 'day' and count != 1 else ''}"] if count else []
    if rest or not parts:
        parts.append(f"{rest / _SECOND_MS:.3f}".rstrip("0").rstrip(".") + " s")
    return " ".join(parts)


def is_number(value: object) -> bool:
    """Return whether it is a finite int or float, not a bool, and not an int that Python cannot print."""
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < LARGEST


def is_count(value: object) -> TypeGuard[int]:
    """Return whether it is a whole number from 0 on."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < LARGEST


def as_fraction(value: float) -> Fraction:
    """Return the number that was typed: 1.1 is 11/10, not 1.100000000000000088…, which would round up to 1101 ms."""
    # float's own repr, because subclasses (NumPy's) have another one.
    return Fraction(float.__repr__(value)) if isinstance(value, float) else Fraction(value)
