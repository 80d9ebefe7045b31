"""The project without the package: the same tasks on plain Celery, as before its adoption and after a rollback."""

from __future__ import annotations

import json
import os

from celery import Celery

app = Celery("project")
app.conf.update(json.loads(os.environ["PROJECT_CONF"]))


def record(task):
    line = {"task": task.name, "id": task.request.id, "retries": task.request.retries, "plain": True}
    with open(os.environ["PROJECT_RECORDS"], "a", encoding="utf-8") as records:  # noqa: PTH123 - as plain as it gets
        records.write(json.dumps(line) + "\n")


@app.task(bind=True, name="project.heal")
def heal(self, failures, countdown=0.2):
    record(self)
    if self.request.retries < failures:
        raise self.retry(countdown=countdown, max_retries=failures)


@app.task(bind=True, name="project.fail")
def fail(self):
    record(self)
