"""Whatever the broker's URL looks like, no command, no worker and no log shows a part of its password."""

from __future__ import annotations

import os
import subprocess
import sys

import click
import pytest
from celery import Celery

from celery_dlx_retry import DLXRetryTask
from celery_dlx_retry.app.context import context_of
from celery_dlx_retry.cli import dlx as dlx_group
from celery_dlx_retry.errors import BadBrokerURL, NoBroker, PublishError
from celery_dlx_retry.testing.rabbitmq import given
from celery_dlx_retry.values.broker_urls import UNREADABLE
from tests.acceptance.commandline import invoke

# Each has QX at every place that is a part of the password.
WRONG = [
    "shop:QX@127.0.0.1", "amqp:/shop:QX@127.0.0.1", "//shop:QX@127.0.0.1", "amqp://shop:QX/QX@127.0.0.1:1//",
    "amqp://shop:QX#QX@127.0.0.1:1//", "amqp://shop:QX?QX@127.0.0.1:1//", "amqp://shop:12/QX@127.0.0.1:1//",
    "amqp://shop:12#QX@127.0.0.1:1//", "amqp://shop:12?QX=1@127.0.0.1:1//", "amqp://shop:QX[@127.0.0.1:1//",
    "amqp://shop:QX;QX@127.0.0.1:1//", "amqp://127.0.0.1:1//;amqp:/shop:QX@127.0.0.1", "amqp+ssl://shop:QX@127.0.0.1:1",
    "amqp://127.0.0.1:1//;shop:QX@127.0.0.1", "amqp://shop:QX@127.0.0.1:QX//",
]  # fmt: skip
#: Kombu reads these well; the broker does not answer.
WELL = ["amqp://shop:QX@QX%QX@127.0.0.1:1//", "amqp://shop:QX%2FQX@127.0.0.1:1//", "amqps://shop:QX@127.0.0.1:1//"]


def commands(group, *path):
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, *path, name)
        else:
            yield *path, name


WORDS = [
    [*path, *{"show": ["x"], "edit": ["x"], "import": ["-"], "run": ["x"], "cancel": ["x"]}.get(path[-1], [])]
    for path in commands(dlx_group)
]


@pytest.mark.parametrize("words", WORDS, ids=" ".join)
def test_no_command_shows_a_password(words):
    # `watch` waits for a broker that is down.
    for number, url in enumerate(WRONG if words == ["watch"] else [*WRONG, *WELL]):
        done = invoke("-b", url, "dlx", *words, *(["--json"] if number % 2 and words != ["watch"] else []))

        assert "QX" not in done.output, url
        assert done.exit_code or (url in WELL and words[0] in {"plan", "permissions"}), url


@pytest.mark.parametrize("setting", ["CELERY_BROKER_URL", "CELERY_BROKER_READ_URL", "CELERY_BROKER_WRITE_URL"])
@pytest.mark.parametrize("url", WRONG)
def test_a_url_of_the_environment_is_not_shown_either(setting, url):
    done = invoke("dlx", "status", **{setting: url})

    assert "QX" not in done.output
    assert "cannot be read. Write amqp://USER:PASSWORD@HOST:PORT/VHOST" in done.output
    assert done.exit_code == 2


@pytest.mark.parametrize("backend", ["redis:/u:QX@h", "u:QX@h", "//u:QX@h", "redis://u:QX/QX@h", "db+sqlite:/u:QX@h"])
def test_no_command_shows_the_password_of_a_result_backend(nowhere, backend):
    for words in ("status", "doctor", "plan", "permissions", "dead replay --all --canary 1 --yes"):
        done = invoke("--result-backend", backend, *nowhere, *words.split())

        assert "QX" not in done.output


@pytest.fixture
def start(tmp_path):
    """``celery -A shop worker`` or ``beat`` with this broker URL, to its end."""

    def run(url: object, *words: str) -> tuple[int, str]:
        (tmp_path / "shop.py").write_text(
            "from celery import Celery\n"
            "from celery_dlx_retry import DLXRetryTask\n"
            f"app = Celery('shop', task_cls=DLXRetryTask)\n"
            f"app.conf.broker_url = {url!r}\n"
            "app.conf.broker_connection_retry_on_startup = False\n"
            "app.conf.broker_connection_retry = False\n"
            "@app.task\n"
            "def charge(order_id): ...\n"
        )
        done = subprocess.run(
            [sys.executable, "-m", "celery", "-A", "shop", *words],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(tmp_path), "C_FORCE_ROOT": "1"},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        return done.returncode, done.stdout + done.stderr

    return run


# One that Kombu takes for a host name, one that it cannot read, one that it reads wrongly, one to fail over to.
@pytest.mark.parametrize("url", [WRONG[0], WRONG[3], WRONG[6], WRONG[11]])
def test_a_worker_with_such_a_url_stops_with_one_sentence(start, url):
    code, told = start(url, "worker", "-P", "solo", "-l", "DEBUG")

    assert "QX" not in told
    assert "cannot be read. Write amqp://USER:PASSWORD@HOST:PORT/VHOST" in told
    assert "Traceback" not in told
    assert code == 1


def test_a_worker_that_does_not_reach_its_broker_shows_no_password(start):
    code, told = start(WELL, "worker", "-P", "solo", "-l", "DEBUG")

    assert "QX" not in told
    assert code


def nothing(): ...


@pytest.mark.parametrize("url", WRONG)
def test_a_sender_gets_one_sentence_and_no_password(url):
    app = Celery("sender", broker=url, set_as_current=False)
    task = app.task(nothing, base=DLXRetryTask, shared=False, name="shown")

    with pytest.raises(BadBrokerURL) as caught:
        task.apply_async(countdown=5)

    assert "QX" not in f"{caught.value!r} {caught.value.__context__!r}"


def test_a_sender_whose_broker_is_down_shows_no_password():
    app = Celery("sender", broker=WELL[0], set_as_current=False)

    with pytest.raises(PublishError) as caught, context_of(app).publisher.connection():
        pass

    assert "127.0.0.1:1, virtual host '/'" in str(caught.value)
    assert "QX" not in f"{caught.value!r}"


@pytest.mark.parametrize("url", WRONG)
def test_the_brokers_of_tests_are_not_shown_either(url):
    with pytest.raises(NoBroker) as caught:
        given(url)

    assert "QX" not in f"{caught.value!r}"
    assert UNREADABLE not in str(caught.value)
