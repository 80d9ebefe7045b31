"""The app whose worker benchmarks/observability.py measures: OBSERVED names the tools that watch it."""

from __future__ import annotations

import os
from typing import Any

from celery import Celery

from celery_dlx_retry import DLXRetryTask, Fixed

QUEUE, RETRIES = "observed", 5

app = Celery("observed", broker=os.environ["OBSERVED_BROKER"])
app.conf.update(task_default_queue=QUEUE, task_ignore_result=True)


@app.task(base=DLXRetryTask, bind=True, policy=Fixed(1, retries=RETRIES), name="observed.heals")
def heals(self: Any) -> None:
    """Need all retries, and note the end."""
    if self.request.retries < RETRIES:
        raise ConnectionError("no answer")
    ended = os.open(os.environ["OBSERVED_ENDS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(ended, b".")
    os.close(ended)


def watch_with(tools: list[str]) -> None:
    """Switch tools on. What they record is made and goes nowhere: sending it is no work of ours."""
    if "metrics" in tools:
        from celery_dlx_retry.contrib.prometheus import install  # noqa: PLC0415

        install()
    if "otel" in tools:
        from opentelemetry import trace  # noqa: PLC0415
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415

        from celery_dlx_retry.contrib import opentelemetry  # noqa: PLC0415

        trace.set_tracer_provider(TracerProvider())
        opentelemetry.install()
    if "sentry" in tools:
        import sentry_sdk  # noqa: PLC0415

        from celery_dlx_retry.contrib import sentry  # noqa: PLC0415

        sentry_sdk.init(dsn="http://key@127.0.0.1:9/1", transport=lambda _envelope: None)
        sentry.install()


watch_with(os.environ["OBSERVED"].split())
