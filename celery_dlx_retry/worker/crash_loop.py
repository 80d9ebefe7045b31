"""End crash loops: a message that takes the whole worker down, each time that it is delivered again."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from celery.utils.log import get_logger

from celery_dlx_retry.app.context import context_of
from celery_dlx_retry.broker.crash_marks import count, forget, mark, marks_of
from celery_dlx_retry.errors import CrashLoop, DLXError
from celery_dlx_retry.values.log_lines import escaped, log_fields

if TYPE_CHECKING:
    from collections.abc import Iterator

logger = escaped(get_logger(__name__))


@contextmanager
def bounded(task: Any) -> Iterator[None]:
    """Around a run of a redelivered message: raise CrashLoop instead of running what has killed too many workers."""
    request, context = task.request, context_of(task.app)
    if not context.settings.declare:
        yield
        return
    marks = marks_of(context.names, str(request.id), queue=request.delivery_info.queue.name)
    try:
        # The run that made it suspect left no mark, if there was one: it may have lain beside the one that ran.
        worker = request.delivery_info.worker
        crashes = count(context.publisher, marks, worker=worker)
        if crashes < context.settings.crash_limit:
            mark(context.publisher, marks, names=context.names, worker=worker)
    except DLXError as problem:
        # Without a mark this run is not counted; the next one will be.
        fields = log_fields("StartNotMarked", task=task.name, task_id=request.id, cause=type(problem).__name__)
        logger.warning("start not marked task=%s id=%s: %s", task.name, request.id, problem, extra=fields)
        crashes = 0
    try:
        if crashes >= context.settings.crash_limit:
            raise CrashLoop(crashes=crashes)
        yield
    finally:
        try:
            forget(context.publisher, marks)
        except DLXError as problem:
            fields = log_fields("EndNotMarked", task=task.name, task_id=request.id, cause=type(problem).__name__)
            logger.warning("end not marked task=%s id=%s: %s", task.name, request.id, problem, extra=fields)
