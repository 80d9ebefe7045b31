"""The project with a result backend that takes every state but SUCCESS."""

from __future__ import annotations

from typing import Any

from celery.backends.base import BaseBackend
from celery.exceptions import Reject
from celery.states import SUCCESS
from project import app, record

from celery_dlx_retry import DLXRetryTask


class Fussy(BaseBackend):
    """Fails at a result, and at nothing else."""

    def _store_result(self, task_id: str, result: Any, state: str, *_: Any, **__: Any) -> Any:  # noqa: ARG002
        if state == SUCCESS:
            raise OSError("no room for this result")
        return result


app.conf.result_backend = "project_unstored:Fussy"


def mark_as_done(order: int) -> None:
    """A function of the project with the name of Celery's own."""
    raise OSError(f"order {order} is locked")


@app.task(bind=True, base=DLXRetryTask)
def put_back_once(self):
    record(self)
    if self.request.delivery_info["redelivered"]:
        return
    try:
        mark_as_done(7)
    except OSError as exc:
        raise Reject(exc, requeue=True) from exc
