"""Numbered inputs from a seed: seed, surface and number name one input, which can be made again alone."""

from __future__ import annotations

import os
import re
import secrets
import signal
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SEED, INPUTS, ONLY = "DLX_FUZZ_SEED", "DLX_FUZZ_INPUTS", "DLX_FUZZ_ONLY"
CI_SEED = "14"
#: How many inputs each surface gets in every run. INPUTS scales them all.
SHARES = {
    "settings": 1400,
    "api": 1600,
    "urls": 700,
    "management": 150,
    "commands": 400,
    "imports": 500,
    "letters": 240,
    "messages": 400,
}
#: No single input takes longer than this on a busy machine. A test may allow more for a batch.
SECONDS = 20.0
AGAIN_SECONDS = 0.5
SHOWN_FAILURES = 8
SHOWN_CHARACTERS = 1_200


class Hung(BaseException):
    """An input took too long. No ``except Exception`` catches it."""


class Input(Random):
    """One input: a source of chance that remembers what was made from it, for the report of a failure."""

    def __init__(self, *, seed: str, surface: str, number: int) -> None:
        super().__init__(f"{seed} {surface} {number}")
        self.name, self.number = f"{surface}-{number}", number
        #: What marks the message that was made from it.
        self.token = ""
        self.made: list[str] = []

    def note(self, what: Any) -> None:
        """Remember what was made, as text."""
        self.made.append(what if isinstance(what, str) else repr(what))

    def one(self, *choices: Any) -> Any:
        """One of these; a function is called with this input."""
        chosen = self.choice(choices)
        return chosen(self) if callable(chosen) else chosen

    def is_one_in(self, count: int) -> bool:
        return self.randrange(count) == 0


def is_named(name: str, only: str) -> bool:
    """Whether ``letters-7`` is among these: ``letters-7``, or all of ``letters-0..29``."""
    first, _, last = only.partition("..")
    surface, _, number = name.rpartition("-")
    if not last:
        return name == first
    return surface == first.rpartition("-")[0] and int(first.rpartition("-")[2]) <= int(number) <= int(last)


@dataclass(slots=True)
class Fuzz:
    """A run: its seed, how many inputs each surface gets, and the one input that is asked for, if any."""

    seed: str
    scale: float
    only: str = ""
    failures: list[str] = field(default_factory=list)

    @classmethod
    def of_environment(cls) -> Fuzz:
        """The fixed seed of CI unless the environment names another; ``random`` draws one."""
        seed = os.environ.get(SEED) or CI_SEED
        total = int(os.environ.get(INPUTS) or sum(SHARES.values()))
        return cls(
            seed=secrets.token_hex(4) if seed == "random" else seed,
            scale=total / sum(SHARES.values()),
            only=os.environ.get(ONLY, ""),
        )

    def __str__(self) -> str:
        counts = ", ".join(f"{self.share(surface)} {surface}" for surface in SHARES)
        return f"fuzz: seed {self.seed}, {sum(map(self.share, SHARES))} inputs ({counts})"

    def share(self, surface: str) -> int:
        return max(1, round(SHARES[surface] * self.scale))

    def inputs(self, surface: str) -> Iterator[Input]:
        """All inputs of a surface, or the one that is asked for."""
        assert surface in SHARES
        for number in range(self.share(surface)):
            it = Input(seed=self.seed, surface=surface, number=number)
            if not self.only or is_named(it.name, self.only):
                yield it

    def each(self, surface: str, attempt: Callable[[Input], None]) -> None:
        """Try every input; what raises, and what takes too long, is a failure."""
        for it in self.inputs(surface):
            with self.judging(it):
                attempt(it)
        self.report()

    @contextmanager
    def judging(self, *inputs: Input, seconds: float = SECONDS) -> Iterator[None]:
        try:
            with limited(seconds):
                yield
        except (Exception, Hung) as exc:  # noqa: BLE001 - whatever it is, it is what a fuzzer looks for
            self.fail(f"{type(exc).__name__}: {exc}", *inputs)

    def fail(self, problem: str, *inputs: Input) -> None:
        """Remember a failure; of several inputs those are shown that the problem names."""
        only = inputs[0].name + (f"..{inputs[-1].number}" if len(inputs) > 1 else "")
        named = [it for it in inputs if it.token and re.search(rf"\b{it.token}\b", problem)]
        made = "\n           ".join(" ".join(it.made)[:SHOWN_CHARACTERS] for it in (named or inputs)[:2])
        self.failures.append(
            f"{only}: {problem[:SHOWN_CHARACTERS]}\n"
            f"    input: {made}\n"
            f"    again: make fuzz SEED={self.seed} INPUTS={sum(map(self.share, SHARES))} ONLY={only}"
        )

    def report(self) -> None:
        """Fail with the first failures, if there are any."""
        found, self.failures = self.failures, []
        kinds = {_kind(failure): failure for failure in reversed(found)}  # the first of each kind
        text = "\n".join(list(kinds.values())[-SHOWN_FAILURES:])
        if found:
            pytest.fail(f"{len(found)} inputs failed in {len(kinds)} ways, seed {self.seed}\n{text}", pytrace=False)


def _kind(failure: str) -> str:
    """What several failures have in common: the problem without its names and numbers."""
    problem = failure.partition(": ")[2].partition("\n")[0]
    return re.sub(r"'[^']*'|\"[^\"]*\"|[-\d.]+|<.*?>", "…", problem)[:120]


@contextmanager
def limited(seconds: float, error: type[BaseException] = Hung) -> Iterator[None]:
    """Raise the error in this thread when the time is up, also while it waits for a socket.

    It is raised again and again: a finalizer that runs at this moment swallows the first one.
    """
    assert threading.current_thread() is threading.main_thread()
    latest = time.monotonic() + seconds + SECONDS

    def strike(*_: Any) -> None:
        raise (error if time.monotonic() < latest else Hung)(f"still running after {seconds} s")

    before = signal.signal(signal.SIGALRM, strike)
    outer, _ = signal.setitimer(signal.ITIMER_REAL, seconds, AGAIN_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, outer, AGAIN_SECONDS if outer else 0)
