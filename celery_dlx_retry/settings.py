"""Every dlx_* setting: default, meaning, validation."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Literal

from celery_dlx_retry.errors import InvalidDelay, InvalidPolicy, InvalidSetting, UnknownSetting
from celery_dlx_retry.policy.budget import Budget, as_budget
from celery_dlx_retry.policy.policies import MAX_DELAY_MS
from celery_dlx_retry.values.durations import is_count, is_number, to_ms
from celery_dlx_retry.values.queue_names import new_name_problem

if TYPE_CHECKING:
    from collections.abc import Mapping

QueueType = Literal["classic", "quorum"]

# An AMQP short string holds 255 bytes; the longest name that we make adds 55 to the prefix.
_NAME = re.compile(r"(?!amq\.)[A-Za-z0-9_.:-]{1,100}")
A_PREFIX = "1 to 100 letters, digits, dots, dashes, colons or _, without RabbitMQ's own 'amq.' in front"
_MOST_WAITING = 999_999_999
_MOST_BULKHEADS = 999
_YEAR_MS = 365 * 24 * 3600 * 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What ``app.conf`` says about us, checked; the attribute is the setting without its ``dlx_``."""

    #: First part of every broker name that we make. Two apps with one prefix share lanes; with two they stay apart.
    prefix: str = "dlx"

    #: Type of lanes and dead-letter queues. Classic lanes may lose what is up just when the broker goes down.
    queue_type: QueueType = "quorum"

    #: Name of the dead-letter queues. Without {queue} all work queues share one.
    dead_letter_queue: str = "{queue}.dead"

    #: How many sets of lanes the work queues share. None: each work queue has its own lanes.
    bulkheads: int | None = None

    #: A delay that no task announced is rounded up to the next lane; each is at most this much longer than the last.
    grid: float = 1.2

    #: No retry waits longer. Asking for more is an error, and the task a dead letter.
    max_delay_ms: int = _YEAR_MS

    #: How long an idle classic lane of the grid stays before RabbitMQ deletes it. 0: it stays for good.
    lane_expires_ms: int = 0

    #: True: apply_async(countdown=…) and (eta=…) wait in the broker. False: Celery's own way, in the worker.
    countdown: bool = True

    #: The lowest rung of the ladder, on which countdowns and etas wait: they are rounded up to it.
    ladder_resolution_ms: int = 100

    #: The ladder has rungs up to this length. What is to wait longer than all of them together goes down twice.
    ladder_range_ms: int = _YEAR_MS

    #: False: never declare anything, only check that it is there (for apps without the configure permission).
    declare: bool = True

    #: How long a publish may wait for the broker's confirm before the task goes back to its queue.
    confirm_timeout_ms: int = 10_000

    #: How often a task may take its pool process down (out of memory, killed, crashed) before it is a dead letter.
    crash_limit: int = 3

    #: How many retries all tasks of a process without a budget of their own may have together. None: no limit.
    budget: Budget | None = None

    #: How many messages may wait in each lane; what it refuses is beyond the budget. None: no limit.
    max_waiting: int | None = None

    #: True: a broker that is not RabbitMQ is an error. False: Celery's own retries are used there, with one warning.
    require_rabbitmq: bool = False

    def __post_init__(self) -> None:
        if not is_prefix(self.prefix):
            raise InvalidSetting(setting="dlx_prefix", value=self.prefix, wanted=A_PREFIX)
        if self.queue_type not in ("classic", "quorum"):
            raise InvalidSetting(setting="dlx_queue_type", value=self.queue_type, wanted='"classic" or "quorum"')
        if not _is_pattern(self.dead_letter_queue):
            raise InvalidSetting(
                setting="dlx_dead_letter_queue",
                value=self.dead_letter_queue,
                wanted="1 to 200 bytes of printable text, without 'amq.' in front, in which {queue} may stand for the "
                'name of the work queue, and not "{queue}" alone',
            )
        if not is_number(self.grid) or not 1.01 <= self.grid <= 2:  # noqa: PLR2004 - the sentence names both
            raise InvalidSetting(setting="dlx_grid", value=self.grid, wanted="a number from 1.01 to 2")
        if not is_count(self.crash_limit) or self.crash_limit < 1:
            raise InvalidSetting(setting="dlx_crash_limit", value=self.crash_limit, wanted="a whole number from 1 on")
        self._check_limits()
        for name in ("countdown", "declare", "require_rabbitmq"):
            if not isinstance(getattr(self, name), bool):
                raise InvalidSetting(setting=f"dlx_{name}", value=getattr(self, name), wanted="True or False")
        self._check_lengths()

    def _check_lengths(self) -> None:
        for name in ("max_delay_ms", "confirm_timeout_ms"):
            if not 1 <= getattr(self, name) <= MAX_DELAY_MS:
                raise InvalidSetting(
                    setting=f"dlx_{name.removesuffix('_ms')}",
                    value=getattr(self, name),
                    wanted=f"from 1 to {MAX_DELAY_MS} ms, which is ten years and RabbitMQ's longest TTL",
                )
        if self.lane_expires_ms and not 2 * self.lane_margin_ms <= self.lane_expires_ms <= _YEAR_MS:
            raise InvalidSetting(
                setting="dlx_lane_expires",
                value=self.lane_expires_ms,
                wanted=f"0, or from {2 * self.lane_margin_ms} to {_YEAR_MS} ms",
            )
        # From these two follows that no ladder has more than 35 rungs.
        if not 10 <= self.ladder_resolution_ms <= 60_000:  # noqa: PLR2004 - the sentence names both
            raise InvalidSetting(
                setting="dlx_ladder_resolution", value=self.ladder_resolution_ms, wanted="from 10 to 60000 ms"
            )
        if not self.ladder_resolution_ms <= self.ladder_range_ms <= MAX_DELAY_MS:
            raise InvalidSetting(
                setting="dlx_ladder_range",
                value=self.ladder_range_ms,
                wanted=f"from dlx_ladder_resolution to {MAX_DELAY_MS} ms, which is ten years",
            )

    @property
    def lane_margin_ms(self) -> int:
        """How long a message may be on its way into an expiring lane, or stay in it after its time is up."""
        return self.confirm_timeout_ms + 60_000

    def _check_limits(self) -> None:
        if self.budget is not None:
            object.__setattr__(self, "budget", _budget(self.budget))
        if self.max_waiting is not None and not (is_count(self.max_waiting) and 1 <= self.max_waiting <= _MOST_WAITING):
            wanted = f"a whole number from 1 to {_MOST_WAITING}, or None"
            raise InvalidSetting(setting="dlx_max_waiting", value=self.max_waiting, wanted=wanted)
        if self.bulkheads is not None and not (is_count(self.bulkheads) and 1 <= self.bulkheads <= _MOST_BULKHEADS):
            wanted = f"a whole number from 1 to {_MOST_BULKHEADS}, or None"
            raise InvalidSetting(setting="dlx_bulkheads", value=self.bulkheads, wanted=wanted)

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> Settings:
        """Make them from configuration: ``{"dlx_prefix": "shop", "dlx_confirm_timeout": 5}``, seconds as seconds."""
        return cls().changed(values)

    def changed(self, values: Mapping[str, Any]) -> Settings:
        """The same with other values, as a worker's flags give them."""
        changes: dict[str, Any] = {}
        for setting, value in values.items():
            if setting not in _ATTRIBUTES:
                raise UnknownSetting(setting=setting, suggestion=_suggestion(setting))
            attribute = _ATTRIBUTES[setting]
            changes[attribute] = _ms(setting, value) if attribute.endswith("_ms") else value
        return replace(self, **changes)


_ATTRIBUTES = {f"dlx_{field.name.removesuffix('_ms')}": field.name for field in fields(Settings)}

#: Of all settings.
NAMES = frozenset(_ATTRIBUTES)


def _ms(setting: str, value: Any) -> int:
    try:
        return to_ms(value, what=setting)
    except InvalidDelay as exc:
        wanted = "a timedelta or a number of seconds, finite and not negative"
        raise InvalidSetting(setting=setting, value=value, wanted=wanted) from exc


def _budget(value: Any) -> Budget:
    try:
        return as_budget(value)
    except InvalidPolicy as exc:
        wanted = "a Budget, a share (a number above 0), or None"
        raise InvalidSetting(setting="dlx_budget", value=value, wanted=wanted) from exc


def _suggestion(setting: str) -> str:
    close = difflib.get_close_matches(setting, _ATTRIBUTES, n=1)
    return f"Did you mean {close[0]!r}?" if close else f"The settings are {', '.join(sorted(_ATTRIBUTES))}."


def is_prefix(value: Any) -> bool:
    """Return whether names on the broker may begin with it."""
    return isinstance(value, str) and _NAME.fullmatch(value) is not None


def _is_pattern(value: Any) -> bool:
    if not isinstance(value, str) or not value or value == "{queue}":
        return False
    rest = value.replace("{queue}", "")
    return not {"{", "}"} & set(rest) and not new_name_problem(value, most=200)  # which leaves room for the queue
