"""Broker and network fail in the middle of a burst of retries: none is lost, and the worker goes on."""

from __future__ import annotations

import random
import socket
import struct
import sys
import threading
from contextlib import contextmanager, suppress
from types import SimpleNamespace
from urllib.parse import urlsplit

import pytest
from kombu.connection import Connection
from support import eventually

from tests.worker.plans import Plans

RESET = struct.pack("ii", 1, 0)  # SO_LINGER: close() sends RST and throws away what is not sent yet


@pytest.fixture
def plans(project):
    return Plans(project)


@pytest.fixture
def gate(tmp_path):
    """A file that tasks wait for."""
    return tmp_path / "gate"


@contextmanager
def frozen(broker):
    broker.pause()
    try:
        yield
    finally:
        broker.resume()


def burst(plans, count, **kwargs):
    for _ in range(count):
        plans.send("done", **{"failures": 2, "countdown": 0.2, **kwargs})


def worked(project, count):
    """That so many runs have come to the point where their retry is published."""
    eventually(lambda: len(project.records(event="worked")) >= count, within=60)


# Out of a classic lane RabbitMQ moves a message without waiting until the work queue has it on disk: a crash loses what
# came back in the last quarter of a second (docs/guarantees.md says so). A quorum lane waits, in front of a classic
# work queue as well.
def test_a_broker_killed_and_started_in_a_burst_of_200_loses_none(project, plans, broker, say):
    with project.worker(module="project_fire", concurrency=4):
        burst(plans, 200)
        worked(project, 80)

        broker.kill()
        broker.start()
        plans.wait()

    # RabbitMQ writes confirmed messages to disk, but not every acknowledgement at once: what it forgot runs again.
    extra = plans.assert_ended_as_planned(extra_ends=200)
    say(f"broker killed: 200 sent, 200 done, {extra} twice")


def ping(project):
    """Over a connection of its own: those that this process holds may not have survived."""
    with Connection(project.url) as connection:
        return project.app.control.inspect(timeout=5, connection=connection).ping()


def test_a_broker_restarted_in_a_burst_loses_none(project, plans, broker, say):
    with project.worker(module="project_fire", concurrency=4):
        burst(plans, 100)
        worked(project, 40)

        broker.restart()
        plans.wait()

    # The four that ran then, and what their main process could not acknowledge any more.
    extra = plans.assert_ended_as_planned(extra_ends=16)
    say(f"broker restarted: 100 sent, 100 done, {extra} twice")


def test_a_broker_that_freezes_in_a_burst_loses_none_and_the_workers_loop_lives_on(project, plans, broker, say):
    flags = ("--dlx-confirm-timeout", "0.5")
    with project.worker(*flags, module="project_fire", concurrency=4) as worker:
        burst(plans, 60)
        worked(project, 20)

        with frozen(broker):
            eventually(lambda: worker.log.count("not handed over") >= 4, within=60)
        eventually(lambda: ping(project), within=60)
        plans.wait()

    # A copy that was not confirmed in time may have been taken all the same.
    extra = plans.assert_ended_as_planned(extra_ends=worker.log.count("not handed over"))
    say(f"broker frozen: 60 sent, 60 done, {extra} twice")


class Proxy:
    """Stands between worker and broker, and cuts each connection after some bytes to the broker, until it is calm."""

    def __init__(self, url):
        parts = urlsplit(url)
        self._broker = (parts.hostname, parts.port)
        self._chance = random.Random(5)  # noqa: S311 - the same cuts every time
        self.cuts, self.is_calm = 0, False
        self._open = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        port = self._listener.getsockname()[1]
        self.url = url.replace(f":{parts.port}", f":{port}")
        self._start(self._accept)

    def close(self):
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for one in self._open:
            _reset(one)

    def _accept(self):
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._broker)
                self._open += [client, server]
                # It takes 8 kB to start a worker; a retry is 1 kB, an acknowledgement 21 bytes.
                self._start(self._forward, client, server, self._chance.randrange(9_000, 14_000))
                self._start(self._forward, server, client, sys.maxsize)

    def _forward(self, source, target, limit):
        with suppress(OSError):
            while data := source.recv(65536):
                if len(data) >= limit and not self.is_calm:
                    target.sendall(data[:limit])
                    self.cuts += 1
                    break
                target.sendall(data)
                limit = max(1, limit - len(data))
        _reset(source)
        _reset(target)

    def _start(self, target, *args):
        threading.Thread(target=target, args=args, daemon=True).start()


def _reset(one):
    with suppress(OSError):
        one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        one.shutdown(socket.SHUT_RDWR)
    one.close()


@pytest.fixture
def proxy(broker):
    it = Proxy(broker.url)
    yield it
    it.close()


def test_connections_cut_in_the_middle_of_a_frame_lose_none(project, plans, proxy, say):
    direct, project.conf["broker_url"] = project.conf["broker_url"], proxy.url
    with project.worker("--prefetch-multiplier", "1", module="project_fire") as worker:
        project.conf["broker_url"] = direct
        burst(plans, 70, failures=4)
        eventually(lambda: proxy.cuts >= 8 and worker.log.count("topology stands") >= 2, within=60)
        proxy.is_calm = True
        plans.wait()
        eventually(lambda: ping(project), within=60)

    # The worker holds two deliveries at a time, so each cut can double two at most.
    extra = plans.assert_ended_as_planned(extra_ends=2 * proxy.cuts)
    say(f"connections cut {proxy.cuts} times: 70 sent, 70 done, {extra} twice")


def test_a_lost_connection_is_no_crash(project, plans, broker, gate):
    project.conf["dlx_crash_limit"] = 2
    with project.worker(module="project_fire", concurrency=4) as worker:
        long = plans.send("done", gate=str(gate))
        for times in (1, 2, 3):
            eventually(lambda expected=times: len(project.records(id=long, event="run")) >= expected, within=30)
            broker.ctl("close_all_connections", "maintenance")
            eventually(lambda expected=times: worker.log.count("topology stands") > expected, within=30)
        gate.touch()
        eventually(lambda: project.records(id=long, event="done") or project.dead(), within=60)

    assert [letter.record.reason for letter in project.dead()] == []


def test_a_soft_time_limit_in_the_middle_of_a_publish_leaves_the_task_on_its_queue(project, broker, gate):
    with project.worker("--dlx-confirm-timeout", "30", module="project_fire", concurrency=1) as worker:
        assert project.send("heal", 1).get(timeout=30) == "healed"  # its connection is open from now on
        result = project.send("hasty", str(gate))
        eventually(lambda: project.records(id=result.id))

        with frozen(broker):
            gate.touch()
            eventually(lambda: "not handed over" in worker.log, within=30)
        eventually(lambda: project.records(id=result.id, event="done"), within=60)
        # What was published after all may be done before what went back to its queue.
        eventually(lambda: len(project.records(id=result.id, event="retrying")) == 2)

    assert "SoftTimeLimitExceeded" in worker.log.partition("not handed over")[2].partition("\n")[0]
    assert project.dead() == []


@pytest.fixture(
    params=[("set_vm_memory_high_watermark", "0.0000001", "0.4"), ("set_disk_free_limit", "1000GB", "50MB")]
)
def alarm(broker, request):
    command, on, off = request.param
    yield SimpleNamespace(sound=lambda: broker.ctl(command, on), end=lambda: broker.ctl(command, off))
    broker.ctl(command, off)


def test_dead_letters_under_an_alarm_are_kept_and_none_is_copied_blindly(project, plans, alarm, gate):
    with project.worker("--dlx-confirm-timeout", "1", module="project_fire") as worker:
        for _ in range(6):
            plans.send("dead", failures=1, gate=str(gate))
        worked(project, 7)  # each once, and one has come back and waits at the gate

        alarm.sound()
        gate.touch()
        eventually(lambda: worker.log.count("not handed over") >= 3, within=60)
        alarm.end()
        plans.wait()

    # What was written to a connection before it was blocked may arrive in the end, and no other copy: one a process.
    plans.assert_ended_as_planned(extra_ends=2)


@pytest.mark.parametrize(("pool", "concurrency", "count"), [("threads", 8, 100), ("gevent", 20, 50)])
def test_many_retry_at_the_same_time_in_one_process(project, plans, pool, concurrency, count):
    with project.worker(pool=pool, concurrency=concurrency, module="project_fire") as worker:
        burst(plans, count, countdown=0.1)
        plans.send("dead", failures=1)
        plans.wait()

    plans.assert_ended_as_planned(extra_ends=0)
    assert len(project.records(event="run")) == count * 3 + 2
    assert "not handed over" not in worker.log
