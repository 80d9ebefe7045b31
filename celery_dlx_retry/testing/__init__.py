"""A RabbitMQ and a Redis for tests and the demo: given, or started here and gone afterwards."""

from celery_dlx_retry.testing.broker import NotOurs, RabbitMQ
from celery_dlx_retry.testing.rabbitmq import provide
from celery_dlx_retry.testing.redis import NoRedis, provide_redis

__all__ = ["NoRedis", "NotOurs", "RabbitMQ", "provide", "provide_redis"]
