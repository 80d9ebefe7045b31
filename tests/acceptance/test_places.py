"""Where the broker is: virtual hosts with odd names, and several URLs of which some do not answer."""

from __future__ import annotations

import json
import secrets
import shlex
from contextlib import closing

import pytest
from harness import Project
from kombu.connection import Connection
from support import eventually

from celery_dlx_retry.testing.sandbox import LOOPBACK, free_ports
from tests.acceptance.commandline import CommandLine
from tests.acceptance.tenancy import Tenancy


@pytest.mark.parametrize("odd", ["a/b", "ä b;c?#", "%2f"])
def test_a_virtual_host_may_have_any_name(broker, http_api, redis_url, tmp_path, odd):
    prefix = f"t{secrets.token_hex(4)}"
    vhost = f"{prefix}{odd}"
    with closing(Tenancy(broker, http_api, vhost)) as tenancy:
        shop = Project(url=tenancy.url, backend=redis_url, prefix=prefix, folder=tmp_path)
        with closing(shop), closing(CommandLine(shop, broker)) as dlx:
            with Connection(tenancy.url) as connection:  # RabbitMQ 4.3 binds no queue that does not exist
                connection.channel().queue_declare(shop.queue, durable=True, auto_delete=False)
            http_api.call("POST", "/definitions", json.loads(dlx("plan", "--format", "definitions")))
            with shop.worker(pool="solo"):
                waiting = shop.send("heal", 1, 60)
                assert shop.send("heal", 1, 0.1).get(timeout=20) == "healed"
                assert shop.send("succeed", 5, countdown=0.3).get(timeout=20) == 5
                shop.send("fail")
                eventually(shop.dead)

                assert dlx("check") == "The broker matches the plan.\n"
                assert f"work\t{shop.queue}\t" in dlx("status")
                assert waiting.id in dlx("waiting", "list")
                assert "project.fail" in dlx("dead", "list")
                granted = shlex.split(dlx("permissions", "worker").splitlines()[1])
                assert granted[granted.index("--vhost") + 1] == vhost
                dlx("waiting", "run", waiting.id)
                assert waiting.get(timeout=20) == "healed"


def test_a_virtual_host_that_does_not_exist_is_told_in_one_sentence(project):
    project.conf["broker_url"] = project.url.removesuffix("/") + "no%2Fsuch"

    done = project.celery("dlx", "status")

    assert done.returncode == 1
    assert "virtual host 'no/such', cannot be used:" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("written", "strategy"), [("list", "round-robin"), ("semicolon", "shuffle")])
def test_the_first_of_several_urls_may_be_down(project, broker, http_api, written, strategy):
    assert http_api
    (nobody,) = free_ports(1)
    urls = [f"amqp://guest:guest@{LOOPBACK}:{nobody}//", project.url]
    project.conf["broker_url"] = urls if written == "list" else ";".join(urls)
    project.conf["broker_failover_strategy"] = strategy

    with project.worker() as worker, closing(CommandLine(project, broker)) as dlx:
        assert "project.fail" not in dlx("dead", "list")
        project.conf["broker_url"] = project.url  # Celery's own first publish may give up with "shuffle"
        assert project.send("heal", 2, 0.1).get(timeout=20) == "healed"
        assert project.send("succeed", 5, countdown=0.3).get(timeout=20) == 5
        project.send("fail")
        project.send("overrun")
        eventually(lambda: len(project.dead()) == 2)
        assert "project.fail" in dlx("dead", "list")
        assert f"work\t{project.queue}\t" in dlx("status")
        dlx("dead", "replay", "--all", "--yes")
        eventually(lambda: len(project.records(task="project.fail")) == 2)

    assert "not handed over" not in worker.log


def test_if_none_of_several_urls_answers_all_are_named(project):
    ports = free_ports(2)
    project.conf["broker_url"] = [f"amqp://guest:secret@{LOOPBACK}:{port}//" for port in ports]

    done = project.celery("dlx", "status")

    assert done.returncode == 1
    for port in ports:
        assert f"{LOOPBACK}:{port}, virtual host '/'" in done.stderr
    assert "secret" not in done.stderr
    assert "Traceback" not in done.stderr
