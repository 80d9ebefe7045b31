"""Values that break things: numbers at the edges, text that steers terminals, tables without end."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from fractions import Fraction
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.fuzz.inputs import Input

#: Part of every password in a run. It is in no output.
SECRET = "hunter2-geheim"  # noqa: S105 - it is what must not show
LONGEST_NAME = 255

WHOLE = (
    *(0, 1, 2, 3, 7, 100, -1, -3, 255, 256, 65_535, 2**31 - 1, 2**31, 2**32, 2**53 + 1, 2**62, 2**63 - 1, -(2**63)),
    *(253_402_300_799_999, 253_402_300_800_000, 10**12, 10**18),
)
HUGE = (2**63, 2**64, -(2**63) - 1, 10**30, 10**400)
BROKEN = (0.0, -0.0, 0.1, 1.5, -1.5, 1e-9, 1e300, -1e300, 5e-324, float("nan"), float("inf"), float("-inf"))
WORDS = (
    *("", "x", "0", "-1", "1.5", "None", "null", "true", "nan", "inf", "-inf", "1e400", "soon", "[]", "{}", "*", "?"),
    *("[", "]", "[!a]", "a" * 300, "ä" * 200, "\x00", "\n", "\r\n", "a\nb", "\t", " ", " x ", "..", "../../etc/passwd"),
    *("/", "//", "\\", "%", "%s", "%(x)s", "%2F", "{queue}", "{0}", "{", "}", "{queue!r}", "$(id)", "`id`", ";", "|"),
    *("&", "'", '"', "amq.", "amq.direct", "amq.gen-1", "#", "*.#", "-", "--", "--help", "-x", "=", "a=b", ",", ",,"),
    *("\x1b[31m", "\x1b]0;title\x07", "\x9b31m", "\u202e", "\u2066", "\u2028", "\u2029", "\x85", "\ufeff", "\x7f"),
    *("[bold red]x[/]", "[/]", "[link=http://x]", "\U0001f600", "e\u0301", "١٢٣", "\uffff", "ﬀ", "\u0131", "celery"),
)
SURROGATES = ("\ud800", "x\udfffy", "\udcff")
TIMES = (
    dt.datetime(2020, 2, 2, 2, 2, 2),  # noqa: DTZ001 - AMQP's have no zone
    dt.datetime(1, 1, 1),  # noqa: DTZ001
    dt.datetime(9999, 12, 31, 23, 59, 59, tzinfo=dt.timezone.utc),
    dt.datetime.now(dt.timezone.utc) + dt.timedelta(days=400),
)
SPANS = (dt.timedelta(0), dt.timedelta(-1), dt.timedelta.max, dt.timedelta.min, dt.timedelta(microseconds=1))


class Thing:
    """Of no type that anything expects."""


def whole(it: Input) -> int:
    return it.one(*WHOLE, lambda it: it.randrange(100), lambda it: it.randrange(-(2**63), 2**63))


def number(it: Input) -> Any:
    return it.one(whole, whole, lambda it: it.choice(BROKEN), lambda it: it.uniform(-10, 1000))


def text(it: Input, *, surrogates: bool = False) -> str:
    """A word, or some of them in a row."""
    words = (*WORDS, *SURROGATES) if surrogates else WORDS
    if it.is_one_in(3):
        return "".join(it.choice(words) for _ in range(it.randrange(1, 4)))
    return it.choice(words)


def scalar(it: Input) -> Any:
    """What an AMQP header can hold, one level deep."""
    return it.one(
        lambda it: it.choice([None, True, False]),
        number,
        text,
        text,
        lambda it: it.randbytes(it.randrange(12)),
        Decimal("1.5"),
        TIMES[0],
    )


def tree(it: Input, depth: int = 3) -> Any:
    """What an AMQP header can hold."""
    kind = it.randrange(4) if depth else 0
    if kind == 2:
        return [tree(it, depth - 1) for _ in range(it.randrange(4))]
    if kind == 3:
        return {str(text(it))[:100]: tree(it, depth - 1) for _ in range(it.randrange(4))}
    return scalar(it)


def nested(depth: int) -> Any:
    value: Any = "bottom"
    for level in range(depth):
        value = {"k": value} if level % 2 else [value]
    return value


def anything(it: Input) -> Any:
    """Any value that a program may hand over by mistake."""
    return it.one(
        tree,
        number,
        text,
        lambda it: text(it, surrogates=True),
        lambda it: it.choice(HUGE),
        lambda it: it.choice(TIMES),
        lambda it: it.choice(SPANS),
        lambda it: it.choice(
            [dict, int, Thing, Exception, print, lambda: 1, lambda retry, _error: retry, Thing().__eq__]
        ),
        lambda _: Thing(),
        lambda _: Fraction(1, 3),
        lambda _: Decimal("NaN"),
        lambda _: range(3),
        lambda _: {1, 2},
        lambda _: (1, 2),
        lambda _: b"bytes",
        lambda _: object,
        lambda _: ValueError("an error"),
        lambda _: ...,
        lambda _: 1j,
        lambda _: nested(50),
    )
