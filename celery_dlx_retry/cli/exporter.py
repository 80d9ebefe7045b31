"""``celery dlx exporter``: what is in the queues, as metrics for Prometheus."""

from __future__ import annotations

import logging
import signal
import threading
from typing import Any

import click

from celery_dlx_retry.cli.context import DAY_SECONDS, Seconds, app_of, management_option, queues_option
from celery_dlx_retry.cli.output import echo
from celery_dlx_retry.operations.app_queues import work_queues_of
from celery_dlx_retry.values.broker_urls import bracketed

_LAST_PORT = 65_535


@click.command()
@click.option("--port", type=click.IntRange(0, _LAST_PORT), required=True, help="Port to serve /metrics on; 0: any.")
@click.option("--listen", default="127.0.0.1", show_default=True, metavar="ADDRESS", help="Address to serve it on.")
@click.option(
    "--interval",
    type=Seconds(min=0.1, max=DAY_SECONDS),
    default=15.0,
    show_default=True,
    metavar="SECONDS",
    help="Read the broker at most this often. It is read when Prometheus scrapes.",
)
@click.option(
    "--check-interval",
    type=Seconds(min=0.1, max=DAY_SECONDS),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="How often to look for missing queues and to run the rules of the doctor.",
)
@click.option(
    "--peek",
    is_flag=True,
    help="Also read the first dead letter of each queue, to know its age. While it is read, the queue looks empty.",
)
@queues_option
@management_option
@click.pass_context
def exporter(  # noqa: PLR0913 - one per option
    ctx: click.Context,
    queue_names: tuple[str, ...] | None,
    management_url: str | None,
    *,
    port: int,
    listen: str,
    interval: float,
    check_interval: float,
    peek: bool,
) -> None:
    """Serve metrics of the queues to Prometheus.

    It runs until Ctrl-C, also while the broker is down.
    """
    client, collectors = _prometheus()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    with app_of(ctx) as app:
        work_queues_of(app, queue_names or ())  # a wrong name or another broker is an error now, not at each scrape
        registry = client.CollectorRegistry()
        collector = collectors.DLXCollector(
            app,
            queues=queue_names or (),
            management_url=management_url,
            interval=interval,
            check_interval=check_interval,
            peek=peek,
        )
        registry.register(collector)
        try:
            server, thread = client.start_http_server(port, addr=listen, registry=registry)
        except OSError as problem:
            raise click.ClickException(f"Cannot serve on {listen}:{port}: {problem.strerror or problem}.") from problem
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    echo(f"Metrics at http://{bracketed(listen)}:{server.server_port}/metrics", err=True)
    try:
        stopped.wait()
    except KeyboardInterrupt:
        pass
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
        collector.close()


def _prometheus() -> tuple[Any, Any]:
    """Return prometheus_client and our module for it; both need the extra."""
    try:
        import prometheus_client  # noqa: PLC0415 - an extra

        from celery_dlx_retry.contrib import prometheus_collector  # noqa: PLC0415
    except ImportError as problem:
        raise click.ClickException("Install the extra: pip install 'celery-dlx-retry[prometheus]'.") from problem
    return prometheus_client, prometheus_collector
