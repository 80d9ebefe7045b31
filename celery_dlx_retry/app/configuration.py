"""The dlx_* settings of an app, out of Celery's configuration."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from celery_dlx_retry.settings_lookup import insist_on_capitals, is_setting, settings_in

if TYPE_CHECKING:
    from celery import Celery


def configured(app: Celery) -> dict[str, Any]:
    """All of them, by their names; raise UnknownSetting for one that is misspelt, or where Celery overlooks it."""
    namespace = app.namespace or ""
    # A module that is a configuration has everything that it imported, as our own dlx_queue(). A function or a class
    # is ignored, unless its name is that of a setting: `dlx_budget = Budget` is a mistake.
    keys = [key for key in app.conf if "dlx_" in key.lower() and (is_setting(key) or not callable(app.conf[key]))]
    found = settings_in(keys, namespace=namespace)
    if namespace:
        # Django has the name of its settings module, and only those settings that it has read from it.
        module = sys.modules.get(str(app.conf.get("SETTINGS_MODULE")))
        insist_on_capitals(vars(module) if module else (), namespace=namespace)
    return {name: app.conf[key] for name, key in found.items()}
