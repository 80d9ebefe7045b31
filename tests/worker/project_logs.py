"""The project with a recipe of docs/logs.md, whose heading and number the test gives; tasks beside plain Celery's."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path

from celery import Task
from celery.utils.log import get_task_logger
from project import app

from celery_dlx_retry import DLXRetryTask, Fixed

__all__ = ["app"]

PAGE = (Path(__file__).parents[2] / "docs" / "logs.md").read_text()
TEXT = "4111 1111 1111 1111"
logger = get_task_logger(__name__)


def recipe(heading: str, number: int) -> str:
    section = re.split(rf"^#+ {re.escape(heading)}$", PAGE, flags=re.MULTILINE)[1]
    return re.findall(r"^```python\n(.*?)^```$", section, re.DOTALL | re.MULTILINE)[number]


if heading := os.environ.get("PROJECT_LOGS"):
    name, _, number = heading.partition("/")
    exec(recipe(name, int(number or 0)))  # noqa: S102 - our own page

if os.environ.get("PROJECT_DJANGO"):
    import django
    from django.conf import settings
    from django_structlog.celery.steps import DjangoStructLogInitStep

    settings.configure(INSTALLED_APPS=["django_structlog"], DJANGO_STRUCTLOG_CELERY_ENABLED=True)
    django.setup()
    app.steps["worker"].add(DjangoStructLogInitStep)


class Plain(Task):
    abstract = True
    acks_late = True


def heals(self, way, secret=TEXT):
    """Fail once in this way, then succeed."""
    logger.info("body of %s", way)
    if self.request.retries:
        return
    if way == "slow":
        time.sleep(30)  # noqa: TID251 - a body that is too slow
    if way == "crashes":
        os.kill(os.getpid(), signal.SIGKILL)
    changes = {"args": (way, f"{secret} changed")} if way == "changed" else {}
    raise self.retry(exc=ValueError(secret), countdown=0.1, **changes)


for base, twin in ((Plain, "plain"), (DLXRetryTask, "ours")):
    app.task(heals, bind=True, base=base, name=f"logs.{twin}")
app.task(heals, bind=True, base=DLXRetryTask, name="logs.limited", policy=Fixed(0.1, retries=1), time_limit=1)


@app.task(base=DLXRetryTask, name="logs.dies")
def dies(secret=TEXT):
    """Be a dead letter, and succeed when it is replayed."""
    logger.info("body of dies")
    mark = Path(os.environ["PROJECT_RECORDS"])
    if not mark.read_text():
        mark.write_text("died")
        raise ValueError(secret)
