"""Tasks with traces: each process of the worker writes its spans, and the main process its metrics, to a file."""

from __future__ import annotations

import os
import time
from pathlib import Path

from celery.signals import worker_init, worker_process_init
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricExporter, MetricExportResult, PeriodicExportingMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor, SpanExporter, SpanExportResult
from project import app, record

from celery_dlx_retry import DLXRetryTask, Fixed
from celery_dlx_retry.contrib.opentelemetry import install

__all__ = ["app"]

MODE = os.environ.get("PROJECT_TRACES", "")


def append(path, line):
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(descriptor, (line + "\n").encode())
    finally:
        os.close(descriptor)


class FileExporter(SpanExporter):
    def export(self, spans):
        for span in spans:
            append(os.environ["PROJECT_SPANS"], span.to_json(indent=None))
        return SpanExportResult.SUCCESS


class MainProcessExporter(MetricExporter):
    """Exports in the process that made it, and not in pool processes that inherit it."""

    def __init__(self):
        super().__init__()
        self._process = os.getpid()

    def export(self, metrics_data, **_):
        if os.getpid() == self._process:
            append(os.environ["PROJECT_SPANS"] + ".metrics", metrics_data.to_json(indent=None))
        return MetricExportResult.SUCCESS

    def force_flush(self, **_):
        return True

    def shutdown(self, **_):
        pass


class BrokenProvider(trace.TracerProvider):
    def get_tracer(self, *_, **__):
        return self

    def start_span(self, *_, **__):
        raise RuntimeError("the tracer fails")


def tracing():
    if "broken" in MODE:
        return BrokenProvider()
    provider = TracerProvider(shutdown_on_exit=False)
    if "batch" in MODE:
        provider.add_span_processor(BatchSpanProcessor(FileExporter(), schedule_delay_millis=600_000))
    else:
        provider.add_span_processor(SimpleSpanProcessor(FileExporter()))
    return provider


def metering():
    reader = PeriodicExportingMetricReader(MainProcessExporter(), export_interval_millis=200)
    return MeterProvider([reader], shutdown_on_exit=False)


def instrument(provider):
    if "instrumented" in MODE:
        from opentelemetry.instrumentation.celery import CeleryInstrumentor  # noqa: PLC0415 - only if it is wanted

        CeleryInstrumentor().instrument(tracer_provider=provider)


if "other-first" in MODE:
    instrument(None)
if MODE:
    install()
if "command" in MODE:
    trace.set_tracer_provider(tracing())


@worker_init.connect(weak=False)
def trace_the_main_process(**_):
    if MODE:
        install(tracer_provider=tracing(), meter_provider=metering())


@worker_process_init.connect(weak=False)
def trace_a_pool_process(**_):
    if MODE:
        provider = tracing()
        trace.set_tracer_provider(provider)
        if "as-documented" in MODE:
            instrument(provider)
        install(tracer_provider=provider)
        if "ours-first" in MODE:
            instrument(provider)


@app.task(bind=True, base=DLXRetryTask, name="traces.pay", policy=Fixed(0.1, retries=2))
def pay(self):
    """Fail in the first life of the message, and succeed after a replay."""
    if not self.request.delivery_info.message.headers.get("dlx-replays"):
        raise ConnectionError(f"card 4111 of {self.request.id}")


@app.task(bind=True, base=DLXRetryTask, name="traces.flaky", policy=Fixed(0.1, retries=5))
def flaky(self, failures=1):
    if self.request.retries < failures:
        raise TimeoutError("the bank does not answer")


@app.task(bind=True, base=DLXRetryTask, name="traces.asked")
def asked(self):
    """Call retry() inside a span of its own, with other arguments."""
    with trace.get_tracer("the app").start_as_current_span("query"):
        if self.request.retries < 1:
            raise self.retry(countdown=0.1, kwargs={}, headers={"mine": "1"})


@app.task(bind=True, base=DLXRetryTask, name="traces.moved")
def moved(self, queue):
    if self.request.retries < 1:
        raise self.retry(countdown=0.1, queue=queue)


@app.task(bind=True, base=DLXRetryTask, name="traces.slow", time_limit=1, policy=Fixed(0.1, retries=2))
def slow(self):
    if self.request.retries < 1:
        time.sleep(60)  # noqa: TID251 - the hard time limit ends it


@app.task(bind=True, base=DLXRetryTask, name="traces.killed")
def killed(self):
    record(self)
    if len(Path(os.environ["PROJECT_RECORDS"]).read_text().splitlines()) < 2:
        os.kill(os.getpid(), 9)
