"""The shop in Flask: ``celery -A example_project.webshop.flask_shop:celery_app worker``."""

import itertools
import os

from celery import Celery
from flask import Flask, request

from celery_dlx_retry import DLXRetryTask

from .tasks import fulfil

NAME = os.environ.get("SHOP_NAME", "shop")


def celery_init_app(app):
    """As Flask's documentation has it: tasks run in the app's context."""

    class FlaskTask(DLXRetryTask):
        def __call__(self, *args, **kwargs):
            with app.app_context():
                return self.run(*args, **kwargs)

    celery_app = Celery(app.name, task_cls=FlaskTask)
    celery_app.config_from_object(app.config["CELERY"])
    celery_app.set_default()
    app.extensions["celery"] = celery_app
    return celery_app


def create_app():
    app = Flask(__name__)
    app.config["CELERY"] = {
        "broker_url": os.environ.get("SHOP_BROKER_URL", "amqp://guest:guest@127.0.0.1//"),
        "task_default_queue": f"{NAME}.flask",
        "task_ignore_result": True,
        "broker_connection_retry_on_startup": True,
        "worker_lost_wait": 1.0,
        "dlx_prefix": NAME,
        "dlx_crash_limit": 2,
    }
    celery_init_app(app)
    numbers = itertools.count(1)

    @app.post("/orders")
    def orders():
        order = f"flask-{next(numbers)}"
        fulfil(order, **request.get_json())
        return {"order": order}, 201

    return app


flask_app = create_app()
celery_app = flask_app.extensions["celery"]
