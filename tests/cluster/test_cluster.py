"""What a cluster of three promises: quorum queues, a node that dies, nothing lost."""

from __future__ import annotations

import io
import os
import random
import time
from collections import Counter
from contextlib import closing
from itertools import cycle
from pathlib import Path

import pytest
from amqp.exceptions import AMQPError
from harness import Project
from kombu.connection import Connection
from kombu.exceptions import KombuError
from support import eventually, put

from celery_dlx_retry.broker.counts import depth
from celery_dlx_retry.broker.declare import declare
from celery_dlx_retry.errors import NoAnswer
from celery_dlx_retry.testing.chaos import report as chaos_names
from celery_dlx_retry.testing.chaos.breaks import Broken, outage, take_down
from celery_dlx_retry.testing.chaos.command import View
from celery_dlx_retry.testing.chaos.report import Report
from celery_dlx_retry.testing.chaos.run import Plan, Run
from celery_dlx_retry.testing.sandbox import WayFailed
from celery_dlx_retry.topology.names import Names, WorkQueue
from celery_dlx_retry.topology.objects import lane, shared_objects, work_queue_objects
from tests.provision.cluster import start_cluster
from tests.provision.node import start_private_node
from tests.provision.rabbitmq import ROOT

WAITING = 10_000
WAIT_MS = 20_000
LETTERS, PAGE = 100_000, 1_000


@pytest.fixture(scope="module")
def started(say):
    root = os.environ.get(ROOT)
    try:
        cluster = start_cluster(Path(root).resolve() if root else None)
    except WayFailed as exc:
        pytest.skip(f"a cluster needs a local RabbitMQ: {exc}")
    with cluster:
        say(f"RabbitMQ {cluster.version}, {len(cluster.nodes)} nodes")
        yield cluster


@pytest.fixture
def cluster(started):
    """Whole again after each test."""
    yield started
    started.start()


def test_when_the_leader_of_a_lane_is_killed_all_that_wait_in_it_come_back(cluster, say):
    names, work = Names(prefix="leader"), WorkQueue(name="leader.work")
    stand(cluster.url, names, work)
    put(cluster.url, range(WAITING), exchange=names.lanes(), routing_key=names.lane(work, WAIT_MS))

    found = Counter()
    assert take(cluster.url, work.name, found)
    assert not found, "all of them still wait"

    cluster.leader_of(names.lane(work, WAIT_MS)).kill()

    eventually(lambda: take(cluster.url, work.name, found) and len(found) == WAITING, within=90)
    say(f"{WAITING} in = {len(found)} back, {found.total() - len(found)} duplicates")
    assert set(found) == set(range(WAITING))


def test_workers_start_and_work_while_a_node_is_down(cluster, say):
    cluster.nodes[0].kill()  # the first that everybody tries

    report = run_chaos(cluster, tasks=100)

    say(report.count.line)
    assert report.count.lost == ()


def test_a_worker_and_the_commands_go_on_when_the_node_that_they_use_is_killed(cluster, redis_url, tmp_path):
    project = Project(url=cluster.url, backend=redis_url, prefix="failover", folder=tmp_path)
    project.conf |= {"task_default_queue_type": "quorum", "broker_failover_strategy": "shuffle"}
    with closing(project), project.worker() as worker:
        waiting = project.send("heal", 1, 5)
        eventually(lambda: project.records(id=waiting.id))

        cluster.nodes[0].kill()

        assert waiting.get(timeout=90) == "healed"
        assert project.send("heal", 1, 0.1).get(timeout=60) == "healed"
        for command in ("status", "check"):
            done = project.celery("dlx", command)
            assert done.returncode == 0, done.stdout + done.stderr
    assert "another broker" not in worker.log


def test_retries_for_a_classic_queue_whose_node_is_down_come_back_by_themselves(cluster, redis_url, tmp_path):
    """RabbitMQ 3.10 finds no route and parks them with the orphans, 4.3 keeps them in their lane."""
    home = cluster.nodes[-1]
    project = Project(url=cluster.url, backend=redis_url, prefix="home", folder=tmp_path)
    with Connection(home.url) as connection:
        connection.default_channel.queue_declare(
            project.queue, durable=True, auto_delete=False, arguments={"x-queue-type": "classic"}
        )
    with closing(project):
        worker = project.start().wait_until_ready()
        results = [project.send("heal", 1, 12) for _ in range(20)]
        for result in results:
            eventually(lambda task_id=result.id: project.records(id=task_id), within=60)

        home.kill()
        worker.stop()  # it may have ended by itself: Celery does when a queue cannot be declared
        down = time.monotonic()
        eventually(lambda: time.monotonic() > down + 20, within=30)
        home.start()
        cluster.wait_until_whole()

        with project.worker():
            assert [result.get(timeout=240) for result in results] == ["healed"] * 20


def test_a_worker_that_finds_another_broker_behind_its_urls_says_so(cluster, redis_url, tmp_path):
    root = os.environ.get(ROOT)
    with start_private_node(Path(root).resolve() if root else None) as other:
        url = f"{other.url};{cluster.nodes[0].url}"
        project = Project(url=url, backend=redis_url, prefix="other", folder=tmp_path)
        with closing(project), project.worker() as worker:
            other.kill()

            eventually(lambda: "this is another broker" in worker.log, within=60)
            project.conf["broker_url"] = cluster.nodes[0].url
            assert project.send("heal", 1, 0.1).get(timeout=60) == "healed"


def test_a_worker_that_starts_beside_a_frozen_node_says_that_it_waits(cluster, redis_url, tmp_path):
    project = Project(url=cluster.nodes[0].url, backend=redis_url, prefix="frozen", folder=tmp_path)
    frozen = cluster.nodes[-1]
    frozen.pause()
    try:
        with closing(project):
            worker = project.start()
            eventually(lambda: "The worker start has waited" in worker.log, within=60)
            frozen.resume()

            worker.wait_until_ready(within=150)
            assert project.send("heal", 1, 0.1).get(timeout=60) == "healed"
    finally:
        frozen.resume()


def test_a_dead_letter_queue_that_recovers_while_a_new_app_starts_keeps_every_letter():
    """On one node, which is killed. It recovers while another prefix's topology is declared around it."""
    root = os.environ.get(ROOT)
    work = WorkQueue(name="recovering.work")
    dead_letters = Names(prefix="before").dead_letters(work.name)
    with start_private_node(Path(root).resolve() if root else None) as node:
        stand(node.url, Names(prefix="before"), work)
        for start in range(0, LETTERS, PAGE):
            put(node.url, range(start, start + PAGE), routing_key=dead_letters)

        node.kill()
        node.start()
        eventually(lambda: has_stood(node.url, Names(prefix="after"), work), within=120)

        eventually(lambda: depth_of(node.url, dead_letters) == LETTERS, within=60)


def test_each_node_in_turn_is_killed_and_started_under_load(cluster, say):
    nodes = cycle(cluster.nodes)

    def break_one():
        node = next(nodes)
        broken = take_down(node, node.name, kill=True)
        node.start()
        cluster.wait_until_whole()
        return broken

    report = run_chaos(cluster, tasks=150, restarts=len(cluster.nodes), break_broker=break_one)

    say(report.count.line)
    assert report.as_dict()["restarts"] == len(cluster.nodes)
    assert report.count.lost == ()


def test_a_node_that_is_cut_off_from_the_others_loses_nothing(cluster, say):
    nodes, chance = cycle(cluster.nodes), random.Random(1)  # noqa: S311 - the same outages every time

    def break_one():
        node, begin = next(nodes), time.time()
        with cluster.cut_off(node):
            eventually(lambda: not cluster.is_whole())
            outage(chance)
        cluster.wait_until_whole()
        return Broken(what=f"{node.name} cut off", at=begin, is_crash=True)

    report = run_chaos(cluster, tasks=150, restarts=len(cluster.nodes), break_broker=break_one)

    say(report.count.line)
    assert report.as_dict()["restarts"] == len(cluster.nodes)
    assert report.count.lost == ()


def run_chaos(cluster, *, tasks, restarts=0, break_broker=None):
    plan = Plan(
        tasks=tasks,
        workers=1,
        concurrency=6,  # a new quorum lane takes two seconds to settle, and a process as long
        kills=0,
        restarts=restarts,
        queue_type="quorum",
        lanes="quorum",
        seconds=240,
        seed=1,
    )
    out = io.StringIO()
    with closing(Run(plan, cluster.url, break_broker, View(out), keep=None)) as run:
        run.go()
        assert run.is_in_time, out.getvalue()
        report = Report(run)
    chaos_names.delete(cluster.url, run.names, [])  # dozens of quorum queues would be a burden to the next test
    return report


def stand(url, names, work):
    with Connection(url) as connection:
        connection.channel().queue_declare(
            work.name, durable=True, auto_delete=False, arguments={"x-queue-type": "quorum"}
        )
        topology = shared_objects(names) | work_queue_objects(names, work) | lane(names, work, WAIT_MS)
        declare(connection, topology)


def has_stood(url, names, work):
    try:
        stand(url, names, work)
    except NoAnswer:
        return False
    return True


def depth_of(url, queue):
    with Connection(url) as connection:
        return depth(connection, queue)


def take(url, queue, found):
    """Take out all that is there; True unless the connection was lost meanwhile."""
    try:
        with Connection(url) as connection:
            channel = connection.channel()
            while message := channel.basic_get(queue):
                found[int(message.body)] += 1
                channel.basic_ack(message.delivery_tag)
    except (AMQPError, KombuError, OSError):
        return False
    return True
