"""What a type checker must not let a user write; each comment is the error that mypy has to find in its line."""

from __future__ import annotations

import celery_dlx_retry
from celery_dlx_retry import (
    DEAD,
    LET_FAIL,
    Breaker,
    Budget,
    Custom,
    Delays,
    DLXRetryTask,
    Exponential,
    Fixed,
    FullJitter,
    Linear,
    On,
    Policy,
    ProportionalJitter,
    dlx_queue,
    install,
)

Fixed("5")  # error: arg-type
Fixed()  # error: call-arg
Fixed(5, 3)  # error: call-arg
Linear(1, 2)  # error: call-arg
Exponential(1, 10)  # error: call-arg
Exponential("1", factor=10)  # error: arg-type
Exponential(1, factor="10")  # error: arg-type
Exponential(1, limit=[500])  # error: arg-type
Exponential(1, retries=2.5)  # error: arg-type
Exponential(1, max_retries=5)  # error: call-arg
Exponential(1, jitter=True)  # error: arg-type
Exponential(1, jitter=FullJitter)  # error: arg-type
Exponential(1, errors=[OSError])  # error: arg-type
Exponential(1, errors="OSError")  # error: arg-type
Exponential(1, deadline="1h")  # error: arg-type
Exponential(1, rules=[OSError])  # error: list-item
Exponential(1, rules=On(OSError, DEAD))  # error: arg-type
Delays(5)  # error: arg-type
Delays(["1", "2"])  # error: list-item
Custom(5)  # error: arg-type
Custom(lambda retry: retry)  # error: misc, arg-type
ProportionalJitter("10%")  # error: arg-type
On(OSError)  # error: call-arg
On(OSError, "dead")  # error: arg-type
On(OSError, None)  # error: arg-type
Policy()  # error: abstract
Fixed(5).delay = 6  # error: misc

Budget("20%")  # error: arg-type
Budget(0.2, 6)  # error: call-arg
Budget(0.2, over="dead")  # error: arg-type
Budget(0.2, over=LET_FAIL)  # error: arg-type
Breaker("5")  # error: arg-type
Breaker(5, 30)  # error: call-arg
Breaker(5, probe_every="30s")  # error: arg-type

dlx_queue()  # error: call-arg
dlx_queue("orders", "quorum")  # error: call-arg
dlx_queue("orders", queue_type="stream")  # error: arg-type
dlx_queue("orders", delivery_limit="20")  # error: arg-type
dlx_queue("orders", durable=False)  # error: call-arg
install()  # error: call-arg
celery_dlx_retry.browse()  # error: attr-defined


class Hasty(DLXRetryTask):
    policy = "often"  # error: assignment
    budget = "20%"  # error: assignment
    breaker = 5  # error: assignment


def give_up(task: DLXRetryTask) -> None:
    task.dead_letter(5)  # error: arg-type


def try_again(task: DLXRetryTask) -> None:
    task.retry(countdown="5")  # error: arg-type
