"""``celery dlx plan``, ``check``, ``declare``, ``policy``, ``prune`` and ``doctor`` on a real broker."""

from __future__ import annotations

import json
import shlex

import pytest
from kombu.connection import Connection
from support import eventually

from celery_dlx_retry.broker.declare import declare
from celery_dlx_retry.broker.management import management_of
from celery_dlx_retry.topology.names import WorkQueue
from celery_dlx_retry.topology.objects import lane
from tests.acceptance.commandline import CommandLine, invoke
from tests.worker.stage import stage


@pytest.fixture(scope="module")
def project(request):
    with stage(request) as it:
        yield it


@pytest.fixture(scope="module")
def declared(dlx):
    """The plan, declared; what the check said before and after."""
    before = dlx.json("check", code=1)
    dlx("declare")
    return before, dlx.json("check")


def test_check_finds_all_missing_before_declare_and_nothing_after(dlx, declared, project):
    before, after = declared
    planned = [it["name"] for it in dlx.json("plan") if it["object"] != "binding"]

    assert sorted(it["name"] for it in before) == sorted([*planned, project.queue])
    assert {it["kind"] for it in before} == {"missing"}
    assert after == []


def test_a_worker_that_may_not_declare_runs_on_what_declare_made(declared, project):
    assert declared
    with project.worker("--dlx-check-only", pool="solo"):
        assert project.send("by_policy", 1).get(timeout=20) == "up"


def test_drift_is_told_and_is_exit_code_1(dlx, declared, project):
    assert declared
    lane_name = project.lane(180_000)
    with Connection(project.url) as connection:
        connection.default_channel.queue_delete(lane_name)

    printed = dlx("check", code=1)

    assert f"missing\tqueue\t{lane_name}\tThe queue '{lane_name}' does not exist.\tRun" in printed
    assert printed.endswith("\n1 difference.\n")
    dlx("declare")


@pytest.mark.parametrize(
    ("form", "start"),
    [
        ("mermaid", "flowchart LR\n"),
        ("rabbitmqctl", "rabbitmqctl import_definitions"),
        ("definitions", "{\n"),
        ("terraform", 'resource "rabbitmq_exchange"'),
    ],
)
def test_the_plan_comes_in_the_words_of_other_tools(dlx, project, form, start):
    assert dlx("plan", "--format", form, "-Q", project.queue).startswith(start)


def test_the_ladder_is_in_the_plan_if_asked_for_and_no_longer_missing_once_declared(dlx, declared, project):
    assert declared
    without, whole = (dlx.json("plan", "-Q", project.queue, *words) for words in ((), ("--ladder",)))
    rungs = {it["name"] for it in whole if it not in without and it["object"] == "queue"}

    landing = project.names.landing(WorkQueue(name=project.queue))
    assert rungs == {landing, *(project.names.rung(100, number) for number in range(29))}
    assert {it["name"] for it in dlx.json("check", "--ladder", code=1) if it["kind"] == "missing"} == {
        *rungs,
        project.names.landings(),
    }
    (told,) = dlx.json("declare", "--ladder")
    assert (told["prefix"], told["queues"]) == (project.prefix, sum(it["object"] == "queue" for it in whole))
    assert "The broker matches the plan." in dlx("check", "--ladder")


def test_a_work_queue_without_a_countdown_needs_no_landing_queue(dlx, declared, project):
    assert declared
    dlx("declare", "--ladder")
    landing = project.names.landing(WorkQueue(name=project.queue))
    with Connection(project.url) as connection:
        connection.default_channel.queue_delete(landing)

    assert "The broker matches the plan." in dlx("check")
    assert [it["name"] for it in dlx.json("check", "--ladder", code=1)] == [landing]
    dlx("declare")
    assert "The broker matches the plan." in dlx("check", "--ladder")


def test_a_ladder_that_stands_is_checked_without_asking(dlx, declared, project):
    assert declared
    dlx("declare", "--ladder")
    lowest, third = (project.names.rung(100, number) for number in (0, 3))
    with Connection(project.url) as connection:
        channel = connection.default_channel
        channel.queue_delete(lowest)
        channel.queue_unbind(third, third, arguments={"x-match": "all", "dlx-rung-03": True})
        channel.queue_bind(third, third, arguments={"x-match": "all", "dlx-rung-04": True})

    checked = {it["name"]: it for it in dlx.json("check", code=1)}
    facts = {it["fact"] for it in dlx.json("doctor", code=1) if it["code"] == "drift"}

    assert {name: it["kind"] for name, it in checked.items()} == {lowest: "missing", f"{third} -> {third}": "unbound"}
    assert "x-match=all dlx-rung-03=True" in checked[f"{third} -> {third}"]["fact"]
    assert facts == {it["fact"] for it in checked.values()}
    dlx("declare", "--ladder")


def test_who_may_not_configure_is_told_what_is_not_checked(limited_url, broker, prefix):
    with Connection(broker.url) as connection:
        connection.default_channel.queue_declare(prefix, durable=True, auto_delete=False)

    checked, doctor = (invoke("-b", limited_url, "dlx", command, "-Q", prefix) for command in ("check", "doctor"))

    assert checked.exit_code == 1
    assert checked.output.splitlines()[-1].endswith(" not checked.")
    assert f"unknown-type\tThe type of the work queue '{prefix}' is not known: the broker user" in doctor.output


def test_the_policy_that_is_printed_keeps_what_the_broker_throws_out(dlx, declared, project, broker, management):
    if not broker.can_restart:
        pytest.skip("rabbitmqctl is only for a broker of our own")
    assert declared
    theirs = {
        "pattern": f"^{project.queue}$",
        "definition": {"expires": 86_400_000},
        "priority": 3,
        "apply-to": "queues",
    }
    management.call("PUT", f"/policies/{management._vhost}/theirs", theirs)

    comment, printed = dlx("policy").splitlines()
    command = shlex.split(printed)
    broker.ctl(*command[1:])

    def thrown_out():
        """One message more; a policy does not apply in the same instant."""
        project.send("succeed")
        with Connection(project.url) as connection:
            channel = connection.default_channel
            found = eventually(lambda: channel.basic_get(project.queue))
            channel.basic_reject(found.delivery_tag, requeue=False)
        return project.dead()

    letter, *_ = eventually(thrown_out)
    for policy in ("theirs", command[-3]):
        management.call("DELETE", f"/policies/{management._vhost}/{policy}")

    assert comment == f"# Takes the place of the policy 'theirs' on {project.queue}, and keeps what it sets."
    assert command[5] == "4"
    assert json.loads(command[-1])["expires"] == 86_400_000
    assert command[0] == "rabbitmqctl"
    assert (letter.record.reason, letter.record.task) == ("rejected", "project.succeed")


def test_prune_deletes_empty_lanes_that_nobody_announced_and_asks_first(dlx, declared, project):
    assert declared
    stray, full = project.lane(77_000), project.lane(78_000)
    with Connection(project.url) as connection:
        for delay_ms in (77_000, 78_000):
            declare(connection, lane(project.names, WorkQueue(name=project.queue), delay_ms))
        connection.Producer().publish("x", routing_key=full)
    eventually(lambda: project.depth(full) == 1)
    eventually(lambda: {stray, full} <= {it["queue"] for it in dlx.json("status", "--all") if it["exists"]})
    dry = eventually(lambda: dlx.json("prune", "--dry-run"))  # RabbitMQ counts a new queue after some seconds

    dlx("prune", code=1)  # nobody answers the question
    done = dlx.json("prune", "--yes")
    again = dlx("prune", "--yes")

    assert dry == [{"lane": stray, "deleted": False, "reason": ""}]
    assert done == [{"lane": stray, "deleted": True, "reason": ""}]
    assert "\n0 empty lanes deleted; 7 lanes kept: 6 because a task announces it (--all), 1 because something" in again
    assert (project.depth(stray), project.depth(full), project.depth(project.lane(180_000))) == (None, 1, 0)


@pytest.mark.usefixtures("declared")
def test_prune_leaves_the_ladder_of_an_earlier_version_alone(dlx, project, broker):
    """An empty rung is on the way of what waits in a higher one: without it that message would be lost or stuck."""
    rung = f"{project.prefix}.v1.ladder.quorum.00100.03"
    with Connection(project.url) as connection:
        arguments = {"x-queue-type": "quorum"}
        connection.default_channel.queue_declare(rung, durable=True, auto_delete=False, arguments=arguments)
        api = management_of(connection, broker.management_url)
        eventually(lambda: api.queues()[rung].get("messages") == 0)

    pruned = {it["lane"] for it in dlx.json("prune", "--all", "--dry-run")}

    assert pruned
    assert rung not in pruned


@pytest.mark.parametrize(
    ("words", "step"), [("declare", "topology.declare_if_missing"), ("prune --yes", "prune.lanes_on_broker.prune")]
)
@pytest.mark.usefixtures("declared")
def test_who_is_interrupted_has_still_said_what_was_done(dlx, monkeypatch, words, step):
    def ctrl_c(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(f"celery_dlx_retry.operations.{step}", ctrl_c)
    told = dlx(*words.split(), code=1)

    assert f"audit {words.split()[0]} by=" in told


def test_the_doctor_finds_what_bites(project, broker, dlx):
    assert dlx
    found = alone(project, broker, "project_ill", code=1)

    assert {it["code"] for it in found if it["severity"] != "info"} >= {
        "early-acks",
        "consumes-dead-letters",
        "quorum-without-dlx",
        "length-limit",
        "not-durable",
        "transient-messages",
        "waits-in-worker",
        "worker-lost-loop",
        "low-delivery-limit",
        "unlimited-prefetch",
        "undetected-quorum",
        "unconfirmed-publish",
        "result-expiry",
    }
    assert {it["fact"] for it in found if it["code"] == "waits-in-worker"} == {
        f"The task project_ill.{name} retries, and its base class is not DLXRetryTask." for name in ("ship", "invoice")
    }
    assert all(it["fact"] and it["consequence"] and it["cure"] for it in found)


def test_the_doctor_finds_nothing_in_a_healthy_project(request, broker, http_api):
    assert http_api
    with stage(request) as fresh:  # no test has left a task in its queue
        with CommandLine(fresh, broker, module="project_well").start("declare") as process:
            assert process.wait(60) == 0
        found = alone(fresh, broker, "project_well", code=0)

    assert {it["code"] for it in found} == {"no-consumer"}  # its workers do not run


def alone(project, broker, module, *, code):
    """What the doctor finds, in a process of its own: Celery apps of one process share their tasks."""
    with CommandLine(project, broker, module=module).start("doctor", "--json") as process:
        out, err = process.communicate(timeout=60)
    assert process.returncode == code, out + err
    return [json.loads(line) for line in out.splitlines()]
