"""What the pages say that a policy does, done: their tasks fail as the page says, in the kit's eager mode."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).parents[2]

# The tasks of these pages have no bodies that fail; theirs is replaced by one that does.
FAILING = """\
import re

import pytest

def failing(task, *errors):
    left = list(errors)

    def run(*args, **kwargs):
        error = left.pop(0) if len(left) > 1 else left[0]
        if error is not None:
            raise error

    task.run = run
    return task.apply(("order-1",))
"""
CLAIMS = {
    "docs/tour.md": """\
        from celery_dlx_retry import RetryIn
        from tour import charge, import_order, ship

        def test_the_docstring_says_when_it_is_retried(dlx):
            failing(charge, ConnectionError())

            delays = [int(found) for found in re.findall("[0-9]+", charge.__doc__)]
            assert len(delays) == 5
            dlx.assert_retried(charge, delays=delays)
            dlx.assert_dead(charge, reason="exhausted")

        def test_a_key_error_is_a_dead_letter_at_once(dlx):
            failing(import_order, KeyError("vat_id"))

            dlx.assert_retried(import_order, delays=[])
            dlx.assert_dead(import_order, reason="failed")

        def test_a_timeout_has_its_own_policy(dlx):
            failing(import_order, TimeoutError())

            dlx.assert_retried(import_order, delays=[5, 5, 5])

        def test_all_else_backs_off(dlx):
            failing(import_order, ConnectionError())

            limits = [min(2 * 2**retry, 3600) for retry in range(12)]
            dlx.assert_retried(import_order, delays=[pytest.approx(most / 2, abs=most / 2) for most in limits])

        def test_a_list_of_delays_is_a_policy(dlx):
            failing(ship, ConnectionError())

            dlx.assert_retried(ship, delays=[1, 10, 60])

        def test_a_task_chooses_the_next_wait(dlx):
            failing(ship, RetryIn(37), None)

            dlx.assert_retried(ship, delays=[37])

        def test_a_servers_retry_after_is_honoured_up_to_an_hour(dlx):
            error, longer = ConnectionError(), ConnectionError()
            error.retry_after, longer.retry_after = 17, 7200

            failing(ship, error, longer, None)

            dlx.assert_retried(ship, delays=[17, 3600])
        """,
    "docs/policies.md": """\
        from policies import import_order

        def test_the_task_gives_up(dlx):
            import_order.apply(("order-0",))

            dlx.assert_retried(import_order, delays=[])
            dlx.assert_dead(import_order, reason="requested")

        def test_the_task_chooses_its_wait(dlx):
            import_order.apply(("order-37",))

            dlx.assert_retried(import_order, delays=[37] * 10)
            dlx.assert_dead(import_order, reason="exhausted")

        def test_maintenance_is_waited_for(dlx):
            failing(import_order, *[ValueError("maintenance")] * 12, None)

            dlx.assert_retried(import_order, delays=[600] * 12)

        def test_what_the_rules_say_is_final(dlx):
            failing(import_order, KeyError())
            dlx.assert_retried(import_order, delays=[])
            dlx.assert_dead(import_order, reason="failed")

        def test_celerys_own_failure_is_no_dead_letter(dlx):
            result = failing(import_order, FileNotFoundError())

            assert result.state == "FAILURE"
            with pytest.raises(AssertionError, match="is no dead letter"):
                dlx.assert_dead(import_order)

        def test_an_error_that_is_not_named_is_not_retried(dlx):
            failing(import_order, ZeroDivisionError())

            dlx.assert_retried(import_order, delays=[])
            dlx.assert_dead(import_order, reason="failed")

        def test_the_rest_backs_off_give_or_take_a_fifth(dlx):
            failing(import_order, ConnectionError())

            dlx.assert_retried(import_order, delays=[pytest.approx(2**retry, rel=0.2) for retry in range(10)])
        """,
    "docs/choosing-a-policy.md": """\
        from celery_dlx_retry.policy.decision import Dead, decide
        from celery_dlx_retry.policy.reasons import Reason
        from choosing_a_policy import LOCK, PATIENT, Stale, charge

        def test_what_is_no_oserror_is_a_bug(dlx):
            failing(charge, KeyError())

            dlx.assert_retried(charge, delays=[])
            dlx.assert_dead(charge, reason="failed")

        def test_a_network_that_hiccups_gets_a_few_quick_tries(dlx):
            failing(charge, TimeoutError())

            dlx.assert_retried(charge, delays=[1, 5, 30])

        def test_what_does_not_matter_is_no_dead_letter(dlx):
            failing(charge, Stale())

            with pytest.raises(AssertionError, match="is no dead letter"):
                dlx.assert_dead(charge)

        def test_the_rest_backs_off_up_to_the_limit(dlx):
            failing(charge, ConnectionError())

            dlx.assert_retried(charge, delays=[1, 2, 4, 8, 16, 32, 64, 128])

        def test_patience_ends_in_time():
            waited, attempt = 0, 1
            while wait := decide(PATIENT, OSError(), attempt=attempt, elapsed_ms=waited, chance=0.5, now=0):
                if wait == Dead(Reason.EXHAUSTED):
                    break
                waited, attempt = waited + wait.delay_ms, attempt + 1

            assert 24 * 3600 - 300 <= waited / 1000 <= 24 * 3600

        def test_a_lock_is_tried_for_five_minutes():
            assert [LOCK.delay_ms(retry, OSError()) for retry in range(1, LOCK.retries + 1)] == [5000] * 60
        """,
}


def test_the_policies_of_the_pages_do_what_the_pages_say(tmp_path):
    for page, claims in CLAIMS.items():
        name = Path(page).stem.replace("-", "_")
        (example,) = [
            code
            for code in re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
            if "@app.task" in code and "policy=" in code
        ]
        (tmp_path / f"{name}.py").write_text(example)
        (tmp_path / f"test_{name}.py").write_text(FAILING + textwrap.dedent(claims))

    plugins = ("-p", "no:celery", "-p", "no:django", "-p", "no:cacheprovider")
    command = [sys.executable, "-m", "pytest", "-q", *plugins, "--rootdir", str(tmp_path), str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)

    assert done.returncode == 0, done.stdout + done.stderr
    promised = sum(claims.count("def test_") for claims in CLAIMS.values())
    assert f"{promised} passed" in done.stdout
