"""The project with a result backend that takes every state but SUCCESS."""

from __future__ import annotations

from typing import Any

from celery.backends.base import BaseBackend
from celery.states import SUCCESS
from project import app


class Fussy(BaseBackend):
    """Fails at a result, and at nothing else."""

    def _store_result(self, task_id: str, result: Any, state: str, *_: Any, **__: Any) -> Any:  # noqa: ARG002
        if state == SUCCESS:
            raise OSError("no room for this result")
        return result


app.conf.result_backend = "project_unstored:Fussy"
