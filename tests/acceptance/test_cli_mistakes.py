"""What is said to who made a mistake: in the project, in the command, or with the broker down."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import version

import click
import pytest

import celery_dlx_retry
from celery_dlx_retry.cli import dlx as dlx_group
from tests.acceptance.commandline import invoke

NOWHERE = "amqp://shop:geheim@127.0.0.1:1//"
NAMELESS = "Note: no app was named, so this is one without tasks and settings. Name one: celery -A your_project dlx …\n"


@pytest.fixture
def celery(tmp_path):
    """``celery -A shop …`` of a task with these options, to its end."""

    def run(options: str, *words: str) -> tuple[int, str]:
        (tmp_path / "shop.py").write_text(
            "from datetime import timedelta\n"
            "from celery import Celery\n"
            "from celery_dlx_retry import DLXRetryTask\n"
            f"app = Celery('shop', broker='{NOWHERE}')\n"
            f"@app.task(base=DLXRetryTask, {options})\n"
            "def charge(order_id): ...\n"
        )
        done = subprocess.run(
            [sys.executable, "-m", "celery", "-A", "shop", *words],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(tmp_path)},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        return done.returncode, done.stderr + (done.stdout if "doctor" in words else "")

    return run


@pytest.mark.parametrize("words", ["worker", "beat", "dlx plan", "dlx status", "dlx doctor", "dlx watch"])
def test_a_bad_policy_is_one_sentence_that_names_its_task(celery, words):
    code, told = celery("policy='soon'", *words.split())

    assert code == 1
    assert told == (
        "Error: The task 'shop.charge': policy is 'soon'; "
        "it must be a policy, seconds, a list of seconds or a function.\n"
    )


def test_who_names_no_app_is_told_and_help_needs_none(broker):
    status, again = (invoke("-b", broker.url, "dlx", *words.split()) for words in ("status", "status --help"))

    assert NAMELESS in status.output
    assert status.exit_code == 0
    assert NAMELESS not in again.output


def test_nothing_is_declared_for_no_app(broker):
    done = invoke("-b", broker.url, "dlx", "declare")

    assert done.exit_code == 2
    assert "Error: No app was named, so there is no plan to declare. Name one: celery -A your_project" in done.output


def test_with_the_broker_down_the_doctor_still_finds_what_is_wrong_with_the_app(nowhere):
    done = invoke(*nowhere, "doctor")

    assert done.exit_code == 1
    found = [line.split("\t")[:2] for line in done.output.splitlines()[1:-1]]
    # Shared tasks of other tests in this process are tasks of this app, too.
    assert [finding for finding in found if finding != ["warning", "nothing-of-ours"]] == [
        ["error", "unreachable"],
        ["warning", "unconfirmed-publish"],
        ["info", "no-dead-letter-exchange"],
    ]
    assert "\tThe broker at 127.0.0.1:1, virtual host 'shop', cannot be used: [Errno 111] Connection" in done.output
    assert "geheim" not in done.output


def test_with_the_broker_down_no_file_is_made_and_nothing_is_said_to_be_imported(nowhere, tmp_path):
    letters = tmp_path / "letters.jsonl"
    letters.write_text("")

    exported = invoke(*nowhere, "dead", "export", "--output", str(tmp_path / "new.jsonl"))
    imported = invoke(*nowhere, "dead", "import", str(letters), "--again", "--yes")

    assert [it.name for it in tmp_path.iterdir()] == ["letters.jsonl"]
    assert (exported.exit_code, imported.exit_code) == (1, 1)
    for done in (exported, imported):
        assert done.output.startswith("Error: The broker at 127.0.0.1:1, virtual host 'shop', cannot be used")


def groups(command, *path):
    """The path of each group of commands."""
    if isinstance(command, click.Group):
        yield path
        for name, each in command.commands.items():
            yield from groups(each, *path, name)


def test_the_version_is_that_of_the_distribution():
    assert invoke("dlx", "--version").output == f"{version('celery-dlx-retry')}\n"
    assert celery_dlx_retry.__version__ == version("celery-dlx-retry")


@pytest.mark.parametrize("path", [*groups(dlx_group)], ids=" ".join)
def test_no_summary_of_a_command_is_cut(path):
    told = invoke("dlx", *path, "--help").output

    assert "Commands:" in told
    assert "..." not in told.partition("Commands:")[2]


def test_a_policy_that_takes_other_arguments_is_refused_before_it_is_needed(celery):
    code, told = celery("policy=lambda: 3", "worker")

    assert code == 1
    assert told.startswith("Error: The task 'shop.charge': policy is <function <lambda> at ")
    assert told.endswith("; it must be a function of (retry, error).\n")


@pytest.mark.parametrize("words", ["worker", "dlx plan", "dlx doctor"])
def test_a_delay_that_is_too_long_is_told_alike_by_worker_plan_and_doctor(celery, words):
    code, told = celery("policy=[timedelta(days=4000)]", *words.split())

    assert code == 1
    assert "The task 'shop.charge' asks to wait 4000 days; dlx_max_delay allows 365 days. Ask for less, or" in told
    assert "Traceback" not in told


LONG = "q" * 256
OPTIONS = {
    "watch --interval": ("nan", "inf", "-inf", "0", "-1", "1e300", "x", ""),
    "dead replay --all --canary 1 --canary-wait": ("nan", "inf", "-1", "1e300", "x", ""),
    "dead replay --all --canary": ("0", "-1", "99999999999999999999", "nan", "1.5", ""),
    "dead replay --all --stop-on-fail": ("101%", "-1%", "nan%", "\u0663%", "", "x" * 5_000),
    "dead replay --all --rate": ("0/s", "inf/s", "-1/s", "", "\u0663/s"),
    "dead replay --all --to-queue": ("", LONG, "\udcff"),
    "dead list --limit": ("0", "-1", "99999999999999999999", "nan", ""),
    "dead list --older-than": ("-1s", "nan", "infs", "", "9999999999s"),
    "dead list --queue": ("", LONG, "\udcff"),
    "dead list --task": ("",),
    "dead list --text": ("",),
    "dead purge -q orders --yes --text": ("",),
    "dead list --exception": ("",),
    "dead list --group": ("",),
    "dead purge --yes": ("",),
    "dead show": ("",),
    "dead edit --set 0=1 --yes": ("",),
    "dead replay --yes": ("",),
    "dead show x --queue": ("", LONG, "\udcff"),
    "dead edit x --queue": ("", LONG),
    "dead import - --yes --skip": ("-1", "99999999999999999999", "nan"),
    "dead import - --yes --to-queue": ("", LONG, "\udcff"),
    "status -Q": ("", ",", LONG, f"orders,{LONG}", "\udcff"),
    "plan -Q": ("", LONG, "\udcff"),
    "waiting list --limit": ("0", "99999999999999999999"),
    "waiting list --queue": ("", LONG, "\udcff"),
    "waiting cancel --yes": ("",),
    "waiting run": ("",),
}


@pytest.mark.parametrize(("words", "value"), [(words, value) for words, values in OPTIONS.items() for value in values])
def test_a_value_that_makes_no_sense_is_a_usage_error_in_one_line(nowhere, words, value):
    done = invoke(*nowhere, *words.split(), value)

    told = done.output.splitlines()[-1]
    assert done.exit_code == 2
    assert told.startswith("Error: ")
    assert told.isprintable()
    assert len(told) < 500


@pytest.mark.parametrize("value", ["nan", "inf", "-1", "0", "1e300"])
def test_a_worker_refuses_a_timeout_that_makes_no_sense(nowhere, value):
    done = invoke(*nowhere[:2], "worker", "--dlx-confirm-timeout", value)

    assert done.exit_code == 2
    assert "Invalid value for '--dlx-confirm-timeout'" in done.output
