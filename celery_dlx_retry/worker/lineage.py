"""What a task derives from besides DLXRetryTask: its app's own task class, and Celery's class for Django.

``base=DLXRetryTask`` would otherwise take away what all tasks of the app have: Flask's context, ``delay_on_commit``.
"""

from __future__ import annotations

from typing import Any

from celery.app.base import Celery
from celery.app.task import Task
from celery.fixups.django import DjangoFixup
from celery.utils.log import get_logger

logger = get_logger(__name__)


def widen(cls: type, ours: type) -> None:
    """Let a class that is just being made, and belongs to an app, derive from what that app gives to its tasks.

    A class that was written out derives from what its author wrote; only Django's two methods are added to it.
    """
    facts = vars(cls)
    app = facts.get("app", facts.get("_app"))
    if not isinstance(app, Celery):
        return
    bases = cls.__bases__
    if bases == (ours,) and facts.get("_decorated"):
        bases = (_with_ours(app.Task, ours),)
    for django in _django_task(app):
        if not any(issubclass(base, django) for base in bases):
            bases = (*bases, django)
    if bases != cls.__bases__:
        # Before Celery makes the one instance, so that an __init__ of the app's class is called, too.
        cls.__bases__ = bases


def _with_ours(theirs: type, ours: type) -> type:
    if issubclass(theirs, ours):
        return theirs
    if theirs.__bases__ == (Task,) and theirs.__module__ == Task.__module__:
        return ours  # Celery's own
    taken = sorted(name for name in set(vars(ours)) - set(dir(Task)) if hasattr(theirs, name) and name[0] != "_")
    if taken:
        logger.warning(
            "base=DLXRetryTask does without the app's task class %s.%s, which has names of ours: %s",
            theirs.__module__, theirs.__qualname__, ", ".join(taken),
        )  # fmt: skip
        return ours
    # Theirs comes first, for its __call__ goes around the body; what keeps the message stays ours. If theirs was bound,
    # Celery wrote the configured acks_late on it.
    kept: dict[str, Any] = {name: vars(ours)[name] for name in ("abstract", "acks_late", "Request")}
    return type(ours.__name__, (theirs, ours), {**kept, "__module__": ours.__module__, "__doc__": ours.__doc__})


def _django_task(app: Celery) -> list[type]:
    """Celery's class for Django; as Celery does, imported only where Django's settings are named."""
    if not any(isinstance(fixup, DjangoFixup) for fixup in app._fixups or ()):  # noqa: SLF001 - nothing public tells
        return []
    from celery.contrib.django.task import DjangoTask  # noqa: PLC0415 - it imports Django

    return [DjangoTask]
