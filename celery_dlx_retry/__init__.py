"""Celery retries that wait in RabbitMQ, not in your worker."""

from celery_dlx_retry.broker.queues import dlx_queue
from celery_dlx_retry.core.breaker import Breaker
from celery_dlx_retry.core.budget import Budget
from celery_dlx_retry.core.jitter import FullJitter, ProportionalJitter
from celery_dlx_retry.core.policy import DEAD, LET_FAIL, Custom, Delays, Exponential, Fixed, Linear, On, Policy
from celery_dlx_retry.errors import DeadLetter, DLXError, RetryIn
from celery_dlx_retry.worker.bootstep import install
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
    "dlx_queue",
    "install",
]
