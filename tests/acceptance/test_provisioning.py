"""A RabbitMQ is found or provided in the documented order, and nothing of it stays."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from amqp.exceptions import AccessRefused
from kombu.connection import Connection
from redis import AuthenticationError, Redis
from support import as_user, eventually

from celery_dlx_retry.errors import NoBroker
from celery_dlx_retry.testing import NotOurs
from celery_dlx_retry.testing.container import start_container
from celery_dlx_retry.testing.local_node import PortTaken
from celery_dlx_retry.testing.rabbitmq import DEFAULT_IMAGE
from celery_dlx_retry.testing.sandbox import WayFailed, free_ports, is_free, unprivileged
from tests.provision import NoRedis, provide, provide_redis
from tests.provision.node import PrivateNode, find_scripts, start_private_node

ROOT = Path(__file__).parents[2]

# A process that provides itself with a node, says where that is, and ends no sooner than this one.
OWNER = """
import json, sys
from tests.provision.node import start_private_node
with start_private_node() as node:
    told = {"url": node.url, "ports": list(node._ports), "path": str(node._sandbox.path)}
    print(json.dumps(told), flush=True)
    sys.stdin.read()
"""
BROKEN_SERVER = """#!/bin/sh
echo BOOT FAILED
exit 1
"""


@pytest.fixture(scope="module")
def scripts():
    try:
        return find_scripts()
    except WayFailed as failure:
        pytest.skip(str(failure))


@pytest.fixture(scope="module", autouse=True)
def owner():
    """Starts first, so that its node comes up beside the session's."""
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", OWNER], stdin=pipe, stdout=pipe, text=True) as process:
        yield process
        process.kill()


@pytest.fixture
def ours(broker):
    if not broker.can_restart:
        pytest.skip("the session's broker was given")
    return broker


@pytest.fixture
def node(ours):
    if not isinstance(ours, PrivateNode):
        pytest.skip("the session's broker is a container")
    return ours


@pytest.fixture
def nothing_asked_for(monkeypatch):
    for name in ("DLX_TEST_BROKER_URL", "DLX_TEST_RABBITMQ_ROOT", "DLX_TEST_REDIS_URL"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def bare_machine(nothing_asked_for, monkeypatch, tmp_path):  # noqa: ARG001 - a fixture cannot use usefixtures
    """No Docker engine, a rabbitmq-server that does not start, no redis-server and no apt-get."""
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no-docker.sock")
    monkeypatch.setenv("PATH", str(tmp_path))
    server = tmp_path / "rabbitmq-server"
    server.write_text(BROKEN_SERVER)
    server.chmod(0o755)


def test_a_private_node_has_one_random_user_and_no_guest(node):
    user, _, password = node.login.partition(":")

    assert [line.split()[0] for line in node.ctl("list_users", "--no-table-headers").splitlines()] == [user]
    assert len(password) == 32
    with Connection(as_user(node.url, "guest:guest")) as connection, pytest.raises(AccessRefused):
        connection.connect()
    for name in ("rabbitmq.conf", ".erlang.cookie"):
        assert (node._sandbox.path / name).stat().st_mode & 0o077 == 0
    assert node._sandbox.path.stat().st_mode & 0o077 == 0


def test_a_private_node_is_not_root_and_listens_on_loopback_only(node):
    listening = {
        (int(port, 16), address)
        for table in ("tcp", "tcp6")
        for address, port in re.findall(
            r"^ *\d+: (\w+):(\w+) \w+:0000 0A", Path(f"/proc/net/{table}").read_text(), re.MULTILINE
        )
        if int(port, 16) in node._ports
    }

    # AMQP, distribution, epmd, HTTP API
    assert {port for port, _ in listening} == set(node._ports[:4])
    assert {address for _, address in listening} <= {"0100007F", "00000000000000000000000001000000"}
    for name in ("rabbitmq", "epmd"):
        assert Path(f"/proc/{node._sandbox.pid(name)}").stat().st_uid != 0


def test_a_user_who_cannot_enter_a_folder_runs_nothing_there(tmp_path):
    tmp_path.chmod(0o700)

    assert unprivileged("rabbitmq", reaching=[tmp_path]) is None


def test_the_redis_of_tests_asks_for_its_password(redis_url):
    if "@" not in redis_url:
        pytest.skip("the session's Redis was given")
    with Redis.from_url(as_user(redis_url, ":wrong")) as client, pytest.raises(AuthenticationError):
        client.ping()


def test_a_given_url_that_does_not_answer_is_one_sentence_and_no_other_way_is_tried(monkeypatch):
    (port,) = free_ports(1)
    monkeypatch.setenv("DLX_TEST_BROKER_URL", f"amqp://guest:secret@127.0.0.1:{port}//")
    said = []

    with pytest.raises(NoBroker) as failure:
        provide(say=said.append)

    assert f"DLX_TEST_BROKER_URL=amqp://127.0.0.1:{port}// does not answer" in str(failure.value)
    assert said == []


def test_a_given_url_of_something_else_than_amqp_is_refused(monkeypatch):
    monkeypatch.setenv("DLX_TEST_BROKER_URL", "redis://127.0.0.1/0")

    with pytest.raises(NoBroker, match="no AMQP URL"):
        provide()


@pytest.mark.usefixtures("nothing_asked_for")
def test_a_given_root_without_rabbitmq_is_one_sentence_and_no_other_way_is_tried(monkeypatch, tmp_path):
    monkeypatch.setenv("DLX_TEST_RABBITMQ_ROOT", str(tmp_path))
    said = []

    with pytest.raises(NoBroker, match=f"DLX_TEST_RABBITMQ_ROOT={tmp_path}"):
        provide(say=said.append)

    assert said == []


@pytest.mark.usefixtures("bare_machine")
def test_the_root_of_this_machine_is_the_server_that_is_installed_and_nothing_else_is_tried(monkeypatch):
    monkeypatch.setenv("DLX_TEST_RABBITMQ_ROOT", "/")
    said = []

    with pytest.raises(NoBroker, match=r"DLX_TEST_RABBITMQ_ROOT=a local rabbitmq-server: .*BOOT FAILED"):
        provide(say=said.append)

    assert said == []


@pytest.mark.usefixtures("bare_machine")
def test_every_way_that_fails_says_so_in_one_line_and_the_end_is_one_sentence_with_the_ways_out():
    said = []

    with pytest.raises(NoBroker) as failure:
        provide(say=said.append)

    docker, local = said
    assert docker == "Docker: no engine answers; trying a local rabbitmq-server"
    assert local.startswith("a local rabbitmq-server: ")
    assert "BOOT FAILED" in local
    assert local.endswith("; trying apt-get")
    assert "; apt-get: " in str(failure.value)
    assert not any("\n" in line for line in [*said, str(failure.value)])
    for way_out in ("DLX_TEST_BROKER_URL=", "Docker", "testcontainers[rabbitmq]", "install rabbitmq-server"):
        assert way_out in str(failure.value)


def test_testcontainers_without_its_rabbitmq_is_one_line_with_what_to_install(monkeypatch):
    for module in ("testcontainers.community.rabbitmq", "testcontainers.rabbitmq"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.setitem(sys.modules, "pika", None)

    with pytest.raises(WayFailed, match=r"^Docker: testcontainers\[rabbitmq\] is not installed \(.*pika.*\)$"):
        start_container(DEFAULT_IMAGE)


def test_who_has_nothing_but_docker_can_have_the_demo_and_the_shop():
    extras, recipe = ((ROOT / name).read_text() for name in ("pyproject.toml", "Makefile"))

    assert re.search(r'^demo = \[.*"testcontainers\[rabbitmq\]', extras, re.MULTILINE)
    assert "\ndemo: .venv/demo\n" in recipe
    assert "\nshop: .venv/shop\n" in recipe
    assert "\n.venv/shop: .venv/demo\n" in recipe


@pytest.mark.usefixtures("bare_machine")
def test_a_node_that_does_not_start_leaves_nothing_behind(monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    before = set(tmp_path.iterdir())

    with pytest.raises(WayFailed):
        start_private_node()

    assert set(tmp_path.iterdir()) == before


@pytest.mark.usefixtures("bare_machine")
def test_without_redis_there_is_one_sentence_with_the_ways_out():
    with pytest.raises(NoRedis, match=r"DLX_TEST_REDIS_URL=.* install redis-server"), provide_redis():
        pass


def test_a_node_that_lost_the_race_for_a_port_says_that_it_was_the_port(scripts):
    with PrivateNode(scripts) as late:
        rival = socket.create_server(("127.0.0.1", late._epmd_port))

        with rival, pytest.raises(PortTaken):
            late.start()


def test_a_given_broker_is_used_and_never_handled(broker, monkeypatch):
    monkeypatch.setenv("DLX_TEST_BROKER_URL", broker.url)

    with provide() as given:
        assert (given.origin, given.can_restart, given.version) == ("url", False, broker.version)
        for handle in (given.start, given.stop, given.restart, given.kill, given.pause, given.resume, given.ctl):
            with pytest.raises(NotOurs, match="DLX_TEST_BROKER_URL"):
                handle()

    assert broker.answers()


def test_durable_messages_survive_a_clean_restart_and_then_a_crash_at_the_same_url(ours, prefix):
    put(ours.url, prefix)

    ours.restart()
    survived_restart = get(ours.url, prefix)

    # The queue is on disk by now. One declared only a moment before the crash may be lost, its messages with it.
    put(ours.url, prefix)
    ours.kill()
    answered_while_down = ours.answers(within=1)
    ours.start()
    survived_crash = get(ours.url, prefix)

    assert (survived_restart, answered_while_down, survived_crash) == (b"still here", False, b"still here")


@pytest.mark.usefixtures("prefix")  # resumes it if this fails
def test_a_paused_node_answers_nobody_until_it_is_resumed(ours):
    ours.pause()

    assert not ours.answers(within=0.5)
    ours.resume()
    assert ours.answers()


def test_ctl_speaks_to_this_node(ours, prefix):
    put(ours.url, prefix)

    assert prefix in ours.ctl("list_queues", "name").splitlines()


@pytest.mark.usefixtures("scripts")
def test_nodes_run_side_by_side_and_none_outlives_its_owner_killed_with_9(broker, owner, prefix):
    other = json.loads(owner.stdout.readline())
    put(other["url"], prefix)
    assert get(other["url"], prefix) == b"still here"

    owner.kill()

    eventually(lambda: all(map(is_free, other["ports"])))
    eventually(lambda: not Path(other["path"]).exists())
    assert broker.answers()


def put(url, queue):
    with Connection(url, transport_options={"confirm_publish": True}) as connection:
        connection.channel().queue_declare(queue, durable=True, auto_delete=False)
        connection.Producer().publish(b"still here", routing_key=queue, delivery_mode="persistent")


def get(url, queue):
    with Connection(url) as connection:
        return connection.channel().basic_get(queue, no_ack=True).body
