"""``celery dlx status`` and ``waiting`` on a real project, and what every command says when all is lost."""

from __future__ import annotations

import sys
import time

import kombu.transport
import pytest
from amqp import Message as RawMessage
from kombu.connection import Connection
from kombu.utils.url import url_to_parts
from support import eventually

from celery_dlx_retry.broker.declare import declare
from celery_dlx_retry.broker.peek import peek
from celery_dlx_retry.topology.names import WorkQueue
from celery_dlx_retry.topology.objects import work_queue_objects
from tests.acceptance.commandline import invoke
from tests.worker.stage import stage

WAIT_SECONDS = 600


@pytest.fixture(scope="module")
def project(request):
    with stage(request) as it:
        yield it


@pytest.fixture(scope="module")
def waiting(project, dlx):
    """Three tasks that wait ten minutes, and one that is dead."""
    project.start(pool="solo").wait_until_ready()
    dead = project.send("fail")
    results = [project.send("heal", 1, WAIT_SECONDS) for _ in range(3)]
    lane = project.grid_lane(WAIT_SECONDS * 1000)
    eventually(lambda: project.depth(lane) == 3 and project.dead())
    eventually(lambda: lane in {it["queue"] for it in dlx.json("status")})
    return [*results, dead]


def test_the_status_counts_what_works_waits_and_is_dead(project, dlx, waiting):
    assert waiting
    found = {(it["role"], it["queue"]): it for it in dlx.json("status")}

    lane = found["wait", project.grid_lane(WAIT_SECONDS * 1000)]
    assert (lane["ready"], lane["consumers"]) == (3, 0)
    assert 0 < lane["next_ms"] - time.time() * 1000 <= lane["next_ms"] - lane["oldest_ms"] < WAIT_SECONDS * 1100
    assert found["work", project.queue]["consumers"] == 1
    assert found["dead", f"{project.queue}.dead"]["ready"] == 1
    assert "3 waiting in 1 lane, 1 dead, 0 orphans; next wake-up 20" in dlx("status")


def test_the_status_shows_queues_that_only_a_worker_names_and_those_that_were_named_alone(project, dlx, waiting):
    assert waiting
    other = WorkQueue(name=f"{project.prefix}.only-by-q")
    with Connection(project.url) as connection:
        connection.default_channel.queue_declare(other.name, durable=True, auto_delete=False)
        declare(connection, work_queue_objects(project.names, other))

    everything, named = dlx.json("status"), dlx.json("status", "-Q", project.queue)
    dead, others_dead = (project.names.dead_letters(name) for name in (project.queue, other.name))
    lane = project.grid_lane(WAIT_SECONDS * 1000)

    assert [it["queue"] for it in everything][:3] == [project.queue, other.name, lane]
    assert {it["queue"] for it in everything if it["role"] == "dead"} == {dead, others_dead}
    assert {it["queue"] for it in named if it["role"] in {"work", "dead"}} == {project.queue, dead}


def test_what_nobody_takes_out_has_no_rate_out_however_often_we_look(project, dlx, waiting):
    assert waiting
    found = [dlx.json("status") for _ in range(3)][-1]

    assert {it["role"] for it in found if it["out_per_second"] is None} >= {"wait", "dead", "orphans"}
    assert project.queue in {it["queue"] for it in found if it["out_per_second"] is not None}


def test_json_has_the_lanes_that_the_table_has(project, dlx, waiting):
    assert waiting
    for words in ([], ["--all"]):
        rows = [line.split("\t") for line in dlx("status", *words).splitlines()]

        assert [it["queue"] for it in dlx.json("status", *words)] == [row[1] for row in rows[1:] if len(row) > 1]
    assert project.lane(180_000) in {it["queue"] for it in dlx.json("status", "--all")}
    assert project.lane(180_000) not in {it["queue"] for it in dlx.json("status")}


@pytest.mark.parametrize("words", ["waiting list -q nowhere", "status -Q nowhere", "policy -Q nowhere"])
def test_a_work_queue_that_does_not_exist_is_told_and_exit_code_1(dlx, waiting, words):
    assert waiting

    assert dlx(*words.split(), code=1).endswith("Not found: work queue nowhere.\n")


def test_who_waits_is_listed_and_filtered(project, dlx, waiting):
    listed = dlx.json("waiting", "list")

    assert [it["task_id"] for it in listed] == [result.id for result in waiting[:3]]
    assert {(it["task"], it["queue"], it["retry"]) for it in listed} == {("project.heal", project.queue, 1)}
    assert len(dlx.json("waiting", "list", "--task", "*.heal", "-q", project.queue, "--limit", "2")) == 2
    assert dlx.json("waiting", "list", "--task", "shop.*") == []
    assert dlx.json("waiting", "list", "-q", "nobody*") == []
    assert dlx.json("waiting", "list", "-q", f"{project.queue}.dead") == []
    assert waiting[0].id in dlx("waiting")


def test_a_lane_that_somebody_looks_into_is_told_and_the_others_are_shown(project, dlx, waiting):
    lane = project.grid_lane(WAIT_SECONDS * 1000)
    kind = project.names.kind
    with Connection(project.url) as connection, peek(connection, lane, kind=kind) as messages:
        assert len(list(messages)) == 3

        status = dlx("status")
        listed = dlx("waiting", "list", code=1)
        moved = dlx("waiting", "run", waiting[0].id, code=1)

    assert f"\nwait\t{lane}\t0\t" in status
    assert f"another command reads {lane}. Tasks that it holds are not counted." in status
    assert "waiting, 0 shown\n" in listed
    for told in (listed, moved):
        assert (
            "another process reads it; try again in a moment" in told if kind == "quorum" else "Somebody looks" in told
        )
    assert "audit waiting run by=" in moved
    eventually(lambda: project.depth(lane) == 3)


def test_one_runs_now_one_is_cancelled_and_the_third_keeps_its_time(project, dlx, waiting):
    runs, cancelled, stays, _ = waiting
    (before,) = [it for it in dlx.json("waiting", "list") if it["task_id"] == stays.id]

    dlx("waiting", "run", runs.id)
    dlx("waiting", "cancel", cancelled.id, code=1)  # nobody answers the question
    dlx("waiting", "cancel", cancelled.id, "--yes")

    assert runs.get(timeout=20) == "healed"
    letter = eventually(lambda: next((it for it in project.dead() if it.record.task_id == cancelled.id), None))
    assert (letter.record.reason, letter.record.error_type, letter.record.queue) == (
        "requested", "Cancelled", project.queue,
    )  # fmt: skip
    assert dlx.json("waiting", "list") == [before]
    dlx("waiting", "run", runs.id, code=1)  # it no longer waits


@pytest.mark.parametrize("words", ["run", "cancel"])
def test_what_does_not_wait_is_not_found_and_nobody_is_asked(dlx, waiting, words):
    assert waiting

    told = dlx("waiting", words, "nobody", code=1)

    assert told.splitlines()[-1] == "Not found: task id nobody."
    assert "?" not in told


def test_a_countdown_is_listed_with_its_due_time_and_runs_now_if_asked(project, dlx, waiting):
    assert waiting
    due = time.time() + WAIT_SECONDS
    result = project.app.send_task("project.succeed", ("now",), countdown=WAIT_SECONDS)

    listed = eventually(lambda: [it for it in dlx.json("waiting", "list") if it["task_id"] == result.id])
    assert due <= listed[0]["due_ms"] / 1000 + 0.001 < due + 30
    dlx("waiting", "run", result.id)

    assert result.get(timeout=20) == "now"


@pytest.mark.parametrize("words", [["run"], ["cancel", "--yes"]])
def test_a_task_that_names_a_queue_of_others_does_not_get_there(project, dlx, waiting, words):
    """On the ladder the routing key is the sender's: it may lead to work queues and to nothing else."""
    assert waiting
    result = project.app.send_task("project.succeed", countdown=WAIT_SECONDS)
    (listed,) = eventually(lambda: [it for it in dlx.json("waiting", "list") if it["task_id"] == result.id])
    victim = f"{project.prefix}.victim"
    with Connection(project.url) as connection:
        channel = connection.default_channel
        channel.queue_declare(victim, durable=True, auto_delete=False)
        rung = f"dlx-rung-{listed['lane'][-2:]}"
        headers = {"id": f"liar-{words[0]}", "task": "project.succeed", rung: True}
        channel.basic_publish(RawMessage(b"[]", application_headers=headers, delivery_mode=2), listed["lane"], victim)
    eventually(lambda: [it for it in dlx.json("waiting", "list") if it["task_id"] == headers["id"]])

    dlx("waiting", words[0], headers["id"], *words[1:], code=0 if words == ["run"] else 1)

    assert project.depth(victim) == 0
    dlx("waiting", "cancel", result.id, "--yes")


def test_a_countdown_that_is_cancelled_was_never_tried(project, dlx, waiting):
    assert waiting
    result = project.app.send_task("project.succeed", countdown=WAIT_SECONDS)
    eventually(lambda: [it for it in dlx.json("waiting", "list") if it["task_id"] == result.id])

    dlx("waiting", "cancel", result.id, "--yes")

    assert "  before its first attempt: Cancelled: while it waited, by " in dlx("dead", "show", result.id)


def test_who_is_interrupted_has_still_said_what_was_done(project, dlx, waiting, monkeypatch):
    assert waiting
    result = project.app.send_task("project.succeed", ("now",), countdown=WAIT_SECONDS)
    eventually(lambda: [it for it in dlx.json("waiting", "list") if it["task_id"] == result.id])

    def ctrl_c(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("celery_dlx_retry.cli.status.json_line", ctrl_c)
    told = dlx("waiting", "run", result.id, "--json", code=1)

    assert "audit waiting run by=" in told
    assert "asked=1 moved=1" in told
    assert result.get(timeout=20) == "now"


COMMANDS = [
    "status", "waiting", "waiting list", "waiting run x", "waiting cancel x --yes",
    "check", "declare", "policy", "prune --yes", "doctor",
]  # fmt: skip
DEAD = ["dead list", "dead replay --all --yes", "dead replay x --canary 1 --silence-is-success --yes", "dead purge x"]


@pytest.mark.parametrize("words", [words for words in [*COMMANDS, *DEAD] if words != "doctor"])
def test_a_broker_that_is_down_is_one_sentence_without_its_password(nowhere, words):
    done = invoke(*nowhere, *words.split())

    assert done.exit_code == 1
    assert done.output == (
        "Error: The broker at 127.0.0.1:1, virtual host 'shop', cannot be used: [Errno 111] Connection refused.\n"
    )


def test_all_hosts_of_a_failover_url_are_named_and_a_login_that_is_refused_is_no_more_telling(broker):
    port = url_to_parts(broker.url).port

    hosts = invoke("-b", "amqp://shop:geheim@127.0.0.1:1//;amqp://shop:geheim@[::1]:2/x", "dlx", "status")
    login = invoke("-b", f"amqp://shop:geheim@127.0.0.1:{port}//", "dlx", "status")

    assert "The broker at 127.0.0.1:1, virtual host '/' or [::1]:2, virtual host 'x', cannot be used" in hosts.output
    assert f"The broker at 127.0.0.1:{port}, virtual host '/', cannot be used: (0, 0): (403) ACCESS" in login.output
    assert "geheim" not in hosts.output + login.output


def test_a_plan_needs_no_broker():
    done = invoke("-b", "amqp://shop:geheim@127.0.0.1:1//", "dlx", "plan")

    assert done.exit_code == 0
    assert "\nqueue\t" in done.output


OTHERS = ["plan", "watch", "dead list", "dead replay --all --yes", "dead show x", "dead edit x", "dead import - --yes"]


@pytest.mark.parametrize("words", [*(words for words in COMMANDS if words != "doctor"), *OTHERS])
def test_another_broker_is_one_sentence_and_a_wrong_option(nowhere, words):
    done = invoke("-b", "memory://", *nowhere, *words.split())

    assert done.exit_code == 2
    assert "Error: The broker is not RabbitMQ, its transport is 'memory'" in done.output


def test_help_needs_no_broker():
    assert invoke("-b", "memory://", "dlx", "dead", "list", "--help").exit_code == 0


@pytest.mark.parametrize("transport", ["redis", "sqs", "zookeeper", "nonsense"])
def test_a_transport_that_is_not_installed_is_no_traceback_either(transport, monkeypatch):
    monkeypatch.setattr("kombu.transport.redis.redis", None)
    monkeypatch.setitem(sys.modules, "kombu.transport.SQS", None)
    monkeypatch.delitem(kombu.transport._transport_cache, transport, raising=False)

    status, doctor = (invoke("-b", f"{transport}://localhost", "dlx", *words) for words in (["status"], ["doctor"]))

    assert status.exit_code == 2
    assert f"The broker is not RabbitMQ, its transport is '{transport}'" in status.output
    assert doctor.exit_code == 1
    assert f"not-rabbitmq\tThe broker transport is '{transport}'." in doctor.output


@pytest.mark.parametrize(
    "words",
    ["waiting run", "plan --format visio", "plan --format mermaid --json", "watch --interval 0", "status --nonsense"],
)
def test_a_wrong_option_is_exit_code_2(words):
    done = invoke("-b", "amqp://shop:geheim@127.0.0.1:1//", "dlx", *words.split())

    assert done.exit_code == 2
    assert "Usage: " in done.output


def test_an_api_that_was_named_and_is_not_there_is_an_error_without_its_password(broker):
    url = "http://shop:geheim@127.0.0.1:1"

    done = invoke("-b", broker.url, "dlx", "status", "--management-url", url)

    assert done.exit_code == 1
    assert "The management API at http://127.0.0.1:1 cannot be used" in done.output
    assert "geheim" not in done.output


@pytest.mark.parametrize(
    "url",
    [
        "shop:geheim@127.0.0.1",
        "http://shop:ge/heim@127.0.0.1",
        "http://shop:1/geheim@127.0.0.1",
        "http://shop:ge#heim@127.0.0.1",
        "http://shop:1?geheim@127.0.0.1",
        "http://shop:geheim@[::1",
        "http://127.0.0.1:geheim",
        "http://shop:geheim@127.0.0.1/ heim",
    ],
)
def test_of_an_api_url_that_is_not_sound_nothing_is_shown(broker, url):
    done = invoke("-b", broker.url, "dlx", "status", "--management-url", url)

    assert done.exit_code == 1
    assert "Error: The URL of the management API cannot be read. Write http://" in done.output
    assert "heim" not in done.output
    assert "shop" not in done.output


@pytest.mark.parametrize("words", ["status", "doctor", "dead list"])
@pytest.mark.parametrize("url", ["amqp://shop:geheim@127.0.0.1:port//", "amqp://shop:ge/heim@127.0.0.1//"])
def test_of_a_broker_url_that_is_not_sound_nothing_is_shown(url, words):
    done = invoke("-b", url, "dlx", *words.split())

    assert done.exit_code == 2
    assert "Error: The broker's URL cannot be read. Write amqp://USER" in done.output
    assert "heim" not in done.output
