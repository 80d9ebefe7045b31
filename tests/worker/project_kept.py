"""A Flask app and its Celery, as Flask's documentation has them; its tasks name DLXRetryTask, and nothing else."""

from __future__ import annotations

import json
import os

from celery import Celery, Task, shared_task
from flask import Flask, current_app
from project import record

from celery_dlx_retry import DLXRetryTask


def celery_init_app(app):
    class FlaskTask(Task):
        def __call__(self, *args, **kwargs):
            with app.app_context():
                return self.run(*args, **kwargs)

    celery_app = Celery(app.name, task_cls=FlaskTask)
    celery_app.config_from_object(app.config["CELERY"])
    celery_app.set_default()
    return celery_app


flask_app = Flask("kept")
flask_app.config["CELERY"] = json.loads(os.environ["PROJECT_CONF"])
app = celery_init_app(flask_app)


@shared_task(bind=True, base=DLXRetryTask, name="kept.ask")
def ask(self, wish):
    record(self, context=current_app.name)
    if wish == "fail":
        raise ValueError("no luck")
    if self.request.retries == 0:
        raise self.retry(countdown=0.1)
    return wish
