"""Settings: each bad value is one sentence, and each good one makes names that RabbitMQ takes."""

from __future__ import annotations

from datetime import timedelta

from celery import Celery

from celery_dlx_retry.app.context import context_of
from celery_dlx_retry.errors import ConfigurationError
from celery_dlx_retry.policy.budget import Budget
from celery_dlx_retry.settings import NAMES
from celery_dlx_retry.topology.names import WorkQueue
from tests.fuzz import values
from tests.fuzz.verdict import check_sentence

GOOD = {
    "dlx_prefix": ["shop", "p" * 100, "a.b:c_d-e"],
    "dlx_queue_type": ["classic", "quorum"],
    "dlx_dead_letter_queue": ["{queue}.dead", "dead", "{queue}{queue}{queue}", "d" * 190 + "{queue}", "ä{queue}"],
    "dlx_bulkheads": [1, 8, 999],
    "dlx_grid": [1.01, 1.2, 2],
    "dlx_max_delay": [1, 3600, timedelta(days=3650)],
    "dlx_lane_expires": [0, 140, timedelta(days=1)],
    "dlx_ladder_resolution": [0.01, 1, 60],
    "dlx_ladder_range": [60, timedelta(days=3650)],
    "dlx_confirm_timeout": [0.001, 5],
    "dlx_crash_limit": [1, 2**63],
    "dlx_budget": [0.1, Budget(per_minute=1), Budget],
    "dlx_max_waiting": [1, 999_999_999],
}
TYPOS = ("dlx_prefx", "dlx_", "dlx_Prefix", "dlx_max_delay_ms", "dlx_budgets")


def drawn(it):
    found = {}
    for name in it.sample(sorted(NAMES), it.randrange(1, 4)):
        good = GOOD.get(name, [True, False])
        found[name] = it.choice(good) if it.is_one_in(2) else values.anything(it)
    if it.is_one_in(20):
        found[it.choice(TYPOS)] = 1
    return found


def test_a_setting_is_used_or_refused_in_one_sentence(fuzz):
    def attempt(it):
        conf = drawn(it)
        queue = it.choice(["celery", "q" * 60, "q" * 200, "ä" * 60, "a b"])
        it.note({**conf, "queue": queue})
        app = Celery("fuzz", broker="memory://", set_as_current=False)
        app.conf.update(conf)
        try:
            context = context_of(app)
            topology = context.plan([app.amqp.queues.select_add(queue) or app.amqp.queues[queue]], ladder=True)
        except ConfigurationError as exc:
            check_sentence(exc)
            return
        finally:
            app.close()
        callables = [name for name, value in conf.items() if callable(value)]
        assert not callables, f"{callables} are no values, and were ignored"
        names = [one.name for one in (*topology.exchanges, *topology.queues)]
        names.append(context.names.dead_letters(WorkQueue(name=queue).name))
        for name in names:
            assert 1 <= len(name.encode()) <= values.LONGEST_NAME, f"{len(name.encode())} bytes: {name}"

    fuzz.each("settings", attempt)
