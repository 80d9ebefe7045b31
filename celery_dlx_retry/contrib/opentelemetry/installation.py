"""Connect spans and metrics to the events of this package and to Celery's signals."""

from __future__ import annotations

from threading import Thread
from typing import TYPE_CHECKING, Any

try:
    from opentelemetry import metrics as metrics_api
    from opentelemetry import trace as trace_api
except ModuleNotFoundError as exc:
    raise ModuleNotFoundError(
        "The package opentelemetry-api is not installed. Install it with `pip install 'celery-dlx-retry[otel]'`"
    ) from exc

from celery import signals

from celery_dlx_retry import events
from celery_dlx_retry.contrib.opentelemetry.metrics import Metrics
from celery_dlx_retry.contrib.opentelemetry.spans import Spans
from celery_dlx_retry.version import __version__

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider

_NAME = "celery_dlx_retry"
#: How long a pool process that ends waits for its spans to be exported.
FLUSH_SECONDS = 5.0

_spans: Spans | None = None
_metrics: Metrics | None = None
_provider: Any = None


def install(*, tracer_provider: TracerProvider | None = None, meter_provider: MeterProvider | None = None) -> None:
    """Make spans and metrics for retries, dead letters and replays in this process, and in those that it forks.

    Without providers the global ones of OpenTelemetry are used, also if they are set later. You can call it again: in
    a process of a worker that has a provider for itself, for example.
    """
    global _spans, _metrics, _provider  # noqa: PLW0603
    tracer = trace_api.get_tracer(_NAME, __version__, tracer_provider)
    if _spans is None:
        _spans = Spans(tracer)
        signals.task_postrun.connect(_spans.end_attempt, weak=False)
        signals.worker_process_shutdown.connect(_flush, weak=False)
        events.write_headers(_spans.write_header)
        events.subscribe(_spans.on_event, needs_returns=False)
    elif tracer_provider is not None:
        _spans.tracer = tracer
    _spans.come_last()
    _provider = tracer_provider or _provider
    meter = metrics_api.get_meter(_NAME, __version__, meter_provider)
    if _metrics is None:
        _metrics = Metrics(meter)
        events.subscribe(_metrics, in_main=True, needs_returns=False)
    elif meter_provider is not None:
        _metrics.use(meter)


def _flush(**_: Any) -> None:
    """Export the spans of a pool process that ends: it runs no exit handlers."""
    flush = getattr(_provider or trace_api.get_tracer_provider(), "force_flush", None)
    if flush is not None:
        # The SDK has a time limit for this and does not keep it.
        thread = Thread(target=flush, name="dlx-flush-spans", daemon=True)
        thread.start()
        thread.join(FLUSH_SECONDS)
