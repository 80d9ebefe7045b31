"""What the worker container runs; pytest-celery copies this file into it. Runs are noted in the Redis container."""

from __future__ import annotations

import time

from celery import shared_task
from celery.exceptions import TimeLimitExceeded

from celery_dlx_retry import DLXRetryTask, Fixed, On

WAIT_SECONDS = 8  # long enough to look around, and to take something down


def note(task):
    task.backend.client.rpush(f"runs of {task.request.id}", time.time())


@shared_task(bind=True, base=DLXRetryTask, name="heal", policy=Fixed(WAIT_SECONDS, retries=1))
def heal(self, failures):
    note(self)
    if self.request.retries < failures:
        raise ConnectionError("the bank is closed")
    return "healed"


@shared_task(bind=True, base=DLXRetryTask, name="exhaust", policy=Fixed(0.2, retries=2))
def exhaust(self):
    note(self)
    raise ConnectionError("the bank is closed")


@shared_task(bind=True, base=DLXRetryTask, name="overrun", time_limit=1)
def overrun(self):
    note(self)
    time.sleep(60)  # noqa: TID251 - work that takes too long


@shared_task(
    bind=True, base=DLXRetryTask, name="overrun_once", time_limit=1, policy=Fixed(1, rules=[On(TimeLimitExceeded, 0.2)])
)
def overrun_once(self):
    note(self)
    if self.request.retries == 0:
        time.sleep(60)  # noqa: TID251 - work that takes too long
    return "in time"


@shared_task(bind=True, base=DLXRetryTask, name="interrupted")
def interrupted(self):
    """Run until the worker is killed; whoever gets it then is done at once."""
    note(self)
    if not self.request.delivery_info["redelivered"]:
        time.sleep(60)  # noqa: TID251 - work that takes long
    return "done"
