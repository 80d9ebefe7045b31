"""Every dlx_* setting: default, meaning, validation."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Literal

from celery_dlx_retry.errors import InvalidDelay, InvalidPolicy, InvalidSetting, UnknownSetting
from celery_dlx_retry.policy.budget import Budget, as_budget
from celery_dlx_retry.policy.policies import MAX_DELAY_MS
from celery_dlx_retry.values.durations import is_count, is_number, to_ms
from celery_dlx_retry.values.queue_names import new_name_problem

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

QueueType = Literal["classic", "quorum"]

# An AMQP short string holds 255 bytes; the longest name that we make adds 55 to the prefix.
_NAME = re.compile(r"(?!amq\.)[A-Za-z0-9_.:-]{1,100}")
A_PREFIX = "1 to 100 letters, digits, dots, dashes, colons or _, and must not start with RabbitMQ's 'amq.'"
_A_PATTERN = (
    "1 to 200 bytes of printable text that does not start with 'amq.', and more than {queue}, which is replaced by the "
    "name of the work queue"
)
_MOST_WAITING = 999_999_999
_MOST_BULKHEADS = 999
_YEAR_MS = 365 * 24 * 3600 * 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The checked ``dlx_*`` settings of ``app.conf``. An attribute is the setting without ``dlx_``."""

    #: The first part of every name that we make on the broker. Two apps with the same prefix share lanes.
    prefix: str = "dlx"

    #: Type of lanes and dead-letter queues. Classic lanes may lose messages that come due while the broker goes down.
    queue_type: QueueType = "quorum"

    #: Name of the dead-letter queues. Without {queue} all work queues share one.
    dead_letter_queue: str = "{queue}.dead"

    #: How many sets of lanes the work queues share. None: each work queue has its own lanes.
    bulkheads: int | None = None

    #: A delay that no task announced is rounded up to the next lane; each lane is at most this factor longer.
    grid: float = 1.2

    #: The longest wait of a retry. A retry that asks for more is an error, and its task becomes a dead letter.
    max_delay_ms: int = _YEAR_MS

    #: How long an idle classic lane of the grid stays before RabbitMQ deletes it. 0: it stays for good.
    lane_expires_ms: int = 0

    #: True: apply_async(countdown=…) and (eta=…) wait in the broker. False: in the worker, as Celery does it.
    countdown: bool = True

    #: The length of the lowest rung of the ladder. Countdowns and etas wait there, rounded up to it.
    ladder_resolution_ms: int = 100

    #: The ladder has rungs up to this length. A message that waits longer than all of them together passes it twice.
    ladder_range_ms: int = _YEAR_MS

    #: False: only check that queues and exchanges exist (for users without the configure permission).
    declare: bool = True

    #: How long a publish waits for the broker's confirm before the task goes back to its queue.
    confirm_timeout_ms: int = 10_000

    #: How often a task may crash its pool process (out of memory, killed) before it becomes a dead letter.
    crash_limit: int = 3

    #: The budget that all tasks of a process share which have no other one. None: no limit.
    budget: Budget | None = None

    #: How many messages may wait in each lane; a retry that the lane refuses is over budget. None: no limit.
    max_waiting: int | None = None

    #: Findings of `celery dlx doctor` that are known: codes, or a code, a colon and a part of the fact.
    doctor_accept: tuple[str, ...] = ()

    #: True: a broker that is not RabbitMQ is an error. False: Celery's own retries are used there, with one warning.
    require_rabbitmq: bool = False

    def __post_init__(self) -> None:
        if self.budget is not None:
            object.__setattr__(self, "budget", _budget(self.budget))
        if isinstance(self.doctor_accept, list):
            object.__setattr__(self, "doctor_accept", tuple(self.doctor_accept))
        for name, is_right, wanted in self._checks():
            if not is_right:
                setting = f"dlx_{name.removesuffix('_ms')}"
                raise InvalidSetting(setting=setting, value=getattr(self, name), wanted=wanted)

    def _checks(self) -> Iterator[tuple[str, bool, str]]:
        """Yield each field that has limits, whether its value is right, and what it must be."""
        yield "prefix", is_prefix(self.prefix), A_PREFIX
        yield "queue_type", self.queue_type in ("classic", "quorum"), '"classic" or "quorum"'
        yield "dead_letter_queue", _is_pattern(self.dead_letter_queue), _A_PATTERN
        yield "grid", is_number(self.grid) and 1.01 <= self.grid <= 2, "a number from 1.01 to 2"  # noqa: PLR2004
        is_right = isinstance(self.doctor_accept, tuple) and all(
            isinstance(it, str) and it for it in self.doctor_accept
        )
        yield "doctor_accept", is_right, 'a list of codes, such as ["shared-prefix", "no-consumer:orders"]'
        yield "crash_limit", is_count(self.crash_limit) and self.crash_limit >= 1, "a whole number from 1 on"
        for name, most in (("max_waiting", _MOST_WAITING), ("bulkheads", _MOST_BULKHEADS)):
            value = getattr(self, name)
            is_right = value is None or (is_count(value) and 1 <= value <= most)
            yield name, is_right, f"a whole number from 1 to {most}, or None"
        for name in ("countdown", "declare", "require_rabbitmq"):
            yield name, isinstance(getattr(self, name), bool), "True or False"
        ten_years = f"from 1 to {MAX_DELAY_MS} ms, which is ten years and RabbitMQ's longest TTL"
        for name in ("max_delay_ms", "confirm_timeout_ms"):
            yield name, 1 <= getattr(self, name) <= MAX_DELAY_MS, ten_years
        shortest_ms, expires_ms = 2 * self.lane_margin_ms, self.lane_expires_ms
        is_right = not expires_ms or shortest_ms <= expires_ms <= _YEAR_MS
        yield "lane_expires_ms", is_right, f"0, or from {shortest_ms} to {_YEAR_MS} ms"
        # With these two limits no ladder has more than 35 rungs.
        resolution_ms = self.ladder_resolution_ms
        yield "ladder_resolution_ms", 10 <= resolution_ms <= 60_000, "from 10 to 60000 ms"  # noqa: PLR2004
        wanted = f"from dlx_ladder_resolution to {MAX_DELAY_MS} ms, which is ten years"
        yield "ladder_range_ms", resolution_ms <= self.ladder_range_ms <= MAX_DELAY_MS, wanted

    @property
    def lane_margin_ms(self) -> int:
        """How long a publish into an expiring lane may take, or a message stay there after its time is up."""
        return self.confirm_timeout_ms + 60_000

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> Settings:
        """Return the settings from a configuration in seconds: ``{"dlx_prefix": "shop", "dlx_confirm_timeout": 5}``."""
        return cls().changed(values)

    def changed(self, values: Mapping[str, Any]) -> Settings:
        """Return these settings with other values, for example from the flags of a worker."""
        changes: dict[str, Any] = {}
        for setting, value in values.items():
            if setting not in _ATTRIBUTES:
                raise unknown_setting(setting)
            attribute = _ATTRIBUTES[setting]
            changes[attribute] = _ms(setting, value) if attribute.endswith("_ms") else value
        return replace(self, **changes)


_ATTRIBUTES = {f"dlx_{field.name.removesuffix('_ms')}": field.name for field in fields(Settings)}

#: The names of all settings.
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


def unknown_setting(key: str, *, name: str = "", prefix: str = "") -> UnknownSetting:
    """Return the error for a key that is not a setting, with the nearest name as it is written under this prefix."""
    import difflib  # noqa: PLC0415 - for a misspelled setting only

    close = difflib.get_close_matches(name or key, _ATTRIBUTES, n=1)
    right = [f"{prefix}{it}".upper() if prefix else it for it in close or sorted(_ATTRIBUTES)]
    suggestion = f"Did you mean {right[0]!r}?" if close else f"The settings are {', '.join(right)}."
    return UnknownSetting(setting=key, suggestion=suggestion)


def is_prefix(value: Any) -> bool:
    """Return whether it can be the setting dlx_prefix."""
    return isinstance(value, str) and _NAME.fullmatch(value) is not None


def _is_pattern(value: Any) -> bool:
    if not isinstance(value, str) or not value or value == "{queue}":
        return False
    rest = value.replace("{queue}", "")
    return not {"{", "}"} & set(rest) and not new_name_problem(value, most=200)  # which leaves room for the queue
