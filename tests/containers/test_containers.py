"""The promise, as far as containers can break it: what runs, waits or is dead survives them."""

from __future__ import annotations

from containers.tasks import WAIT_SECONDS
from support import eventually

from celery_dlx_retry.policy.reasons import Reason

SECONDS = 60  # for a worker to start, to find its broker again, and to work


def test_broker_and_backend_are_published_on_loopback_only(shop):
    published = [
        address["HostIp"]
        for node in (shop.broker, shop.backend, shop.worker)
        for addresses in node.container.attrs["NetworkSettings"]["Ports"].values()
        for address in addresses or []
    ]

    assert published == ["127.0.0.1", "127.0.0.1"]


def test_a_retry_waits_in_the_broker_container_and_comes_back_no_sooner(shop):
    result = shop.send("heal", 1)

    eventually(lambda: shop.waiting() == 1)
    assert result.get(timeout=SECONDS) == "healed"
    first, second = shop.runs(result)
    assert second - first >= WAIT_SECONDS


def test_what_is_exhausted_is_a_dead_letter_with_its_reason_and_history(shop):
    result = shop.send("exhaust")

    (letter,) = eventually(lambda: shop.dead(result))
    assert (letter.record.reason, letter.record.attempts) == (Reason.EXHAUSTED, 3)
    assert [(failure.attempt, failure.delay_ms, failure.error) for failure in letter.history] == [
        (1, 200, "ConnectionError: the bank is closed"),
        (2, 200, "ConnectionError: the bank is closed"),
        (3, None, "ConnectionError: the bank is closed"),
    ]
    assert len(shop.runs(result)) == 3


def test_a_hard_time_limit_ends_as_a_dead_letter_or_is_retried_by_policy(shop):
    dead, retried = shop.send("overrun"), shop.send("overrun_once")

    (letter,) = eventually(lambda: shop.dead(dead))
    assert letter.record.reason == Reason.TIMEOUT
    assert retried.get(timeout=SECONDS) == "in time"
    assert (len(shop.runs(dead)), len(shop.runs(retried))) == (1, 2)


def test_a_worker_container_that_is_killed_and_started_again_loses_nothing(shop):
    waiting = [shop.send("heal", 1) for _ in range(10)]
    running = [shop.send("interrupted") for _ in range(2)]
    eventually(lambda: all(shop.runs(result) for result in [*waiting, *running]))
    eventually(lambda: shop.waiting() == len(waiting))

    shop.worker.kill()
    shop.worker.restart()

    assert {result.get(timeout=SECONDS) for result in waiting} == {"healed"}
    assert {result.get(timeout=SECONDS) for result in running} == {"done"}
    assert [len(shop.runs(result)) for result in running] == [2, 2]


def test_a_broker_container_that_is_restarted_keeps_what_waits(shop):
    waiting = [shop.send("heal", 1) for _ in range(10)]
    eventually(lambda: shop.waiting() == len(waiting))

    shop.broker.restart()

    assert {result.get(timeout=SECONDS) for result in waiting} == {"healed"}
    for first, *later in map(shop.runs, waiting):
        assert later
        assert min(later) - first >= WAIT_SECONDS
