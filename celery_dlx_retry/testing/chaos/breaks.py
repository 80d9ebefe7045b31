"""How a chaos run breaks its broker: it kills or stops its own node, or runs a command of the user's."""

from __future__ import annotations

import shlex
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import cycle
from typing import TYPE_CHECKING, Literal, TypeAlias

from celery_dlx_retry.errors import DLXError
from celery_dlx_retry.testing.broker import START_SECONDS
from celery_dlx_retry.testing.sandbox import wait_until

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator

    from celery_dlx_retry.testing.broker import RabbitMQ

Ways = Literal["both", "kill", "clean"]

LONGEST_OUTAGE_SECONDS = 3.0
COMMAND_SECONDS = 300


class RestartFailed(DLXError):
    """``command``, ``problem``."""

    sentence = "The broker was not restarted by `{command}`: {problem}."


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    """What was done, and when; ``is_crash`` if the broker had no time to write its data."""

    what: str
    at: float
    is_crash: bool


#: Take the broker down and bring it up again.
Break: TypeAlias = Callable[[], Broken]


def break_node(broker: RabbitMQ, chance: random.Random, *, ways: Ways) -> Break:
    """``kill -9`` and a clean stop in turn, or one of them, and some time without a broker."""
    next_kills = kills(ways)

    def run() -> Broken:
        broken = take_down(broker, "broker", kill=next(next_kills))
        outage(chance)
        broker.start()
        return broken

    return run


def break_by_command(broker: RabbitMQ, command: str) -> Broken:
    """Run the user's command, which restarts a broker; the broker must answer again afterwards."""
    begin = time.time()
    try:
        done = subprocess.run(  # noqa: S603 - the user's own command
            shlex.split(command), capture_output=True, text=True, timeout=COMMAND_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as exc:
        raise RestartFailed(command=command, problem=exc) from exc
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines() or [f"exit status {done.returncode}"]
        raise RestartFailed(command=command, problem=said[-1])
    if not wait_until(broker.answers, within=START_SECONDS):
        raise RestartFailed(command=command, problem=f"no answer within {START_SECONDS:.0f} s")
    return Broken(what=command, at=begin, is_crash=True)  # it may have been one


def kills(ways: Ways) -> Iterator[bool]:
    """Whether to kill, each time."""
    return cycle({"both": (True, False), "kill": (True,), "clean": (False,)}[ways])


def take_down(broker: RabbitMQ, name: str, *, kill: bool) -> Broken:
    """Kill the broker, or stop it cleanly."""
    begin = time.time()
    if kill:
        broker.kill()
    else:
        broker.stop()
    return Broken(what=f"{'kill -9' if kill else 'clean stop'} of {name}", at=begin, is_crash=kill)


def outage(chance: random.Random) -> None:
    """Let some time pass."""
    time.sleep(chance.uniform(0, LONGEST_OUTAGE_SECONDS))  # noqa: TID251 - the outage itself
