"""How a dlx_* setting is written in an app's configuration, and what people write instead."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

from celery_dlx_retry.errors import UnknownSetting
from celery_dlx_retry.settings import NAMES

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
    keys = set(keys)
    for key in sorted(keys):
        name = key.lower().removeprefix(prefix)
        is_under_namespace = bool(prefix) and name != key.lower()
        if name.startswith("dlx_") and (is_under_namespace or name == key):
            if name not in NAMES:
                raise _slip(key, name, prefix if is_under_namespace else "")
            found[name] = key
        elif (own := _misplaced(name, prefix)) and keys.isdisjoint({own, f"{prefix}{own}".upper()} - {key}):
            raise _slip(key, own, prefix)
    return found


def is_setting(key: str) -> bool:
    """Return whether a key of a configuration ends in the name of a setting, under whatever namespace."""
    return f"dlx_{key.lower().rpartition('dlx_')[2]}" in NAMES


def insist_on_capitals(keys: Iterable[str], *, namespace: str) -> None:
    """UnknownSetting for what Django overlooks: ``CELERY_dlx_prefix`` in a module of settings is none to it."""
    prefix = _prefix(namespace)
    keys = set(keys)
    for key in sorted(keys):
        name = key.lower().removeprefix(prefix)
        # With the right one beside it, it is only what that was computed from.
        if name in NAMES and not key.isupper() and f"{prefix}{name}".upper() not in keys:
            raise _slip(key, name, prefix)


def _prefix(namespace: str) -> str:
    return f"{namespace.removesuffix('_')}_".lower() if namespace else ""


def _misplaced(name: str, prefix: str) -> str:
    """``DLX_PREFIX`` in capitals, or without a namespace ``CELERY_DLX_PREFIX``: the setting that is meant.

    Not what is only similar: ``DLX_QUEUE`` and ``DLX_EXCHANGE`` are names that projects have for things of their own.
    """
    own = name if prefix else name.removeprefix(_USUAL)
    return own if own in NAMES else ""


def _slip(key: str, name: str, prefix: str) -> UnknownSetting:
    """Both names as they are written there."""
    close = difflib.get_close_matches(name, NAMES, n=1)
    right = [f"{prefix}{each}".upper() if prefix else each for each in close or sorted(NAMES)]
    suggestion = f"Did you mean {right[0]!r}?" if close else f"The settings are {', '.join(right)}."
    return UnknownSetting(setting=key, suggestion=suggestion)
