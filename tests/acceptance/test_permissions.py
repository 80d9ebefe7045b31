"""The permissions on the page are enough; what is taken away is named."""

from __future__ import annotations

import json
import os
import re
import secrets
import shlex
import subprocess
import sys
from contextlib import closing, contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from amqp import Message
from harness import Project
from kombu.connection import Connection
from support import eventually

from celery_dlx_retry.broker.crash_marks import marks_of
from celery_dlx_retry.broker.declare import declare
from celery_dlx_retry.topology.names import WorkQueue
from celery_dlx_retry.topology.objects import work_queue_objects
from tests.acceptance.commandline import CommandLine
from tests.acceptance.tenancy import Tenancy
from tests.workers import celery as command
from tests.workers import start_worker

PAGE = Path(__file__).parents[2] / "docs" / "brokers.md"
USUAL, _, STRICT = PAGE.read_text().partition("### Without the default exchange")
LINES = re.findall(r"^# ([\w-]+): .*\n(rabbitmqctl set_permissions .*)$", USUAL, re.MULTILINE)
GRANTS = {role: shlex.split(command)[5:] for role, command in LINES}
RETURN = "dlx.v1.return.quorum"


@pytest.fixture
def tenancy(broker, http_api):
    with closing(Tenancy(broker, http_api, f"t{secrets.token_hex(4)}")) as it:
        yield it


@pytest.fixture
def shop(tenancy, redis_url, tmp_path):
    """The page's app: its queue is named orders and its prefix is dlx, in a virtual host of its own."""
    it = Project(url=tenancy.url, backend=redis_url, prefix="dlx", folder=tmp_path)
    it.queue = it.conf["task_default_queue"] = "orders"
    yield it
    it.close()


def as_user(shop, tenancy, role, **conf):
    """From now on all of the shop's processes are a user with this role."""
    shop.conf["broker_url"] = tenancy.user(*GRANTS[role], tags="monitoring")
    shop.conf |= conf


@contextmanager
def commands(shop, broker):
    """``celery dlx`` as the shop's present user, who is also the HTTP API's."""
    shop.prefix = f"t{secrets.token_hex(4)}"  # of the module that is loaded
    api = SimpleNamespace(management_url=re.sub("//.*@", "//", broker.management_url))
    with closing(CommandLine(shop, api)) as dlx:
        yield dlx


def send(shop, code):
    """What a process says that runs this code on the project's tasks, to be the sender of a countdown."""
    command = [sys.executable, "-c", f"import project\nproject.app.set_default()\n{code}"]
    done = subprocess.run(command, env=shop.environment(), capture_output=True, text=True, check=True, timeout=60)
    return done.stdout + done.stderr


def was_refused(log):
    return re.search(r"\(403\)|REFUSED|lacks a permission|may not|left to Celery|not checked", log)


def without(patterns, pattern):
    """The same, but for one of the alternatives."""
    return patterns.replace(f"|{pattern}", "").replace(f"({pattern}|", "(")


def test_a_worker_needs_no_more_than_the_page_says(shop, tenancy):
    as_user(shop, tenancy, "worker")
    shop.without = ()

    with shop.worker("-E", concurrency=1) as first, shop.worker("-E", concurrency=1) as second:
        workers = [first, second]
        assert shop.send("heal", 1, 0.1).get(timeout=20) == "healed"
        assert shop.send("heal", 1, 1.7).get(timeout=20) == "healed"  # a lane that nobody announced
        assert shop.send("succeed", 5, countdown=0.5).get(timeout=20) == 5
        for name in ("exhaust", "overrun"):
            shop.send(name)
        eventually(lambda: len(shop.dead()) == 2)
        assert len(shop.app.control.ping(timeout=3, limit=2)) == 2
        assert len(shop.app.control.cancel_consumer("orders", reply=True, limit=2, timeout=5)) == 2
        assert len(shop.app.control.add_consumer("orders", reply=True, limit=2, timeout=5)) == 2
        killed = shop.send("slow", 2)
        eventually(lambda: shop.records(id=killed.id))
        next(worker for worker in workers if f"{killed.id}] received" in worker.log).kill()
        eventually(lambda: shop.depth(marks_of(shop.names, killed.id, queue="orders").name) == 1)
        eventually(lambda: shop.records(id=killed.id, event="done"))
        eventually(lambda: shop.depth(marks_of(shop.names, killed.id, queue="orders").name) is None)

    assert not was_refused(first.log + second.log)


def test_with_quorum_queues_a_worker_needs_no_more_than_the_command_prints(shop, tenancy, broker):
    shop.conf["task_default_queue_type"] = "quorum"
    with commands(shop, broker) as dlx:
        (grant,) = dlx.json("permissions", "worker")
    shop.conf["broker_url"] = tenancy.user(grant["configure"], grant["write"], grant["read"])

    with shop.worker() as worker:
        assert shop.send("heal", 1, 0.1).get(timeout=20) == "healed"

    assert grant["vhost"] == tenancy.vhost
    assert not was_refused(worker.log)


def test_who_does_not_declare_runs_and_sends_what_an_operator_declared(shop, tenancy, broker):
    as_user(shop, tenancy, "declarer")
    with commands(shop, broker) as dlx:
        dlx("declare", "--ladder")

    as_user(shop, tenancy, "worker-that-checks", dlx_declare=False)
    with shop.worker() as worker:
        as_user(shop, tenancy, "sender")
        said = send(shop, "project.succeed.delay(1); project.succeed.apply_async((2,), countdown=0.3)")
        assert shop.send("heal", 1, 0.1).get(timeout=20) == "healed"
        shop.send("fail")
        eventually(shop.dead)
        eventually(lambda: len(shop.records(task="project.succeed")) == 2)

    assert not was_refused(said + worker.log)


def test_who_looks_and_who_repairs_need_no_more_than_the_page_says(shop, tenancy, broker, tmp_path):
    with shop.worker():
        letter = shop.send("fail")
        eventually(shop.dead)
        waiting = shop.send("heal", 1, 60)

        as_user(shop, tenancy, "viewer")
        with commands(shop, broker) as dlx:
            # RabbitMQ 4 hides the queues from this user, and the HTTP API's counts are some seconds old.
            eventually(lambda: "0 to work, 1 waiting in 1 lane, 1 dead" in dlx("status"))
            assert "may not read" in dlx("dead", "list", "-q", "orders", code=1)

        as_user(shop, tenancy, "reader")
        with commands(shop, broker) as dlx:
            assert "orders.dead" in dlx("status")
            eventually(lambda: waiting.id in dlx("waiting", "list"))
            assert "project.fail" in dlx("dead", "list")
            assert re.search(r"No differences found\. \d+ not checked\.", dlx("check"))
            dlx("dead", "export", "-o", str(tmp_path / "letters"))
            refused = dlx("dead", "replay", "--all", "--yes", code=1)
            assert "The broker user may not bind to 'dlx.v1.return.quorum' the queue 'orders'." in refused
            assert was_refused(dlx("waiting", "run", waiting.id, code=1))

        as_user(shop, tenancy, "declarer")
        with commands(shop, broker) as dlx:
            assert "The broker matches the plan." in dlx("declare")
            assert "The broker matches the plan." in dlx("check")

        as_user(shop, tenancy, "operator")
        with commands(shop, broker) as dlx:
            dlx("waiting", "run", waiting.id)
            assert waiting.get(timeout=20) == "healed"
            dlx("dead", "edit", letter.id, "--set", 'text="changed"', "--no-check", "--yes")
            dlx("dead", "replay", "--all", "--yes")
            eventually(lambda: len(shop.records(task="project.fail")) == 2)
            eventually(shop.dead)
            dlx("dead", "purge", "--all", "--yes")
            dlx("dead", "import", str(tmp_path / "letters"), "--yes")
            dlx("dead", "purge", "--all", "--yes")

        as_user(shop, tenancy, "declarer")
        with commands(shop, broker) as dlx:
            dlx("prune", "--yes")
    assert shop.dead() == []


def test_an_operator_reaches_only_queues_that_it_may_write(shop, tenancy, broker):
    with shop.worker():
        shop.send("fail")
        eventually(shop.dead)
    with Connection(tenancy.url) as connection:
        connection.default_channel.queue_declare("invoices", durable=True, auto_delete=False)

    as_user(shop, tenancy, "operator")
    with commands(shop, broker) as dlx:
        refused = dlx("dead", "replay", "--all", "--yes", "--to-queue", "invoices", code=1)

    assert "The broker user may not bind to 'dlx.v1.return.quorum' the queue 'invoices'." in refused
    assert shop.depth("invoices") == 0
    assert len(shop.dead()) == 1


def test_operators_of_apps_that_share_a_prefix_do_not_lock_each_other_out(shop, tenancy, broker):
    other = WorkQueue(name="invoices")
    with shop.worker(), Connection(tenancy.url) as connection:
        connection.default_channel.queue_declare(other.name, durable=True, auto_delete=False)
        declare(connection, work_queue_objects(shop.names, other))
        for queue in ("invoices.dead", "invoices"):
            connection.default_channel.basic_publish_confirm(Message("[]"), exchange="", routing_key=queue)
        shop.send("fail")
        eventually(shop.dead)

    as_user(shop, tenancy, "operator")
    with commands(shop, broker) as dlx:
        shown = dlx("dead", "list")
        assert "project.fail" in shown
        assert "Note: invoices.dead is left out: the broker user may not read it." in shown
        assert "ValueError" in dlx("dead", "groups")
        eventually(lambda: {it["queue"]: it["ready"] for it in dlx.json("status")}["invoices.dead"] == 1)
        refused = dlx("dead", "list", "-q", "invoices", code=1)
        assert "The broker user may not read the queue 'invoices.dead'." in refused
        dlx("dead", "replay", "--all", "--yes")
    assert shop.dead() == []


def test_a_user_that_may_read_no_dead_letters_gets_an_error_and_no_empty_list(shop, tenancy, broker):
    with shop.worker():
        shop.send("fail")
        eventually(shop.dead)

    with commands(shop, broker) as dlx:
        as_user(shop, tenancy, "worker-that-checks")
        for command in ("list", "groups", "export"):
            refused = dlx("dead", command, code=1)
            assert "Error: The broker user may not read the queue 'orders.dead'." in refused


def test_declare_names_the_work_queue_that_the_user_may_not_declare(shop, tenancy, broker):
    as_user(shop, tenancy, "viewer")
    with commands(shop, broker) as dlx:
        refused = dlx("declare", code=1)

    assert "Error: The broker user may not declare the queue 'orders'." in refused


def test_the_strict_app_of_the_page_runs_with_what_the_command_prints(shop, tenancy, broker, tmp_path, monkeypatch):
    module = f"strict{secrets.token_hex(4)}"
    (tmp_path / f"{module}.py").write_text(
        re.search(r"```python\n(.*?)```", STRICT, re.DOTALL)[1]
        + "app.conf.update(broker_url=os.environ['URL'], broker_transport_options={'confirm_publish': True})\n"
        + "@app.task(bind=True, default_retry_delay=0.1)\n"
        + "def again(self):\n    if not self.request.retries: raise self.retry()\n    last.delay()\n"
        + "@app.task\ndef last():\n    raise KeyError('the end')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    api = re.sub("//.*@", "//", broker.management_url)

    def strict(role, *words):
        printed = json.loads(celery(role, "dlx", "permissions", role, "--json", url=tenancy.url))
        assert not printed["reaches_every_queue"]
        patterns = [printed[name] for name in ("configure", "write", "read")]
        assert (
            role not in {"worker-that-checks", "sender"} or f" USER {shlex.join(patterns)}\n" in STRICT
        )  # the page's transcript
        url = tenancy.user(*patterns, tags="monitoring")
        return celery(role, *words, url=url) if words else url

    def celery(role, *words, url):
        environment = {**os.environ, "SHOP_ROLE": role, "URL": url, "DLX_MANAGEMENT_URL": api}
        done = subprocess.run(
            command(module, *words),
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        return done.stdout

    strict("declarer", "dlx", "declare")
    environment = {**os.environ, "URL": strict("worker-that-checks")}
    flags = ("worker", "-P", "solo", "-l", "INFO")
    worker = start_worker(command(module, *flags), log=tmp_path / "log", environment=environment, cwd=tmp_path)
    try:
        strict("sender", "call", f"{module}.again")
        eventually(lambda: shop.depth("orders.dead") == 1, within=40)
    finally:
        worker.stop()

    assert not was_refused(worker.log)
    assert f"{module}.last" in strict("reader", "dlx", "dead", "list")
    strict("operator", "dlx", "dead", "replay", "--all", "--yes")
    assert shop.depth("orders") == 1


@pytest.mark.parametrize(
    ("kind", "pattern", "sentence"),
    [
        (0, r"dlx\.v[12]\..*", "The broker user may not configure the queue 'dlx.v1."),
        (0, r"orders\.dead", "The broker user may not configure the queue 'orders.dead'."),
        (
            1,
            r"dlx\.v[12]\..*",
            f"The broker user may not use, for the exchange '{RETURN}', the exchange",
        ),
        (2, r"dlx\.v[12]\..*", f"read the exchange '{RETURN}'."),
    ],
)
def test_a_worker_that_lacks_one_stops_with_one_sentence(shop, tenancy, kind, pattern, sentence):
    patterns = list(GRANTS["worker"])
    patterns[kind] = without(patterns[kind], pattern)
    assert patterns != GRANTS["worker"]
    shop.conf["broker_url"] = tenancy.user(*patterns)

    worker = shop.start(pool="solo")
    eventually(lambda: worker.process.poll() is not None, within=40)

    assert worker.process.returncode
    assert sentence in worker.log
    assert "Traceback" not in worker.log


def test_a_worker_that_may_not_use_the_default_exchange_still_counts_crash_loops(shop, tenancy):
    configure, write, read = GRANTS["worker"]
    shop.conf["broker_url"] = tenancy.user(configure, without(write, r"amq\.default"), read)

    with shop.worker(pool="solo") as worker:
        shop.conf["broker_url"] = tenancy.url
        result = shop.send("reject", True)  # noqa: FBT003 - the task's argument
        eventually(lambda: len(shop.records(id=result.id)) == 2)

    assert not was_refused(worker.log)
    assert "start not marked" not in worker.log
