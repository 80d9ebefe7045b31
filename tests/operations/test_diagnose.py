"""A diagnosis as a value, of a broker that answers, that is down, or that is another product."""

from __future__ import annotations

import threading

import pytest

from celery_dlx_retry.operations.diagnose import STEPS, diagnose
from celery_dlx_retry.operations.monitor import Monitor
from celery_dlx_retry.operations.operation_errors import Stopped


def codes(diagnosis):
    return {it.code for it in diagnosis.grave}


def test_a_broken_app_has_findings_and_the_steps_are_reported(make_app, broker):
    app = make_app(broker.url, worker_prefetch_multiplier=0, task_default_delivery_mode="transient")
    steps = []

    found = diagnose(app, monitor=Monitor(progress=lambda *step: steps.append(step)))

    assert {"unlimited-prefetch", "transient-messages"} <= codes(found)
    assert all(it.fact and it.consequence and it.cure for it in found.findings)
    assert steps == [(done, STEPS) for done in range(1, STEPS + 1)]


def test_a_broker_that_is_down_is_a_finding_beside_those_of_the_app(make_app):
    found = diagnose(make_app("amqp://127.0.0.1:1//", worker_prefetch_multiplier=0))

    assert "unlimited-prefetch" in codes(found)
    assert any("127.0.0.1:1" in it.fact for it in found.grave)


def test_another_broker_is_a_finding(make_app):
    assert diagnose(make_app("memory://")).grave


def test_a_diagnosis_that_is_cancelled_has_no_result(app):
    cancel = threading.Event()

    with pytest.raises(Stopped, match="The diagnosis was stopped before it had a result"):
        diagnose(app, monitor=Monitor(progress=lambda *_: cancel.set(), cancel=cancel))
