"""The project with a Kombu that pauses after each publish: threads that share a producer meet there."""

from __future__ import annotations

import functools
import time

from kombu.messaging import Producer
from project import app

__all__ = ["app"]

_publish = Producer.publish


@functools.wraps(_publish)
def _publish_and_pause(*args, **options):
    result = _publish(*args, **options)
    time.sleep(0.02)  # noqa: TID251 - other threads run meanwhile
    return result


Producer.publish = _publish_and_pause
