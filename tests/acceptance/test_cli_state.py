"""``celery dlx status``, ``watch`` and ``waiting`` on a real project, and what every command says when all is lost."""

from __future__ import annotations

import os
import pty
import signal
import time

import pytest
from support import eventually

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


def test_who_waits_is_listed_and_filtered(project, dlx, waiting):
    listed = dlx.json("waiting", "list")

    assert [it["task_id"] for it in listed] == [result.id for result in waiting[:3]]
    assert {(it["task"], it["queue"], it["retry"]) for it in listed} == {("project.heal", project.queue, 1)}
    assert len(dlx.json("waiting", "list", "--task", "*.heal", "-q", project.queue, "--limit", "2")) == 2
    assert dlx.json("waiting", "list", "--task", "shop.*") == []
    assert waiting[0].id in dlx("waiting")


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


def test_a_countdown_is_listed_with_its_due_time_and_runs_now_if_asked(project, dlx, waiting):
    assert waiting
    due = time.time() + WAIT_SECONDS
    result = project.app.send_task("project.succeed", ("now",), countdown=WAIT_SECONDS)

    listed = eventually(lambda: [it for it in dlx.json("waiting", "list") if it["task_id"] == result.id])
    assert due <= listed[0]["due_ms"] / 1000 + 0.001 < due + 30
    dlx("waiting", "run", result.id)

    assert result.get(timeout=20) == "now"


def test_watch_prints_again_and_again_and_ends_well_at_ctrl_c(dlx):
    process = dlx.start("watch", "--interval", "0.2")
    with process:
        seen = [process.stdout.readline() for _ in range(12)]
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=20)

    assert sum(line.startswith("role\tqueue\t") for line in seen) >= 2
    assert (process.returncode, err) == (0, "")


def test_on_a_terminal_the_status_is_drawn_in_place(dlx):
    ours, theirs = pty.openpty()
    with dlx.start("watch", "--interval", "0.2", stdout=theirs) as process:
        os.close(theirs)
        drawn = ""
        while drawn.count("next wake-up") + drawn.count(" orphans") < 3:
            drawn += os.read(ours, 65_536).decode(errors="replace")
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=20)
    os.close(ours)

    assert process.returncode == 0
    assert "\N{BOX DRAWINGS LIGHT VERTICAL} work" in drawn
    assert "\x1b[" in drawn


COMMANDS = [
    "status", "waiting", "waiting list", "waiting run x", "waiting cancel x --yes",
    "check", "declare", "policy", "prune --yes", "doctor",
]  # fmt: skip


@pytest.mark.parametrize("words", COMMANDS)
def test_a_broker_that_is_down_is_one_sentence_without_its_password(words):
    done = invoke("-b", "amqp://shop:geheim@127.0.0.1:1//", "dlx", *words.split())

    assert done.exit_code == 1
    assert done.output == "Error: The broker cannot be reached: [Errno 111] Connection refused.\n"


def test_a_plan_needs_no_broker():
    done = invoke("-b", "amqp://shop:geheim@127.0.0.1:1//", "dlx", "plan")

    assert done.exit_code == 0
    assert "\nqueue\t" in done.output
    assert "taken for a classic one" in done.output


@pytest.mark.parametrize("words", [*COMMANDS, "plan", "dead list", "dead replay --all --yes"])
def test_another_broker_is_one_sentence(words):
    done = invoke("-b", "memory://", "dlx", *words.split())

    assert done.exit_code == 1
    assert ("The broker is not RabbitMQ" in done.output) != ("not-rabbitmq" in done.output)


@pytest.mark.parametrize("words", ["waiting run", "plan --format visio", "watch --interval 0", "status --nonsense"])
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
