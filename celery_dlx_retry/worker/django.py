"""What Celery gives to tasks in a Django project and a base class of one's own takes away: ``delay_on_commit`` & co."""

from __future__ import annotations

from typing import TYPE_CHECKING

from celery_dlx_retry.celery_compat import fixups

if TYPE_CHECKING:
    from celery import Celery


def keep_on_commit(ours: type, app: Celery) -> None:
    """Give our class the methods that Celery's own has in this app.

    The methods alone, and not their class as one more base: that could change what a task does besides.
    """
    from celery.fixups.django import DjangoFixup  # noqa: PLC0415 - it imports the worker; each app imports it by then

    if not any(isinstance(fixup, DjangoFixup) for fixup in fixups(app)):
        return
    from celery.contrib.django.task import DjangoTask  # noqa: PLC0415 - it imports Django

    for name, method in vars(DjangoTask).items():
        if name.endswith("_on_commit"):
            setattr(ours, name, method)
