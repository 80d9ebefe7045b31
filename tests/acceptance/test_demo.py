"""``make demo`` keeps the promise that it prints, and leaves nothing behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
from support import eventually

from celery_dlx_retry.testing.sandbox import free_ports

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "example_project.demo"]


@pytest.fixture(scope="module")
def finished_demo(broker):
    return subprocess.run(
        COMMAND, cwd=ROOT, env=environment(broker.url), capture_output=True, text=True, check=False, timeout=120
    )


def test_the_demo_loses_none_of_its_40_tasks(finished_demo):
    assert (finished_demo.returncode, finished_demo.stderr) == (0, "")
    last_line = finished_demo.stdout.splitlines()[-1]
    assert re.fullmatch(r"40 in = 40 done \+ 0 dead, 0 lost, \d+ duplicates", last_line)


def test_the_demo_tells_its_story_in_order(finished_demo):
    told = [
        r"^40 tasks sent\.$",
        r"^  lanes .*\b3 s: \d+",
        r"^kill -9 -\d+: the worker is gone, \d+ tasks wait in lanes\.$",
        r"^4\. The worker is started again$",
        r"dead letters, with reason and history",
        r"refund .* requested .* DeadLetter",
        r"ship .* exhausted .* 3 .* 1 s, 2 s",
        r"^\$ celery -A example_project\.shop dlx dead replay --all --yes$",
        r"^6 replayed$",
    ]

    at = [re.search(line, finished_demo.stdout, re.MULTILINE) for line in told]

    assert all(at), [line for line, found in zip(told, at, strict=True) if not found]
    assert [found.start() for found in at] == sorted(found.start() for found in at)
    assert "\x1b" not in finished_demo.stdout, "control codes, and this is no terminal"


def test_the_demo_leaves_no_process_and_no_queue(finished_demo, management):
    name = name_of(finished_demo.stdout)

    assert processes_of(name) == []
    if management:
        left = [one for kind in ("queues", "exchanges") for one in management.names(kind) if name in one]
        assert left == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("line", ["1. A worker starts", "3. kill -9", "4. The worker"])
def test_an_interrupted_demo_leaves_no_process(broker, number, line):
    with running_demo(broker.url) as demo:
        told = read_until(demo, line)
        assert processes_of(name_of(told)) or "kill -9" in line

        demo.send_signal(number)
        told += demo.communicate(timeout=30)[0]

    assert demo.returncode == 130
    assert "Traceback" not in told
    eventually(lambda: not processes_of(name_of(told)), within=5)


def test_a_killed_demo_leaves_no_process(broker, management):
    with running_demo(broker.url) as demo:
        told = read_until(demo, "40 tasks sent")
        assert processes_of(name_of(told))

        demo.kill()

    eventually(lambda: not processes_of(name_of(told)), within=5)
    if management:  # queues it cannot but leave
        management.delete_all(name_of(told))


def test_without_a_broker_the_demo_says_so_in_one_sentence():
    (port,) = free_ports(1)

    done = subprocess.run(
        COMMAND,
        cwd=ROOT,
        env=environment(f"amqp://guest:guest@127.0.0.1:{port}//"),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

    assert done.returncode == 2
    assert re.fullmatch(r"No RabbitMQ is available \(.*\)\. Name one .*\n", done.stderr)


def environment(url):
    return {**os.environ, "DLX_TEST_BROKER_URL": url, "PYTHONUNBUFFERED": "1"}


@contextmanager
def running_demo(url):
    demo = subprocess.Popen(
        COMMAND, cwd=ROOT, env=environment(url), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    with demo:
        try:
            yield demo
        finally:
            if demo.poll() is None and sys.exc_info()[0]:
                demo.kill()


def read_until(demo, text):
    told = ""
    for line in demo.stdout:
        told += line
        if text in told and "Work queue: " in told:
            return told
    pytest.fail(f"the demo never said {text!r}:\n{told}")


def name_of(told):
    return re.search(r"Work queue: (shop-\w+);", told).group(1)


def processes_of(name):
    """Command lines with the run's name in them: its worker has it as its host, its guard as its folder."""
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
