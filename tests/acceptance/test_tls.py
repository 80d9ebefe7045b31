"""amqps:// as Celery's users set it: workers, senders, commands, and whom they do not trust."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
from harness import Project
from support import eventually

from celery_dlx_retry.testing.sandbox import WayFailed
from tests.acceptance.commandline import CommandLine
from tests.provision.node import start_private_node
from tests.provision.rabbitmq import ROOT

CERT_REQUIRED = 2
UNTRUSTED = "certificate verify failed"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    """An authority for an hour, a server's certificate of it, and another authority that nobody knows."""
    folder = tmp_path_factory.mktemp("certificates")
    make = "req -x509 -newkey rsa:2048 -nodes -days 1"
    openssl(folder, f"{make} -subj /CN=authority -keyout ca-key.pem -out ca.pem")
    openssl(folder, f"{make} -subj /CN=stranger -keyout stranger-key.pem -out stranger.pem")
    openssl(folder, "req -newkey rsa:2048 -nodes -subj /CN=localhost -keyout key.pem -out request.pem")
    (folder / "names").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
    sign = "x509 -req -days 1 -in request.pem -CA ca.pem -CAkey ca-key.pem -CAcreateserial"
    openssl(folder, f"{sign} -extfile names -out cert.pem")
    (folder / "key.pem").chmod(0o644)
    return folder


def openssl(folder, arguments):
    subprocess.run(["openssl", *arguments.split()], cwd=folder, check=True, capture_output=True)


@pytest.fixture(scope="module")
def node(certificates):
    root = os.environ.get(ROOT)
    try:
        it = start_private_node(Path(root).resolve() if root else None, certificates=certificates)
    except WayFailed as exc:
        pytest.skip(f"a certificate needs a RabbitMQ of our own: {exc}")
    with it:
        yield it


@pytest.fixture
def shop(node, certificates, redis_url, tmp_path):
    it = Project(url=node.url, backend=redis_url, prefix="tls", folder=tmp_path)
    it.conf["broker_url"] = node.tls_url
    it.ca = str(certificates / "ca.pem")
    it.conf["broker_use_ssl"] = {"ca_certs": it.ca, "cert_reqs": CERT_REQUIRED}
    yield it
    it.close()


def test_a_worker_a_sender_and_the_commands_speak_tls(shop, node):
    with shop.worker() as worker:
        assert shop.send("heal", 2, 0.1).get(timeout=20) == "healed"
        assert shop.send("succeed", 5, countdown=0.4).get(timeout=20) == 5
        shop.send("exhaust")
        eventually(shop.dead)
        dlx = CommandLine(shop, SimpleNamespace(management_url=node.tls_management_url))
        assert "project.exhaust" in dlx("dead", "list")
        assert f"dead\t{shop.queue}.dead" in dlx("status")
        # In a process of its own: this one may have imported other tests' shared tasks, which announce other lanes.
        checked = shop.celery("dlx", "check", DLX_MANAGEMENT_URL=node.tls_management_url, SSL_CERT_FILE=shop.ca)
        assert checked.stdout == "The broker matches the plan.\n", checked.stderr
        dlx("dead", "replay", "--all", "--yes")
        eventually(lambda: len(shop.records(task="project.exhaust")) == 6)
        dlx.close()

    assert f"Connected to amqps://{node.login.partition(':')[0]}:**@{node.tls_url.partition('@')[2]}" in worker.log


@pytest.mark.parametrize("trusted", ["", "stranger.pem"], ids=["the system's", "a stranger"])
def test_whoever_trusts_another_authority_is_told_in_one_sentence(shop, certificates, trusted):
    shop.conf["broker_url"] = shop.conf["broker_url"].replace("amqps", "amqp")
    shop.conf["broker_use_ssl"] = {"ca_certs": str(certificates / trusted)} if trusted else True

    worker = shop.start()
    done = shop.celery("dlx", "status")

    assert done.returncode == 1
    assert UNTRUSTED in done.stderr
    assert done.stderr.startswith("Error: The broker at 127.0.0.1:")
    eventually(lambda: re.search(rf"Cannot connect to .*{UNTRUSTED}", worker.log))
    assert "Traceback" not in done.stderr + worker.log


def test_the_http_api_is_trusted_as_amqp_is(shop, node, certificates):
    shop.conf["broker_url"] = node.url
    shop.conf["broker_use_ssl"] = False

    done = shop.celery("dlx", "status", DLX_MANAGEMENT_URL=node.tls_management_url)

    assert done.returncode == 1
    assert "The management API at https://127.0.0.1:" in done.stderr
    assert UNTRUSTED in done.stderr
    assert "Traceback" not in done.stderr
    trusting = {"DLX_MANAGEMENT_URL": node.tls_management_url, "SSL_CERT_FILE": str(certificates / "ca.pem")}
    assert shop.celery("dlx", "status", **trusting).returncode == 0
