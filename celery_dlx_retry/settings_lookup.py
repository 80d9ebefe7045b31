"""Find the dlx_* settings in an app's configuration, and the misspelled ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

from celery_dlx_retry.settings import NAMES, unknown_setting

if TYPE_CHECKING:
    from collections.abc import Iterable

# The usual prefix in Django projects, for Celery's namespace="CELERY".
_USUAL = "celery_"


def settings_in(keys: Iterable[str], *, namespace: str = "") -> dict[str, str]:
    """Return the key of each setting in a configuration; raise UnknownSetting for a misspelled one.

    Under a namespace, as ``"CELERY"``, the key is ``CELERY_DLX_PREFIX``; set on the app itself it is ``dlx_prefix``.
    """
    prefix = _prefix(namespace)
    key_of: dict[str, str] = {}
    keys = set(keys)
    for key in sorted(keys):
        name = key.lower().removeprefix(prefix)
        is_under_namespace = bool(prefix) and name != key.lower()
        if name.startswith("dlx_") and (is_under_namespace or name == key):
            if name not in NAMES:
                raise unknown_setting(key, name=name, prefix=prefix if is_under_namespace else "")
            key_of[name] = key
        elif (own := _misplaced(name, prefix)) and keys.isdisjoint({own, f"{prefix}{own}".upper()} - {key}):
            raise unknown_setting(key, name=own, prefix=prefix)
    return key_of


def is_setting(key: str) -> bool:
    """Return whether a key of a configuration ends in the name of a setting, in any namespace."""
    return f"dlx_{key.lower().rpartition('dlx_')[2]}" in NAMES


def insist_on_capitals(keys: Iterable[str], *, namespace: str) -> None:
    """Raise UnknownSetting for a setting that Django ignores because it is not in capitals: ``CELERY_dlx_prefix``."""
    prefix = _prefix(namespace)
    keys = set(keys)
    for key in sorted(keys):
        name = key.lower().removeprefix(prefix)
        # If the right key exists, too, this one is only a variable from which it was computed.
        if name in NAMES and not key.isupper() and f"{prefix}{name}".upper() not in keys:
            raise unknown_setting(key, name=name, prefix=prefix)


def _prefix(namespace: str) -> str:
    return f"{namespace.removesuffix('_')}_".lower() if namespace else ""


def _misplaced(name: str, prefix: str) -> str:
    """Return the setting that ``DLX_PREFIX``, or without a namespace ``CELERY_DLX_PREFIX``, means; else empty.

    Similar names do not count: a project may use ``DLX_QUEUE`` or ``DLX_EXCHANGE`` for something else.
    """
    own = name if prefix else name.removeprefix(_USUAL)
    return own if own in NAMES else ""
