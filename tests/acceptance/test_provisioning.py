"""A RabbitMQ is found or provided in the documented order, and nothing of it stays."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from kombu.connection import Connection
from support import eventually

from celery_dlx_retry.errors import NoBroker
from celery_dlx_retry.testing import NotOurs, provide
from celery_dlx_retry.testing.node import PortTaken, PrivateNode, start_private_node
from celery_dlx_retry.testing.sandbox import WayFailed, free_ports, is_free, listens

OWNER = """
import signal
from celery_dlx_retry.testing.node import start_private_node
with start_private_node() as node:
    print(node._amqp_port, node._epmd_port, node._sandbox.path, flush=True)
    signal.pause()
"""
BROKEN_SERVER = """#!/bin/sh
echo BOOT FAILED
exit 1
"""


@pytest.fixture
def nobody_has_one(monkeypatch, tmp_path):
    """No URL, no Docker engine, a rabbitmq-server that does not start, and no apt-get."""
    for name in ("DLX_TEST_BROKER_URL", "DLX_TEST_RABBITMQ_ROOT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no-docker.sock")
    monkeypatch.setenv("PATH", str(tmp_path))
    server = tmp_path / "rabbitmq-server"
    server.write_text(BROKEN_SERVER)
    server.chmod(0o755)


@pytest.fixture
def node(broker):
    if not isinstance(broker, PrivateNode):
        pytest.skip("the session's broker is no private node")
    return broker


def test_a_given_url_that_does_not_answer_is_one_sentence_and_no_other_way_is_tried(monkeypatch):
    (port,) = free_ports(1)
    monkeypatch.setenv("DLX_TEST_BROKER_URL", f"amqp://guest:secret@127.0.0.1:{port}//")
    said = []

    with pytest.raises(NoBroker) as failure:
        provide(say=said.append)

    assert f"DLX_TEST_BROKER_URL=amqp://guest:**@127.0.0.1:{port}// does not answer" in str(failure.value)
    assert said == []


def test_a_given_url_of_something_else_than_amqp_is_refused(monkeypatch):
    monkeypatch.setenv("DLX_TEST_BROKER_URL", "redis://127.0.0.1/0")

    with pytest.raises(NoBroker, match="no AMQP URL"):
        provide()


def test_a_given_broker_is_used_and_never_handled(monkeypatch, broker):
    monkeypatch.setenv("DLX_TEST_BROKER_URL", broker.url)

    with provide() as given:
        assert (given.origin, given.can_restart, given.version) == ("url", False, broker.version)
        for handle in (given.start, given.stop, given.restart, given.kill, given.pause, given.resume, given.ctl):
            with pytest.raises(NotOurs, match="DLX_TEST_BROKER_URL"):
                handle()

    assert broker.answers()


def test_a_given_root_without_rabbitmq_is_an_error_and_no_other_way_is_tried(monkeypatch, tmp_path):
    monkeypatch.delenv("DLX_TEST_BROKER_URL", raising=False)
    monkeypatch.setenv("DLX_TEST_RABBITMQ_ROOT", str(tmp_path))
    said = []

    with pytest.raises(NoBroker, match=f"DLX_TEST_RABBITMQ_ROOT={tmp_path}"):
        provide(say=said.append)

    assert said == []


@pytest.mark.usefixtures("nobody_has_one")
def test_every_way_that_fails_says_so_in_one_line_and_the_end_is_one_sentence_with_the_ways_out():
    said = []

    with pytest.raises(NoBroker) as failure:
        provide(say=said.append)

    docker, local, apt = said
    assert docker == "No RabbitMQ by Docker: no engine answers"
    assert local.startswith("No RabbitMQ by a local rabbitmq-server: the node ended")
    assert "BOOT FAILED" in local
    assert apt.startswith("No RabbitMQ by apt-get: ")
    assert not any("\n" in line for line in [*said, str(failure.value)])
    for way_out in ("DLX_TEST_BROKER_URL=", "Docker", "install rabbitmq-server"):
        assert way_out in str(failure.value)


@pytest.mark.usefixtures("nobody_has_one")
def test_a_node_that_does_not_start_leaves_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    before = set(tmp_path.iterdir())

    with pytest.raises(WayFailed):
        start_private_node()

    assert set(tmp_path.iterdir()) == before


def test_a_node_whose_port_was_taken_says_that_it_was_the_port(node):
    rival = PrivateNode(node._scripts, root=node._root)
    rival._ports = node._ports
    rival._epmd_port = node._epmd_port

    with rival, pytest.raises(PortTaken):
        rival.start()


def test_a_clean_restart_keeps_url_and_durable_messages(node, prefix):
    url = node.url
    put(node, prefix)

    node.restart()

    assert node.url == url
    assert get(node, prefix) == "still here"


def test_a_killed_node_stays_down_and_comes_back_with_its_durable_messages(node, prefix):
    put(node, prefix)

    node.kill()

    assert not node.answers(within=1)
    node.start()
    assert get(node, prefix) == "still here"


def test_a_paused_node_keeps_its_connections_and_answers_nobody(node):
    node.pause()

    assert not node.answers(within=0.5)
    node.resume()
    assert node.answers()


def test_ctl_speaks_to_this_node(node, prefix):
    put(node, prefix)

    assert prefix in node.ctl("list_queues", "name").splitlines()


def test_a_node_does_not_outlive_a_killed_owner(node):
    owner = subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True)
    with owner:
        amqp_port, epmd_port, path = owner.stdout.readline().split()
        # Two nodes side by side.
        assert listens(int(amqp_port))
        assert node.answers()

        owner.send_signal(signal.SIGKILL)

    eventually(lambda: is_free(int(amqp_port)) and is_free(int(epmd_port)))
    eventually(lambda: not Path(path).exists())
    assert node.answers()


def put(broker, queue):
    with Connection(broker.url, transport_options={"confirm_publish": True}) as connection:
        connection.channel().queue_declare(queue, durable=True, auto_delete=False)
        connection.Producer().publish("still here", routing_key=queue, delivery_mode="persistent")


def get(broker, queue):
    with Connection(broker.url) as connection:
        return connection.channel().basic_get(queue, no_ack=True).payload
