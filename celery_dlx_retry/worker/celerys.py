"""Tell Celery's own code from what somebody has put in its place."""

from __future__ import annotations

from types import FunctionType, MethodType
from typing import Any


def is_method(it: Any, module: str) -> bool:
    """Whether it is a method as this module defines it."""
    return type(it) is MethodType and is_function(it.__func__, module)


def is_function(it: Any, module: str) -> bool:
    """By the module that its code runs in: functools.wraps() copies names only, and a proxy of wrapt is no function."""
    return type(it) is FunctionType and it.__globals__.get("__name__") == module
