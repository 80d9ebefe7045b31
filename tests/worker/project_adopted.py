"""A whole app adopted by one option; its tasks name no base."""

from __future__ import annotations

import json
import os

from celery import Celery
from project import record

app = Celery("adopted", task_cls="celery_dlx_retry:DLXRetryTask")
app.conf.update(json.loads(os.environ["PROJECT_CONF"]))


@app.task(bind=True, name="adopted.heal")
def heal(self):
    record(self)
    if self.request.retries == 0:
        raise self.retry(countdown=0.1)
    return "healed"


@app.task(bind=True, name="adopted.fail")
def fail(self):
    record(self)
    raise ValueError("no luck")


@app.task(name="adopted.kinds")
def kinds():
    """How each task of the app is acknowledged, and by which request it is served."""
    return {name: [task.acks_late, str(task.Request)] for name, task in app.tasks.items()}


@app.task(bind=True, name="adopted.inverse")
def inverse(self, number, times=1):
    """Called for each item of a map; a direct call has no message, and nothing to retry."""
    record(self, number=number, is_direct=self.request.called_directly)
    if number == "later":
        raise self.retry(exc=OSError("not now"))
    if number == "again":
        raise self.retry()
    return times / number
