"""How a dlx_* setting is written in an app's configuration, and what people write instead."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

from celery_dlx_retry.core.settings import NAMES
from celery_dlx_retry.errors import UnknownSetting

if TYPE_CHECKING:
    from collections.abc import Iterable

# What Django's projects write, and Celery reads if it is told to: namespace="CELERY".
_USUAL = "celery_"


def settings_in(keys: Iterable[str], *, namespace: str = "") -> dict[str, str]:
    """Each setting that a configuration has, with the key that it has there; UnknownSetting for a slip.

    Under a namespace, as ``"CELERY"``, the key is ``CELERY_DLX_PREFIX``; set on the app itself it is ``dlx_prefix``.
    """
    prefix = _prefix(namespace)
    found: dict[str, str] = {}
    for key in keys:
        name = key.lower().removeprefix(prefix)
        is_under_namespace = bool(prefix) and name != key.lower()
        if name.startswith("dlx_") and (is_under_namespace or name == key):
            if name not in NAMES:
                raise _slip(key, name, prefix if is_under_namespace else "")
            found[name] = key
        elif _is_misplaced(name, prefix):
            raise _slip(key, name.removeprefix(_USUAL), prefix)
    return found


def insist_on_capitals(keys: Iterable[str], *, namespace: str) -> None:
    """UnknownSetting for what Django overlooks: ``CELERY_dlx_prefix`` in a module of settings is none to it."""
    prefix = _prefix(namespace)
    for key in keys:
        name = key.lower().removeprefix(prefix)
        if name in NAMES and not key.isupper():
            raise _slip(key, name, prefix)


def _prefix(namespace: str) -> str:
    return f"{namespace.removesuffix('_')}_".lower() if namespace else ""


def _is_misplaced(name: str, prefix: str) -> bool:
    """``DLX_PREFIX`` in capitals, or without a namespace ``CELERY_DLX_PREFIX``; else it may be somebody else's."""
    own = name if prefix else name.removeprefix(_USUAL)
    return own.startswith("dlx_") and bool(difflib.get_close_matches(own, NAMES, n=1))


def _slip(key: str, name: str, prefix: str) -> UnknownSetting:
    """Both names as they are written there."""
    close = difflib.get_close_matches(name, NAMES, n=1)
    right = [f"{prefix}{each}".upper() if prefix else each for each in close or sorted(NAMES)]
    suggestion = f"Did you mean {right[0]!r}?" if close else f"The settings are {', '.join(right)}."
    return UnknownSetting(setting=key, suggestion=suggestion)
