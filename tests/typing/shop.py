"""What a user writes, as a user's type checker sees it."""

from __future__ import annotations

from datetime import timedelta

from celery import Celery
from kombu.entity import Exchange, Queue
from typing_extensions import assert_type

from celery_dlx_retry import (
    DEAD,
    LET_FAIL,
    Breaker,
    Budget,
    Custom,
    DeadLetter,
    Delays,
    DLXError,
    DLXRetryTask,
    Exponential,
    Fixed,
    FullJitter,
    Linear,
    On,
    Policy,
    ProportionalJitter,
    RetryIn,
    dlx_queue,
    install,
)

app = Celery("shop", broker="memory://", set_as_current=False)
assert_type(install(app), None)

orders = dlx_queue("orders", queue_type="quorum", delivery_limit=20)
assert_type(orders, Queue)
assert_type(dlx_queue("mail", max_length=10_000, max_priority=9, prefix="shop"), Queue)
news = Exchange("news", type="topic")  # type: ignore[no-untyped-call]  # Kombu's
assert_type(dlx_queue("news", exchange=news, routing_key="news.#"), Queue)
app.conf.task_queues = [orders, dlx_queue("images", exchange="images")]


def as_asked(retry: int, error: BaseException) -> float | None:
    return None if isinstance(error, KeyError) else retry * 1.5


def is_busy(error: Exception) -> bool:
    return "busy" in str(error)


policies: list[Policy] = [
    Fixed(5),
    Fixed(timedelta(minutes=1), retries=None, deadline=timedelta(hours=1)),
    Linear(1, step=0.5, limit=60, errors=(OSError, TimeoutError)),
    Exponential(1, factor=10, limit=500, retries=5),
    Exponential(0.5, jitter=FullJitter(), retry_after=None),
    Delays([1, 10, timedelta(minutes=5)], jitter=ProportionalJitter(0.2)),
    Delays((1, 2.5), retries=None, errors=is_busy),
    Custom(as_asked),
    Custom(lambda retry, _error: retry * 2),
    Fixed(
        1,
        rules=[
            On(ConnectionError, Exponential(1, factor=2, retries=8)),
            On((KeyError, ValueError), DEAD),
            On(is_busy, LET_FAIL),
            On(TimeoutError, 30),
            On(OSError, [1, 2, 3]),
            On(LookupError, as_asked),
        ],
    ),
]
assert_type(policies[0].delay_ms(1, OSError()), int | None)
assert_type(policies[0].known_delays_ms(), frozenset[int])


@app.task(base=DLXRetryTask, policy=Exponential(1, factor=10, limit=500, retries=5))
def charge(order: int) -> int:
    return order


class Limited(DLXRetryTask):
    budget = Budget(0.2, per_minute=6, reserve=20, over=timedelta(minutes=10))
    breaker = Breaker(5, probe_every=30)


class Thrifty(DLXRetryTask):
    budget = 0.2


app.conf.dlx_budget = Budget(per_minute=60, over=DEAD)


@app.task(base=DLXRetryTask, policy=Delays([1, 10, 60]))
def pack(order: int) -> None:
    if order < 0:
        raise DeadLetter("there is no such order")
    raise RetryIn(37)


@app.task(base=DLXRetryTask, policy=[1, 10, 60], bind=True)
def ship(self: DLXRetryTask, order: int) -> str:
    if order < 0:
        self.dead_letter("nowhere to go")
    try:
        return str(order)
    except OSError as exc:
        raise self.retry(exc=exc, countdown=5) from exc


@app.task(base=DLXRetryTask, autoretry_for=(OSError,), retry_backoff=True, max_retries=5)
def notify() -> None:
    """Celery's own options, as before."""


class Careful(DLXRetryTask):
    abstract = True
    policy = Fixed(5, retries=2)


@app.task(base=Careful)
def refund(order: int) -> None:
    try:
        pack(order)
    except DLXError as error:
        assert_type(error, DLXError)
