"""Celery retries that wait in RabbitMQ, not in your worker."""

from celery_dlx_retry.broker.work_queues import dlx_queue
from celery_dlx_retry.errors import DeadLetter, DLXError, RetryIn
from celery_dlx_retry.policy.breaker import Breaker
from celery_dlx_retry.policy.budget import Budget
from celery_dlx_retry.policy.decision import DEAD, LET_FAIL, Custom, Delays, Exponential, Fixed, Linear, On, Policy
from celery_dlx_retry.policy.jitter import FullJitter, ProportionalJitter
from celery_dlx_retry.version import __version__
from celery_dlx_retry.worker.install import install
from celery_dlx_retry.worker.task import DLXRetryTask

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
