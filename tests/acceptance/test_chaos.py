"""The chaos run keeps the promise, counts what it says, and can fail."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest
from amqp.exceptions import NotFound
from kombu.connection import Connection
from support import eventually

from celery_dlx_retry.broker.declare import declare
from celery_dlx_retry.broker.sync_publisher import Publisher
from celery_dlx_retry.testing.chaos.report import Count, End, count
from celery_dlx_retry.testing.sandbox import free_ports
from celery_dlx_retry.topology.names import Names, WorkQueue
from celery_dlx_retry.topology.objects import lane, shared_objects, work_queue_objects

ROOT = Path(__file__).parents[2]
WAIT_MS = 300
LINE = r"(\d+) in = (\d+) done \+ (\d+) dead, (\d+) lost, (\d+) duplicates"


def test_a_small_run_with_killed_workers_and_a_restarted_broker_loses_nothing():
    # A clean restart: what a kill of the broker may take from classic lanes is claimed below.
    done = chaos("--tasks", 300, "--kills", 4, "--restarts", 1, "--ways", "clean", "--seconds", 150, "--seed", 1)

    sent, healed, dead, lost, _ = numbers(done.stdout)
    assert (done.returncode, sent, lost) == (0, 300, 0), done.stdout + done.stderr
    assert healed + dead == sent
    assert re.search(r"^worker kills +4 of 4$", done.stdout, re.MULTILINE)
    assert re.search(r"^broker restarts +([01]) of \1$", done.stdout, re.MULTILINE)  # none if one is given
    assert "\x1b" not in done.stdout, "control codes, and this is no terminal"


def test_a_broker_that_is_given_is_not_restarted_and_left_as_it_was(broker, management):
    done = chaos("--broker", broker.url, "--tasks", 60, "--kills", 1, "--restarts", 3, "--seconds", 90)

    assert (done.returncode, numbers(done.stdout)[3]) == (0, 0), done.stdout + done.stderr
    assert "not restarted" in done.stdout
    assert processes_of(name_of(done.stdout)) == []
    assert left_of(name_of(done.stdout), management) == []


def test_what_somebody_purges_is_counted_as_lost_and_the_exit_code_is_1(broker):
    arguments = ("--broker", broker.url, "--tasks", 2000, "--kills", 0, "--workers", 1, "--seconds", 10, "--json")
    with running(*arguments) as run:
        queue = f"{name_of(read_until(run.stderr, 'Work queue: '))}.work"
        purged = eventually(lambda: purge(broker.url, queue), within=30)
        told = json.loads(run.stdout.read())
        run.stderr.read()

    assert run.returncode == 1
    assert told["lost"] >= purged
    assert told["in"] == told["done"] + told["dead"] + told["lost"]
    assert len(set(told["lost_ids"]) - set(told["waiting_ids"])) >= purged
    assert re.fullmatch(LINE, told["line"])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_leaves_no_process_and_no_queue(broker, management, number):
    with running("--broker", broker.url, "--tasks", 200) as run:
        told = read_until(run.stdout, "runs ")
        assert processes_of(name_of(told))

        run.send_signal(number)
        told += run.stdout.read() + run.stderr.read()

    assert run.returncode == 130
    assert "Traceback" not in told
    assert processes_of(name_of(told)) == []
    assert left_of(name_of(told), management) == []


def test_without_a_broker_it_says_so_in_one_sentence():
    (port,) = free_ports(1)

    done = chaos("--broker", f"amqp://guest:guest@127.0.0.1:{port}//")

    assert done.returncode == 2
    assert re.fullmatch(r"No RabbitMQ is available \(--broker=.*\n", done.stderr)


@pytest.mark.parametrize(
    "arguments",
    [("--cluster", "--broker", "amqp://"), ("--cluster", "--queue-type", "classic"), ("--restart-command", "true")],
)
def test_options_that_exclude_each_other_are_refused(arguments):
    assert chaos(*arguments).returncode == 2


# --- what a chaos run has taught ---


@pytest.mark.parametrize(("kind", "crashes"), [("classic", 6), ("quorum", 1)])
def test_what_a_lane_has_just_returned_survives_a_crash_of_the_broker_only_if_the_lane_is_quorum(
    broker, prefix, kind, crashes
):
    """Not every crash loses something of a classic lane, but one of a few does."""
    if not broker.can_restart:
        pytest.skip("this broker is not ours to kill")

    is_lossy = any(lost_by_a_crash(broker, f"{prefix}.{number}", kind) for number in range(crashes))

    assert is_lossy is (kind == "classic")


def lost_by_a_crash(broker, prefix, kind):
    """How many of those that came back from a lane in the moments before."""
    names, work = Names(prefix=prefix, kind=kind), WorkQueue(name=prefix)
    with Connection(broker.url) as connection:
        connection.channel().queue_declare(prefix, durable=True, auto_delete=False)  # a classic work queue
        declare(connection, shared_objects(names) | work_queue_objects(names, work) | lane(names, work, WAIT_MS))
    publisher = Publisher(lambda: Connection(broker.url), confirm_timeout_ms=10_000)
    sent, age = 0, Age()
    with closing(publisher), publisher.producer() as producer:
        while age.seconds < 2:
            producer.publish(str(sent), exchange=names.lanes(), routing_key=names.lane(work, WAIT_MS))
            sent += 1

    broker.kill()
    broker.start()

    found = set()
    with suppress(AssertionError):
        within = 3 if kind == "classic" else 20
        eventually(lambda: take(broker.url, prefix, found) and len(found) == sent, within=within)
    return sent - len(found)


# --- the count ---


def test_each_task_is_counted_once_where_it_ended():
    found = count("abc", done=[End("a", 1), End("b", 2)], dead=[End("c", 3)])

    assert found == Count(sent=3, done=2, dead=1, lost=(), duplicates=0, over_a_crash=0)
    assert found.line == "3 in = 2 done + 1 dead, 0 lost, 0 duplicates"


def test_a_task_that_is_nowhere_is_lost():
    found = count("abc", done=[End("a", 1)], dead=[End("c", 3)])

    assert found.lost == ("b",)
    assert found.line == "3 in = 1 done + 1 dead, 1 lost, 0 duplicates"


def test_a_second_end_is_no_substitute_for_a_lost_task():
    found = count("ab", done=[End("a", 1), End("a", 2)], dead=[])

    assert (found.done, found.lost, found.duplicates) == (1, ("b",), 1)


def test_what_is_both_done_and_dead_is_done_and_a_duplicate():
    found = count("a", done=[End("a", 2)], dead=[End("a", 1), End("a", 3)])

    assert (found.done, found.dead, found.duplicates) == (1, 0, 2)


def test_a_duplicate_with_a_kill_of_the_broker_between_its_ends_is_told_apart():
    found = count("ab", done=[End("a", 1), End("a", 5), End("b", 4), End("b", 5)], dead=[], crashes=[3])

    assert (found.duplicates, found.over_a_crash) == (2, 1)


def test_what_was_never_sent_is_not_counted():
    assert count("a", done=[End("a", 1), End("x", 1)], dead=[End("y", 1)]).line.startswith("1 in = 1 done + 0 dead")


# --- helpers ---


def chaos(*arguments):
    return subprocess.run(
        command(*arguments), cwd=ROOT, env=environment(), capture_output=True, text=True, check=False, timeout=240
    )


@contextmanager
def running(*arguments):
    run = subprocess.Popen(
        command(*arguments),
        cwd=ROOT,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with run:
        try:
            yield run
        finally:
            if run.poll() is None and sys.exc_info()[0]:
                run.kill()


def command(*arguments):
    """As a user types it; without a broker it is the repository's, which can start more kinds of RabbitMQ."""
    is_users = "--broker" in arguments and "--cluster" not in arguments
    module = "celery_dlx_retry.testing.chaos" if is_users else "tests.provision.chaos"
    return [sys.executable, "-m", module, *map(str, arguments)]


def environment():
    return {**os.environ, "PYTHONUNBUFFERED": "1"}


def numbers(told):
    return [int(number) for number in re.fullmatch(LINE, told.splitlines()[-1]).groups()]


def read_until(stream, text):
    told = ""
    for line in stream:
        told += line
        if text in line:
            return told
    pytest.fail(f"it never said {text!r}:\n{told}")


def name_of(told):
    return re.search(r"Work queue: (chaos-\w+)\.work", told).group(1)


def purge(url, queue):
    """Throw away what waits, once there are some."""
    with Connection(url) as connection:
        try:
            if connection.default_channel.queue_declare(queue, passive=True).message_count < 50:
                return 0
        except NotFound:
            return 0
        return connection.channel().queue_purge(queue)


def take(url, queue, found):
    """Take out all that is there."""
    with Connection(url) as connection:
        while message := connection.default_channel.basic_get(queue, no_ack=True):
            found.add(int(message.body))
    return True


class Age:
    """Of itself."""

    def __init__(self):
        self._born = time.monotonic()

    @property
    def seconds(self):
        return time.monotonic() - self._born


def left_of(name, management):
    if not management:
        return []
    return [one for kind in ("queues", "exchanges") for one in management.names(kind) if name in one]


def processes_of(name):
    """Command lines with the run's name in them: its workers have it as their host, its guard as its folder."""
    if not Path("/proc/self/cmdline").exists():
        pytest.skip("needs /proc")
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_text(errors="replace").replace("\0", " ")
        except OSError:  # it ended while we looked
            continue
        if name in command:
            found.append(command)
    return found
