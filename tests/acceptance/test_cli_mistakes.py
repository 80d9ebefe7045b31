"""A project with a mistake in it: workers and commands say so in one sentence, and the same one."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

NOWHERE = "amqp://shop:geheim@127.0.0.1:1//"


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
        return done.returncode, done.stderr

    return run


@pytest.mark.parametrize("words", ["worker", "beat", "dlx plan", "dlx status", "dlx doctor", "dlx watch"])
def test_a_bad_policy_is_one_sentence_that_names_its_task(celery, words):
    code, told = celery("policy='soon'", *words.split())

    assert code == 1
    assert told == (
        "Error: The task 'shop.charge': policy is 'soon'; "
        "it must be a policy, seconds, a list of seconds or a function.\n"
    )
