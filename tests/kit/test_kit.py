"""The kit for users' tests: what it claims is what happened, eagerly, in a thread, in processes, and in Django."""

from __future__ import annotations

import re
import textwrap
import time
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from celery import Celery, group
from celery.contrib.testing.worker import start_worker
from celery.exceptions import Retry
from kombu.connection import Connection
from support import eventually

from celery_dlx_retry import DEAD, LET_FAIL, Budget, DLXRetryTask, Exponential, Fixed, On, RetryIn
from celery_dlx_retry.broker.dead_letters import browse
from celery_dlx_retry.errors import NoBroker
from celery_dlx_retry.testing import provide, record
from celery_dlx_retry.testing.sandbox import wait_until
from celery_dlx_retry.testing.worker_process import NoWorker
from tests.kit.outside import run_pytest, write

PAGE = Path(__file__).parents[2] / "docs" / "testing.md"


def make(app):
    """Tasks that fail in the ways that a kit must see."""

    @app.task(base=DLXRetryTask, shared=False, policy=Exponential(1, rules=[On(KeyError, DEAD), On(OSError, LET_FAIL)]))
    def charge(error="ConnectionError"):
        raise {"ConnectionError": ZeroDivisionError, "KeyError": KeyError, "OSError": OSError}[error](error)

    @app.task(bind=True, base=DLXRetryTask, shared=False, max_retries=2)
    def webhook(self, **when):
        if self.request.retries < 2:
            raise self.retry(exc=TimeoutError("slow"), **when)

    @app.task(
        bind=True, base=DLXRetryTask, shared=False, autoretry_for=(ValueError,), retry_backoff=7, retry_jitter=False
    )
    def mail(self):
        if self.request.retries < 3:
            raise ValueError("hung up")

    @app.task(base=DLXRetryTask, shared=False, policy=Fixed(600, retries=None, deadline=2000))
    def until():
        raise RetryIn(700)

    @app.task(bind=True, base=DLXRetryTask, shared=False, policy=Exponential(1, rules=[On(TimeoutError, [7, 8])]))
    def turns(self):
        raise TimeoutError if self.request.retries % 2 else ZeroDivisionError

    @app.task(base=DLXRetryTask, shared=False, policy=Fixed(1), budget=Budget(0.5, reserve=1))
    def frugal():
        raise OSError

    @app.task(bind=True, base=DLXRetryTask, shared=False)
    def refund(self):
        self.dead_letter("was paid in Drachma")

    app.conf.task_default_queue = "kit"
    return app


@pytest.fixture
def eager():
    return make(Celery("eager", broker="memory://", set_as_current=False))


@pytest.fixture
def embedded(broker, prefix, dlx):  # noqa: ARG001 - a recorder that is there first lets the worker stop soon
    """An app whose worker runs in a thread."""
    app = make(Celery("embedded", broker=broker.url, set_as_current=False))
    app.conf.update(task_default_queue=f"{prefix}.kit", dlx_prefix=prefix)
    refund = task(app, "refund")

    @app.task(shared=False)
    def sends():
        refund.delay()
        group(refund.s(), refund.s()).delay()
        app.send_task(refund.name)

    with start_worker(app, perform_ping_check=False):
        yield app
    app.close()


def task(app, name):
    return app.tasks[f"{__name__}.{name}"]


def test_an_eager_task_follows_its_policy(eager, dlx):
    charge = task(eager, "charge")

    result = charge.apply()

    assert (result.state, type(result.result)) == ("FAILURE", ZeroDivisionError)
    dlx.assert_retried(charge, delays=[1, 2, 4])
    dlx.assert_dead(charge, reason="exhausted")
    dlx.assert_dead(result)


def test_always_eager_is_the_same(eager, dlx):
    eager.conf.task_always_eager = True
    charge = task(eager, "charge")

    dead, failed = charge.delay("KeyError"), charge.delay("OSError")

    dlx.assert_dead(dead, reason="failed")
    dlx.assert_retried(charge, delays=[])
    with pytest.raises(AssertionError, match="is no dead letter"):
        dlx.assert_dead(failed)
    with pytest.raises(AssertionError, match="is a dead letter, reason failed; expected success"):
        dlx.assert_succeeded(dead)
    with pytest.raises(AssertionError, match="ended as FAILURE; expected success"):
        dlx.assert_succeeded(failed)


def test_retry_and_autoretry_are_recorded_with_what_they_asked_for(eager, dlx):
    webhook, mail = task(eager, "webhook"), task(eager, "mail")

    counted = webhook.apply(kwargs={"countdown": 3600})
    dated = webhook.apply(kwargs={"eta": datetime.now(timezone.utc) + timedelta(hours=2)})
    assert mail.apply().state == "SUCCESS"

    dlx.assert_retried(counted, delays=[timedelta(hours=1)] * 2)
    dlx.assert_retried(dated, delays=pytest.approx([7200, 7200], abs=5))
    dlx.assert_retried(mail, delays=[7, 14, 28])
    dlx.assert_succeeded(mail)
    dlx.assert_succeeded()


def test_an_eager_task_counts_the_retries_of_each_rule(eager, dlx):
    task(eager, "turns").apply()

    dlx.assert_retried(task(eager, "turns"), delays=[1, 7, 2, 8, 4])
    dlx.assert_dead(task(eager, "turns"), reason="exhausted")


def test_a_deadline_passes_although_nobody_waited(eager, dlx):
    task(eager, "until").apply()

    dlx.assert_retried(task(eager, "until"), delays=[700, 700])
    dlx.assert_dead(reason="exhausted")


def test_a_budget_begins_anew_in_each_test(eager):
    for _ in range(2):
        with record() as dlx:
            task(eager, "frugal").apply()

            dlx.assert_retried(task(eager, "frugal"), delays=[1])
            dlx.assert_dead(reason="budget")


def test_an_error_that_propagates_does_so_and_is_recorded(eager, dlx):
    eager.conf.task_eager_propagates = True

    with pytest.raises(Retry):
        task(eager, "charge").apply()

    dlx.assert_retried(task(eager, "charge"), delays=[1])


def test_after_the_block_an_eager_task_is_celerys_again(eager):
    charge = task(eager, "charge")
    with record() as dlx:
        charge.apply()

    assert charge.apply().state == "FAILURE"

    assert charge.retry.__func__ is DLXRetryTask.retry
    assert not hasattr(DLXRetryTask.retry, "__wrapped__")
    with pytest.raises(FileNotFoundError):
        _ = dlx.records


def test_a_direct_call_is_a_function_call_and_not_recorded(eager, dlx):
    with pytest.raises(TimeoutError):
        task(eager, "webhook")(countdown=1)

    assert dlx.records == []


def test_a_claim_that_is_not_so_fails_with_what_was_recorded(eager, dlx):
    charge = task(eager, "charge")
    with pytest.raises(AssertionError, match=r"^Nothing is recorded\. Was .*charge sent"):
        dlx.assert_retried(charge, delays=[])
    charge.apply()

    with pytest.raises(AssertionError) as failure:
        dlx.assert_retried(charge, delays=[1, 2])

    told = without_ids(str(failure.value)).replace(f"{__name__}.", "").splitlines()
    assert told[:4] == [
        "Message <id> was retried after 1 s, 2 s, 4 s; expected 1 s, 2 s.",
        "Recorded:",
        "  charge <id> called",
        "  charge <id> attempt 1: ZeroDivisionError: ConnectionError -> retried after 1 s",
    ]
    with pytest.raises(
        AssertionError, match=r"^Nothing is recorded of shop\.other, only of .*charge\. Was shop\.other sent"
    ):
        dlx.assert_dead("shop.other")
    with pytest.raises(ValueError, match=r"no reason 'exausted'\. Reasons are budget, crash-loop, exhausted, expired,"):
        dlx.assert_dead(charge, reason="exausted")


def test_a_worker_in_a_thread_waits_for_nothing_and_tells_the_true_delays(embedded, dlx):
    charge, webhook, refund = (task(embedded, name) for name in ("charge", "webhook", "refund"))

    results = charge.delay(), webhook.apply_async(kwargs={"countdown": 37}, countdown=3600), refund.delay()

    # The worker may be slow to begin. The waits that are left after its first retry would take more than six seconds.
    eventually(lambda: len(dlx.records) > len(results), within=30)
    begin = time.monotonic()
    dlx.assert_retried(results[0], delays=[1, 2, 4], within=30)
    dlx.assert_dead(charge, reason="exhausted")
    dlx.assert_retried(webhook, delays=[37, 37], within=30)
    dlx.assert_succeeded(webhook)
    dlx.assert_dead(refund, reason="requested")
    assert time.monotonic() - begin < 6
    with embedded.connection_for_read() as connection:
        letters = {it.record.task: it for it in browse(connection, f"{embedded.conf.task_default_queue}.dead")}
    assert [failure.delay_ms for failure in letters[charge.name].history] == [1000, 2000, 4000, None]


def test_a_worker_counts_the_retries_of_each_rule(embedded, dlx):
    task(embedded, "turns").delay()

    dlx.assert_retried(task(embedded, "turns"), delays=[1, 7, 2, 8, 4])


def test_on_another_broker_the_policy_decides_and_celerys_own_retries_are_recorded(dlx):
    app = Celery("elsewhere", broker="memory://", backend="cache+memory://", set_as_current=False)

    @app.task(bind=True, base=DLXRetryTask, shared=False, policy=Exponential(0.1, rules=[On(TimeoutError, [0.3])]))
    def flaky(self):
        if self.request.retries < 3:
            raise TimeoutError if self.request.retries == 1 else ZeroDivisionError

    with pytest.warns(UserWarning, match="needs RabbitMQ"), start_worker(app, perform_ping_check=False):  # noqa: PT031
        flaky.delay()

        dlx.assert_retried(flaky, delays=[0.1, 0.3, 0.2])
        dlx.assert_succeeded(flaky)


SPACED = b'[ [],  {},  {"callbacks": null, "errbacks": null, "chain": null, "chord": null} ]'


def test_a_worker_of_a_test_retries_with_a_copy_of_the_received_message(embedded, dlx):
    letter = letter_of_a_spaced_message(embedded, task(embedded, "charge").name, dlx)

    assert letter.message.headers["retries"] == 3
    assert letter.message.body == SPACED, "Celery writes no spaces"


def letter_of_a_spaced_message(app, name, dlx):
    """Send a body that only a copy keeps as it is, and return its dead letter."""
    queue = app.conf.task_default_queue
    with Connection(app.conf.broker_url) as connection:
        connection.Producer().publish(
            SPACED,
            routing_key=queue,
            content_type="application/json",
            content_encoding="utf-8",
            headers={"lang": "py", "task": name, "id": "spaced", "retries": 0},
        )
        assert wait_until(lambda: ("dead", "spaced") in {(it.event, it.task_id) for it in dlx.records}, within=10)
        (letter,) = [it for it in browse(connection, f"{queue}.dead") if it.record.task_id == "spaced"]
    return letter


def test_what_a_task_sends_in_a_worker_is_recorded_once(embedded, dlx):
    refund, sends = task(embedded, "refund"), task(embedded, "sends")

    sends.delay()

    dlx.assert_succeeded(sends)
    dlx.assert_dead(refund, reason="requested")
    assert [it.task for it in dlx.records if it.event == "sent"] == [sends.name] + [refund.name] * 4


def test_a_deadline_passes_in_a_worker_too(embedded, dlx):
    task(embedded, "until").delay()

    dlx.assert_retried(task(embedded, "until"), delays=[700, 700])


def test_what_no_worker_takes_is_told_as_such(embedded, dlx):
    charge = task(embedded, "charge")
    charge.apply_async(queue=f"{embedded.conf.task_default_queue}.other")

    with pytest.raises(
        AssertionError, match=r"Not at its end after 0\.2 s: .*charge\. Does a worker .* or set task_always_eager\."
    ):
        dlx.assert_retried(charge, delays=[], within=0.2)


REAL = """
    import os, signal, time
    from celery import Celery
    from celery_dlx_retry import DLXRetryTask, Fixed

    app = Celery("real", set_as_current=False)
    app.conf.update(task_default_queue="{prefix}.kit", dlx_prefix="{prefix}", worker_lost_wait=0.2)

    @app.task(base=DLXRetryTask)
    def dies():
        os.kill(os.getpid(), signal.SIGKILL)

    @app.task(base=DLXRetryTask, policy=Fixed(60, retries=1), time_limit=0.5)
    def hangs():
        time.sleep(30)

    @app.task(base=DLXRetryTask, policy=Fixed(60, retries=1))
    def fails():
        raise OSError
"""


def test_a_real_worker_records_what_only_its_main_process_sees(dlx, broker, prefix, tmp_path, monkeypatch):
    (tmp_path / f"{prefix}_real.py").write_text(textwrap.dedent(REAL.format(prefix=prefix)))
    monkeypatch.syspath_prepend(tmp_path)
    app = Celery("sender", broker=broker.url, set_as_current=False)
    app.conf.task_default_queue = f"{prefix}.kit"
    module = f"{prefix}_real"

    with dlx.worker(module, broker=broker.url):
        for name in ("dies", "hangs", "fails"):
            app.send_task(f"{module}.{name}")

        dlx.assert_retried(f"{module}.fails", delays=[60])
        dlx.assert_retried(f"{module}.hangs", delays=[60])
        dlx.assert_dead(f"{module}.hangs", reason="timeout")
        dlx.assert_retried(f"{module}.dies", delays=[1, 10])
        dlx.assert_dead(f"{module}.dies", reason="worker-lost")
        letter = letter_of_a_spaced_message(app, f"{module}.fails", dlx)
    app.close()
    assert (letter.message.headers["retries"], letter.message.body) == (1, SPACED), "a copy, as in production"


def test_a_worker_that_does_not_start_says_why(dlx, broker, prefix, tmp_path, monkeypatch):
    (tmp_path / f"{prefix}_broken.py").write_text("import shops")
    monkeypatch.syspath_prepend(tmp_path)

    for module, why in (
        ("no_such_module", "The module no_such_module was not found."),
        (f"{prefix}_broken", "ModuleNotFoundError: No module named 'shops'"),
    ):
        with pytest.raises(NoWorker) as failure, dlx.worker(module, broker=broker.url):
            pass
        told = str(failure.value).splitlines()
        assert told[0] == f"No worker could be started with -A {module}. It said:"
        assert f"  {why}" in told
        assert len(told) <= 12


MORE = """
from celery_dlx_retry import DLXRetryTask

@pytest.fixture(scope="session")
def celery_config(dlx_rabbitmq):
    return {"broker_url": dlx_rabbitmq.url, "task_default_queue": "of-celery-app"}

@pytest.fixture(scope="session")
def celery_worker_parameters():
    return {"perform_ping_check": False}

def test_celerys_own_fixture(dlx, celery_app, celery_worker):
    @celery_app.task(base=DLXRetryTask, policy=[5])
    def own():
        raise OSError
    celery_worker.reload()
    own.delay()
    dlx.assert_retried(own, delays=[5])

def test_wrong(dlx):
    charge.apply(("order-1",))
    dlx.assert_retried(charge, delays=[1, 2])
"""


def test_the_page_is_true(broker, tmp_path):
    page = PAGE.read_text()
    shop, *others = re.findall(r"(<!-- continued -->\n)?```python\n(.*?)```\n", page, re.DOTALL)
    tests = [code for is_continued, code in others if is_continued]
    (promised,) = re.findall(r"```text\n(.*?)```", page, re.DOTALL)
    (tmp_path / "shop.py").write_text(shop[1])
    (tmp_path / "test_shop.py").write_text("\n".join(["from shop import app, charge", *tests, MORE]))

    told = run_pytest(tmp_path, "-p", "no:django", "-p", "celery.contrib.pytest", broker=broker)

    assert "1 failed, 6 passed" in told, told
    shown = [without_ids(line.removeprefix("E").strip()) for line in told.splitlines()]
    assert {without_ids(line.strip()) for line in promised.splitlines()} <= set(shown)


def without_ids(line):
    return re.sub(r"\b[0-9a-f]{8}\b", "<id>", line)


WRONG = {
    "shop.py": """
        from celery import Celery
        from celery_dlx_retry import DLXRetryTask

        app = Celery("shop", broker="amqp://guest:geheim@127.0.0.1:1//")

        @app.task(base=DLXRetryTask)
        def charge():
            pass
        """,
    "elsewhere/conftest.py": """
        import pytest
        from shop import app

        @pytest.fixture(scope="session", autouse=True)
        def broker_url(dlx_rabbitmq):
            app.conf.broker_url = dlx_rabbitmq.url
        """,
    "test_shop.py": """
        import contextlib
        from shop import app, charge

        def test_no_broker(dlx):
            charge.delay()

        def test_its_error_is_swallowed(dlx):
            with contextlib.suppress(Exception):
                charge.delay()
            dlx.assert_retried(charge, delays=[])

        def test_eager(dlx):
            app.conf.task_always_eager = True
            charge.delay()
            app.conf.task_always_eager = False
            dlx.assert_succeeded(charge)

        def test_too_late(dlx, dlx_rabbitmq):
            app.conf.broker_url = dlx_rabbitmq.url
            charge.delay()
        """,
}
TO = "WrongBroker: A task was about to be sent to 127.0.0.1:1, virtual host '/', but this test"


@pytest.mark.parametrize("has_broker", [False, True])
def test_a_test_that_would_send_to_another_broker_fails_at_once_with_one_sentence(broker, tmp_path, has_broker):
    (tmp_path / "elsewhere").mkdir()
    write(tmp_path, WRONG)

    selected = [] if has_broker else ["-k", "not too_late"]
    told = run_pytest(
        tmp_path, "-p", "no:django", "--durations=0", "-vv", *selected, broker=broker if has_broker else None
    )

    assert max(float(seconds) for seconds in re.findall(r"^([\d.]+)s call", told, re.MULTILINE)) < 5
    assert "geheim" not in told
    if has_broker:
        assert told.count(f" - celery_dlx_retry.testing.recorder.{TO}'s broker is 127.0.0.1:") == 2, told
        assert "3 failed, 1 passed" in told
    else:
        assert f"{TO} has no broker. Set app.conf.broker_url = dlx_rabbitmq.url before the app first sends" in told
        assert "2 failed, 1 passed" in told, told
    assert f"AssertionError: {TO.removeprefix('WrongBroker: ')}" in told, "the error that was swallowed"


DJANGO = {
    "settings.py": """
        SECRET_KEY = "x"
        INSTALLED_APPS = ["django.contrib.auth", "django.contrib.contenttypes"]
        DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "db", "TEST": {"NAME": "test-db"}}}
        USE_TZ = True
        CELERY_TASK_ALWAYS_EAGER = True
        CELERY_TASK_DEFAULT_QUEUE = CELERY_DLX_PREFIX = "@prefix@"
        """,
    "shop.py": """
        from celery import Celery, shared_task
        from celery_dlx_retry import DLXRetryTask

        app = Celery("shop")
        app.config_from_object("django.conf:settings", namespace="CELERY")

        @shared_task(base=DLXRetryTask, policy=[60, 600])
        def confirm(name):
            from django.contrib.auth.models import Group

            Group.objects.get(name=name)
            raise ConnectionError("the mail server hung up")
        """,
    "conftest.py": """
        import pytest
        from shop import app

        @pytest.fixture(scope="session", autouse=True)
        def broker_url(dlx_rabbitmq):
            assert dlx_rabbitmq.url == "@url@", "the one that is configured"
            app.conf.broker_url = dlx_rabbitmq.url
        """,
    "pytest.ini": """
        [pytest]
        DJANGO_SETTINGS_MODULE = settings
        dlx_broker_url = @url@
        """,
    "test_checkout.py": """
        import pytest
        from celery.contrib.testing.worker import start_worker
        from celery_dlx_retry.testing import record
        from django.contrib.auth.models import Group
        from django.db import transaction
        from django.test import TestCase, TransactionTestCase
        from shop import app, confirm

        def order(name):
            with transaction.atomic():
                Group.objects.create(name=name)
                transaction.on_commit(lambda: confirm.delay(name))

        class CheckoutTest(TestCase):
            def test_it_runs_after_the_commit_and_is_retried(self):
                with record() as dlx:
                    with self.captureOnCommitCallbacks(execute=True):
                        order("one")
                    dlx.assert_retried(confirm, delays=[60, 600])
                    dlx.assert_dead(confirm, reason="exhausted")

        class WorkerTest(TransactionTestCase):
            @pytest.fixture(autouse=True)
            def _recorder(self, dlx):
                self.dlx = dlx

            def test_a_worker_in_a_thread_sees_what_is_committed(self):
                app.conf.task_always_eager = False
                try:
                    with start_worker(app, perform_ping_check=False):
                        order("two")
                        self.dlx.assert_retried(confirm, delays=[60, 600])
                        self.dlx.assert_dead(confirm, reason="exhausted")
                finally:
                    app.conf.task_always_eager = True

        def test_pytest_django(db, dlx, django_capture_on_commit_callbacks):
            with django_capture_on_commit_callbacks(execute=True):
                order("three")
            dlx.assert_retried(confirm, delays=[60, 600])
        """,
}


def test_djangos_test_cases_and_pytest_django_do_not_get_in_its_way(broker, prefix, tmp_path):
    write(tmp_path, DJANGO, prefix=prefix, url=broker.url)

    (case,) = [code for code in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL) if "TestCase" in code]
    (tmp_path / "test_page.py").write_text(case)

    told = run_pytest(tmp_path)

    assert "4 passed" in told, told


def test_a_broker_that_is_given_must_be_there(monkeypatch):
    monkeypatch.delenv("DLX_TEST_BROKER_URL", raising=False)

    with pytest.raises(NoBroker, match=r"127\.0\.0\.1:1// does not answer"):
        provide(url="amqp://guest:guest@127.0.0.1:1//")
