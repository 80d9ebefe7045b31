"""What a task decides about an error: by its policy as it is now, within what its app grants."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from celery import Celery

from celery_dlx_retry import DLXRetryTask, Exponential, Fixed
from celery_dlx_retry.policy.decision import Wait
from celery_dlx_retry.worker.run import decision_on

LONGEST_SECONDS = 60


@pytest.fixture
def task():
    app = Celery("test", broker="amqp://127.0.0.1:1//", set_as_current=False)
    app.conf.dlx_max_delay = LONGEST_SECONDS

    @app.task(shared=False, base=DLXRetryTask, policy=Exponential(1, factor=10, retries=None))
    def task():
        """Never run."""

    return task


def decision(task, *, retries=0):
    request = SimpleNamespace(retries=retries, delivery_info={}, headers=None, id="1")
    return decision_on(task, OSError(), request=request)


def test_a_policy_that_grows_ends_at_what_the_app_grants_every_time(task):
    assert [decision(task, retries=retries) for retries in (0, 1, 2, 3)] == [
        Wait(1_000),
        Wait(10_000),
        Wait(60_000),
        Wait(60_000),
    ]


def test_another_policy_counts_from_the_next_error_on(task):
    before = decision(task)
    task.policy = Fixed(7)

    assert (before, decision(task)) == (Wait(1_000), Wait(7_000))
