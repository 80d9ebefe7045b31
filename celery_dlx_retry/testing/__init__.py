"""For tests: what became of their tasks, and a RabbitMQ and a Redis, given or started here and gone afterwards."""

from celery_dlx_retry.testing.broker import NotOurs, RabbitMQ
from celery_dlx_retry.testing.rabbitmq import provide
from celery_dlx_retry.testing.recorder import Recorder, record
from celery_dlx_retry.testing.redis import NoRedis, provide_redis

__all__ = ["NoRedis", "NotOurs", "RabbitMQ", "Recorder", "provide", "provide_redis", "record"]
