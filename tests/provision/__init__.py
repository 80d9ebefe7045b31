"""RabbitMQ and Redis servers for tests, the demo and the benchmarks of this repository; none of it is in the wheel."""

from tests.provision.rabbitmq import provide
from tests.provision.redis import NoRedis, provide_redis

__all__ = ["NoRedis", "provide", "provide_redis"]
