"""For your tests: what became of their tasks, and a RabbitMQ that is given, or started here and removed afterwards."""

from typing import TYPE_CHECKING

from celery_dlx_retry.lazy_names import lazy_names

if TYPE_CHECKING:
    from celery_dlx_retry.testing.broker import NotOurs, RabbitMQ
    from celery_dlx_retry.testing.rabbitmq import provide
    from celery_dlx_retry.testing.recorder import Recorder, record
else:
    __getattr__ = lazy_names(
        __name__,
        {
            "testing.broker": ("NotOurs", "RabbitMQ"),
            "testing.rabbitmq": ("provide",),
            "testing.recorder": ("Recorder", "record"),
        },
    )

__all__ = ["NotOurs", "RabbitMQ", "Recorder", "provide", "record"]
