"""Starting, refusing to start, reconnecting; and what happens without RabbitMQ."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from kombu.connection import Connection
from support import as_user, eventually, proxied


def refused(worker) -> str:
    """The log of a worker that did not start."""
    eventually(lambda: worker.process.poll() is not None, within=40)
    assert worker.process.returncode not in {0, None}
    return worker.log


def test_the_topology_stands_before_the_first_task_is_consumed(project):
    with project.worker():
        assert project.depth(project.lane(180_000)) == 0
        assert project.depth(project.lane(100)) == 0
        assert project.depth(project.names.dead_letters(project.queue)) == 0
        assert project.depth(project.names.orphans()) == 0


def test_a_worker_stops_with_one_sentence_when_a_queue_of_ours_has_other_arguments(project):
    with Connection(project.url) as connection:
        connection.default_channel.queue_declare(
            project.lane(180_000), durable=True, auto_delete=False, arguments={"x-message-ttl": 5}
        )

    log = refused(project.start())

    assert f"The queue '{project.lane(180_000)}' exists with x-" in log
    assert "Delete it once it is empty" in log
    assert "Traceback" not in log


def test_a_worker_stops_with_one_sentence_when_it_may_not_declare(project, broker, prefix):
    broker.ctl("add_user", prefix, "secret")
    try:
        broker.ctl("set_permissions", prefix, f"^({project.queue}|celery.*|.*pidbox|reply.*)$", ".*", ".*")
        project.conf["broker_url"] = as_user(project.url, f"{prefix}:secret")

        log = refused(project.start())
    finally:
        broker.ctl("delete_user", prefix)

    assert "The broker user may not configure the queue" in log
    assert "Traceback" not in log
    assert "secret" not in log


@pytest.fixture
def stranger(project):
    """The project's broker, under another name."""
    with proxied(project.url, to_client=lambda data: data.replace(b"RabbitMQ", b"LapineMQ")) as url:
        project.conf["broker_url"] = url
        yield project


def test_a_worker_does_not_start_where_quorum_queues_may_be_something_else(stranger):
    stranger.conf["dlx_queue_type"] = "quorum"

    log = refused(stranger.start())

    assert "The broker is LapineMQ" in log
    assert "which only RabbitMQ is known to have" in log
    assert "Traceback" not in log


def test_a_worker_that_does_not_ask_for_them_starts_there_and_warns(stranger):
    stranger.conf["dlx_queue_type"] = "classic"

    with stranger.worker() as worker:
        assert "not RabbitMQ: what is promised was never tested with it" in worker.log
        assert stranger.send("heal", 1).get(timeout=30) == "healed"


def test_a_worker_that_only_checks_stops_when_something_is_missing(project):
    log = refused(project.start("--dlx-check-only"))

    assert "does not exist. Start a worker whose user may declare it" in log
    assert "Traceback" not in log


@pytest.mark.parametrize(
    ("conf", "flags", "sentence"),
    [
        ({"dlx_prefx": "x"}, (), "There is no setting 'dlx_prefx'. Did you mean 'dlx_prefix'?"),
        ({"dlx_grid": 5}, (), "dlx_grid is 5; it must be a number from 1.01 to 2."),
        ({"dlx_max_delay": 0.09}, (), "The task 'project.by_policy' asks to wait 100 ms; dlx_max_delay allows 90 ms."),
        ({}, ("--dlx-prefix", "a b"), "dlx_prefix is 'a b'; it must be"),
        ({}, ("--dlx-queue-type", "stream"), "'stream' is not one of 'classic', 'quorum'"),
        ({}, ("--dlx-confirm-timeout", "soon"), "'soon' is not a valid float"),
    ],
)
def test_a_wrong_setting_or_flag_is_one_sentence_and_no_start(project, conf, flags, sentence):
    project.conf |= conf

    log = refused(project.start(*flags))

    assert sentence in log
    assert "Traceback" not in log


def test_a_worker_refuses_a_task_whose_strategy_is_not_celerys(project):
    log = refused(project.start(module="project_strategy"))

    assert "The task 'strategy.both' has the Strategy project_strategy.Batches.Strategy, which runs it without" in log
    assert "Traceback" not in log
    assert project.depth(project.queue) is None


def test_a_queue_that_was_made_for_another_prefix_is_one_sentence_and_no_start(project, monkeypatch):
    monkeypatch.setenv("PROJECT_QUEUES", json.dumps({project.queue: {}}))

    log = refused(project.start(module="project_prefixes"))

    assert f"dlx_queue({project.queue!r}): its dead letters go to 'dlx.v1.dead', and dlx_prefix is" in log
    assert f"write dlx_queue({project.queue!r}, prefix={project.prefix!r}), or set dlx_prefix = 'dlx'." in log
    assert "Traceback" not in log
    assert project.depth(project.queue) is None


def test_a_queue_that_was_made_for_the_apps_prefix_starts(project, monkeypatch):
    monkeypatch.setenv("PROJECT_QUEUES", json.dumps({project.queue: {"prefix": project.prefix}}))

    with project.worker(module="project_prefixes"):
        assert project.depth(project.queue) == 0


def test_where_no_wait_may_be_long_what_has_no_limit_of_its_own_ends_there(project):
    """Nobody asked for the hundred seconds after a crash, for Celery's three minutes, or for the years of a backoff."""
    project.conf["dlx_max_delay"] = 0.7
    with project.worker(module="project_growing"):
        crashed, silent, grown = project.send("crash", 1), project.send("say_nothing"), project.send("grow", 3)
        eventually(lambda: len(project.records(id=grown.id)) == 4)
        eventually(lambda: len(project.records(id=crashed.id)) == len(project.records(id=silent.id)) == 2)

    assert project.dead() == []
    for task, least in ((crashed, [0.7]), (silent, [0.7]), (grown, [0.1, 0.7, 0.7])):
        at = [run["at"] for run in project.records(id=task.id)]
        assert all(later - sooner >= wait for sooner, later, wait in zip(at, at[1:], least, strict=False))
    eventually(lambda: project.depth(project.lane(700)) == 0)  # a quorum lane counts a little late


def test_the_flags_are_in_the_help(project):
    command = [sys.executable, "-m", "celery", "-A", "project", "worker", "--help"]

    text = subprocess.run(command, env=project.environment(), capture_output=True, text=True, check=True).stdout

    for flag in (
        "--dlx-prefix",
        "--dlx-queue-type",
        "--dlx-declare / --dlx-check-only",
        "--dlx-confirm-timeout",
        "--dlx-require-rabbitmq",
    ):
        assert flag in text


def test_a_worker_that_lost_its_broker_declares_everything_again(project, broker):
    with project.worker() as worker:
        assert project.send("heal", 1).get(timeout=20) == "healed"
        broker.restart()
        eventually(lambda: worker.log.count("topology stands") >= 2, within=60)

        assert project.send("heal", 1).get(timeout=40) == "healed"


def test_on_another_broker_celerys_own_retries_are_used_with_one_warning(project, redis_url):
    project.conf["broker_url"] = redis_url
    project.environment = _with(project.environment, PYTHONWARNINGS="default")
    with project.worker() as worker:
        result = project.send("heal", 1)

        assert result.get(timeout=20) == "healed"

    assert worker.log.count("DLXRetryTask needs RabbitMQ; the broker transport is 'redis'") == 1


def test_on_another_broker_it_can_be_an_error(project, redis_url):
    project.conf |= {"broker_url": redis_url, "dlx_require_rabbitmq": True}

    log = refused(project.start())

    assert "The broker transport is 'redis', but dlx_require_rabbitmq is set" in log
    assert "Traceback" not in log


def _with(environment, **more):
    return lambda: {**environment(), **more}
