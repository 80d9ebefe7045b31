"""Types of options that click does not have: seconds, names of queues, and text that must not be empty."""

from __future__ import annotations

import math
from typing import Any

import click
from click.types import StringParamType

from celery_dlx_retry.values.queue_names import name_problem

#: The largest count in an option: more than any queue holds, and SQLite can store it.
MOST = 2**31 - 1
DAY_SECONDS = 86_400


class Seconds(click.FloatRange):
    """A range of seconds. click accepts NaN in every range."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return a finite float."""
        found = super().convert(value, param, ctx)
        if math.isnan(found):
            self.fail(f"{value!r} is not a number of seconds.", param, ctx)
        return found


class QueueName(StringParamType):
    """A name that a queue can have on the broker."""

    name = "name"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the value unchanged."""
        if problem := name_problem(value):
            self.fail(f"{value!r:.80} is not the name of a queue: {problem}.", param, ctx)
        return str(value)


class QueueNames(StringParamType):
    """Names of queues, separated by commas."""

    name = "names"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return a tuple of the names."""
        names = [name.strip() for name in str(value).split(",") if name.strip()]
        if not names:
            self.fail("it names no queue.", param, ctx)
        return tuple(QueueName().convert(name, param, ctx) for name in names)


class NotEmpty(StringParamType):
    """Text that is not empty. An empty text is usually a shell variable that is not set, and would select too much."""

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the value unchanged."""
        if not value:
            self.fail("it is empty. Is a variable of your shell not set?", param, ctx)
        return str(value)


COUNT = click.IntRange(min=1, max=MOST)
QUEUE_NAME, QUEUE_NAMES, TEXT = QueueName(), QueueNames(), NotEmpty()
