"""Add our bootsteps to the workers of an app."""

from __future__ import annotations

from typing import TYPE_CHECKING

from celery_dlx_retry.errors import InvalidSetting

if TYPE_CHECKING:
    from celery import Celery

# Celery imports a step by its name when a worker starts. A process that only sends never imports a worker's modules.
BOOTSTEPS = ("celery_dlx_retry.worker.bootstep:Topology", "celery_dlx_retry.worker.bootstep:StartWatch")


def install(app: Celery) -> None:
    """Add the bootsteps to an app's workers. ``DLXRetryTask`` does this for you; call it to make it visible."""
    if not hasattr(app, "steps"):
        raise InvalidSetting(setting="install(app)", value=app, wanted="a Celery app")
    app.steps["consumer"].update(BOOTSTEPS)


def is_installed(app: Celery) -> bool:
    """Return whether the app's workers have our bootsteps."""
    return all(step in app.steps["consumer"] for step in BOOTSTEPS)
