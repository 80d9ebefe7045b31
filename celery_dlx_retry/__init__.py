"""Celery retries that wait in RabbitMQ, not in your worker."""

from typing import TYPE_CHECKING

from celery_dlx_retry.lazy_names import lazy_names

if TYPE_CHECKING:
    from celery_dlx_retry.broker.work_queues import dlx_queue
    from celery_dlx_retry.errors import DeadLetter, DLXError, RetryIn
    from celery_dlx_retry.policy.breaker import Breaker
    from celery_dlx_retry.policy.budget import Budget
    from celery_dlx_retry.policy.jitter import FullJitter, ProportionalJitter
    from celery_dlx_retry.policy.policies import DEAD, LET_FAIL, Custom, Delays, Exponential, Fixed, Linear, On, Policy
    from celery_dlx_retry.version import __version__
    from celery_dlx_retry.worker.install import install
    from celery_dlx_retry.worker.task import DLXRetryTask
else:
    __getattr__ = lazy_names(
        __name__,
        {
            "broker.work_queues": ("dlx_queue",),
            "errors": ("DLXError", "DeadLetter", "RetryIn"),
            "policy.breaker": ("Breaker",),
            "policy.budget": ("Budget",),
            "policy.policies": (
                *("DEAD", "LET_FAIL", "Custom", "Delays", "Exponential", "Fixed", "Linear", "On", "Policy"),
            ),
            "policy.jitter": ("FullJitter", "ProportionalJitter"),
            "version": ("__version__",),
            "worker.install": ("install",),
            "worker.task": ("DLXRetryTask",),
        },
    )

__all__ = [
    "DEAD",
    "LET_FAIL",
    "Breaker",
    "Budget",
    "Custom",
    "DLXError",
    "DLXRetryTask",
    "DeadLetter",
    "Delays",
    "Exponential",
    "Fixed",
    "FullJitter",
    "Linear",
    "On",
    "Policy",
    "ProportionalJitter",
    "RetryIn",
    "__version__",
    "dlx_queue",
    "install",
]
