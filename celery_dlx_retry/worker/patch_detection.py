"""Tell Celery's own code from what somebody has put in its place."""

from __future__ import annotations

from types import FunctionType, MethodType
from typing import Any

# What .map(), .starmap() and .chunks() of a task run as: their bodies are calls of that task.
_MAPS = frozenset({"celery.map", "celery.starmap", "celery.chunks"})


def is_internal(name: str | None) -> bool:
    """Return whether Celery runs the task of this name for itself: chord_unlock polls, and a poll is no failure."""
    return bool(name) and str(name).startswith("celery.") and not is_map(name)


def is_map(name: str | None) -> bool:
    """Return whether the task of this name calls another task for each item of a list."""
    return name in _MAPS


def is_method(it: Any, module: str) -> bool:
    """Whether it is a method as this module defines it."""
    return type(it) is MethodType and is_function(it.__func__, module)


def is_function(it: Any, module: str) -> bool:
    """By the module that its code runs in: functools.wraps() copies names only, and a proxy of wrapt is no function."""
    return type(it) is FunctionType and it.__globals__.get("__name__") == module
