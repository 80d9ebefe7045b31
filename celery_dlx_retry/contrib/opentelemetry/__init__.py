"""Traces and metrics for OpenTelemetry.

Install them in the module of your app::

    from celery_dlx_retry.contrib.opentelemetry import install

    install()

This needs opentelemetry-api only. Your app sets up the SDK, as docs/tracing.md shows.
"""

from celery_dlx_retry.contrib.opentelemetry.installation import install

__all__ = ["install"]
