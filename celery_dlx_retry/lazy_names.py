"""Public names that a package imports when they are first used."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping


def lazy_names(package: str, names: Mapping[str, Iterable[str]]) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a package; ``names`` has the public names of each module.

    pytest imports the package in every run, because our plugin is in it, and most runs use nothing of it.
    """
    modules = {name: module for module, its_names in names.items() for name in its_names}

    def get(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(f"celery_dlx_retry.{modules[name]}"), name)
        setattr(sys.modules[package], name, value)
        return value

    return get
