"""A task's policy decides about every error: how long to wait, dead and why, or Celery's own failure."""

from __future__ import annotations

import re

import pytest
from support import eventually

from tests.worker.stage import stage


@pytest.fixture(scope="module")
def project(request):
    with stage(request, dlx_max_delay=600) as it:
        it.start(module="project_policies", concurrency=3).wait_until_ready()
        yield it


@pytest.fixture(scope="module")
def send(project):
    def send(name, *args, **kwargs):
        return project.app.send_task(f"policies.{name}", args, kwargs)

    return send


def dead_letter(project, result):
    return eventually(lambda: [one for one in project.dead() if one.record.task_id == result.id])[0]


def delays(letter):
    return [failure.delay_ms for failure in letter.history]


def test_an_error_without_a_rule_takes_the_policys_own_delay_and_retries(project, send):
    letter = dead_letter(project, send("ruled", "OSError"))

    assert (letter.record.reason, delays(letter)) == ("exhausted", [150, None])


def test_an_error_with_a_rule_takes_the_delays_and_retries_of_the_rule(project, send):
    letter = dead_letter(project, send("ruled", "KeyError"))

    assert (letter.record.reason, delays(letter)) == ("exhausted", [100, 200, None])


def test_a_rule_may_be_a_predicate(project, send):
    letter = dead_letter(project, send("ruled", "ValueError"))

    assert (letter.record.reason, delays(letter)) == ("exhausted", [50, 50, 50, None])


def test_every_error_has_its_own_rule_in_one_life(project, send):
    letter = dead_letter(project, send("ruled", "OSError", "KeyError", "TypeError"))

    assert (letter.record.reason, delays(letter)) == ("failed", [150, 100, None])
    assert [failure.error.partition(":")[0] for failure in letter.history] == ["OSError", "KeyError", "TypeError"]


def test_each_rule_counts_its_own_retries_and_the_history_says_which(project, send):
    letter = dead_letter(project, send("ruled", "KeyError", "OSError", "ValueError", "KeyError", "KeyError"))

    assert (letter.record.reason, letter.record.attempts) == ("exhausted", 5)
    assert delays(letter) == [100, 150, 50, 200, None]
    granted = [(failure.rule.rpartition(".")[2], failure.rule_retry) for failure in letter.history]
    assert granted == [("KeyError", 1), ("", 0), ("<lambda>", 1), ("KeyError", 2), ("", 0)]


def test_a_time_limit_counts_for_its_own_rule(project, send):
    letter = dead_letter(project, send("overruns"))

    assert (letter.record.reason, letter.record.attempts) == ("timeout", 4)
    assert [(failure.rule, failure.rule_retry) for failure in letter.history] == [
        ("", 0),
        ("TimeLimitExceeded", 1),
        ("TimeLimitExceeded", 2),
        ("", 0),
    ]


def test_retry_with_a_countdown_does_not_count_what_rules_granted(project, send):
    letter = dead_letter(project, send("asks_late", countdown=0.1))

    assert (letter.record.reason, letter.record.attempts) == ("exhausted", 5)
    assert delays(letter) == [50, 50, 100, 100, None]


def test_retry_in_needs_no_policy_and_ends_at_max_retries(project, send):
    letter = dead_letter(project, result := send("later", 0.3))

    assert (letter.record.reason, letter.record.attempts, letter.record.error_type) == ("exhausted", 3, "RetryIn")
    assert all(300 <= granted <= 330 for granted in delays(letter)[:-1])
    first, second, _ = project.records(id=result.id)
    assert second["at"] - first["at"] >= 0.3


def test_retry_in_chooses_the_delay_of_an_automatic_retry(project, send):
    letter = dead_letter(project, send("later_by_itself", 0.3))

    assert (letter.record.reason, letter.record.attempts) == ("exhausted", 3)
    assert all(300 <= granted <= 330 for granted in delays(letter)[:-1])


@pytest.mark.parametrize("seconds", [-1, "x", None])
def test_retry_in_with_no_delay_is_a_dead_letter_that_says_so(project, send, seconds):
    letter = dead_letter(project, send("later", seconds))

    assert (letter.record.reason, letter.record.error_type, letter.record.attempts) == ("failed", "InvalidDelay", 1)
    assert letter.record.error.startswith(f"RetryIn.seconds is {seconds!r}; it must be")


def test_an_error_that_is_dead_by_rule_has_no_retry(project, send):
    letter = dead_letter(project, result := send("ruled", "TypeError"))

    assert (letter.record.reason, letter.record.attempts) == ("failed", 1)
    eventually(lambda: result.state == "FAILURE")


def test_an_error_that_is_let_fail_is_celerys_failure_and_no_dead_letter(project, send):
    result = send("ruled", "AssertionError")

    with pytest.raises(AssertionError, match="let it"):
        result.get(timeout=20)
    project.send("succeed").get(timeout=20)
    assert result.id not in {letter.record.task_id for letter in project.dead()}
    assert project.depth(project.queue) == 0


@pytest.mark.parametrize("error", ["RetryIn", "TooManyRequests"])
def test_an_error_may_name_the_delay_itself(project, send, error):
    letter = dead_letter(project, result := send("ruled", error))

    granted, none = delays(letter)
    assert 300 <= granted <= 330
    assert none is None
    first, second = project.records(id=result.id)
    assert second["at"] - first["at"] >= 0.3


def test_a_task_that_asks_for_more_than_the_longest_delay_is_one_dead_letter_that_says_so(project, send):
    letter = dead_letter(project, result := send("has_none", countdown=100_000))

    assert (letter.record.attempts, letter.record.error_type) == (1, "DelayTooLong")
    assert "dlx_max_delay" in letter.record.error
    eventually(lambda: result.state == "FAILURE")


def test_an_error_that_asks_for_more_than_the_longest_delay_is_one_dead_letter(project, send):
    letter = dead_letter(project, result := send("ruled", "much later"))

    assert (letter.record.attempts, letter.record.error_type) == (1, "DelayTooLong")
    eventually(lambda: result.state == "FAILURE")


def test_a_policy_that_fails_is_told_in_the_dead_letter_and_in_the_log_with_the_task_and_its_id(project, send):
    letter = dead_letter(project, result := send("faulty"))

    assert (letter.record.reason, letter.record.error_type) == ("failed", "OSError")
    assert letter.record.error == "down (its policy failed: KeyError: 'no such delay')"
    assert f"policy failed task=policies.faulty id={result.id} policy=Custom(faulty)" in project._running[0].log


def test_no_retry_is_granted_that_would_start_after_the_deadline(project, send):
    letter = dead_letter(project, send("patient"))

    first = letter.history[0].at_ms
    assert letter.record.reason == "exhausted"
    assert 2 <= letter.record.attempts <= 4
    assert all(failure.at_ms + failure.delay_ms <= first + 700 for failure in letter.history[:-1])
    assert letter.history[-1].at_ms + 200 > first + 700


def test_jitter_spreads_what_failed_together_over_many_lanes(project, send):
    sent = {send("spread").id for _ in range(24)}

    letters = eventually(
        lambda: len(found := [one for one in project.dead() if one.record.task_id in sent]) == 24 and found
    )
    granted = [letter.history[0].delay_ms for letter in letters]
    assert len(set(granted)) >= 5
    # On the grid, which begins at 100 ms, but for whoever drew the 50 ms that another task announces.
    assert 100 <= min(ms for ms in granted if ms != 50) <= max(granted) <= 550


def test_retry_without_a_countdown_takes_the_policys_delay_and_limit(project, send):
    letter = dead_letter(project, send("asks"))

    assert (letter.record.reason, delays(letter)) == ("exhausted", [150, 150, None])


def test_retry_with_a_countdown_takes_that_and_the_policys_limit(project, send):
    letter = dead_letter(project, send("asks", countdown=0.05))

    assert (letter.record.reason, delays(letter)) == ("exhausted", [50, 50, None])


def test_retry_with_a_limit_of_its_own_stops_there(project, send):
    letter = dead_letter(project, send("asks", max_retries=1))

    assert (letter.record.reason, delays(letter)) == ("exhausted", [150, None])


def test_a_list_is_a_policy_and_goes_with_autoretry(project, send):
    letter = dead_letter(project, send("both"))

    assert (letter.record.reason, delays(letter)) == ("exhausted", [100, 200, None])


def test_a_function_is_a_policy(project, send):
    letter = dead_letter(project, send("function"))

    first, second, none = delays(letter)
    assert letter.record.reason == "exhausted"
    assert 200 <= first <= 220
    assert 400 <= second <= 440
    assert none is None


@pytest.mark.parametrize("name", ["gives_up", "raises"])
def test_a_task_that_gives_up_is_a_dead_letter_at_once_even_if_celery_would_retry_everything(project, send, name):
    letter = dead_letter(project, result := send(name))

    assert (letter.record.reason, letter.record.attempts) == ("requested", 1)
    assert "not worth it" in letter.record.error
    eventually(lambda: result.state == "FAILURE")
    assert len(project.records(id=result.id)) == 1


def test_a_task_with_a_policy_that_gives_up_is_not_retried(project, send):
    letter = dead_letter(project, send("ruled", "DeadLetter"))

    assert (letter.record.reason, letter.record.attempts) == ("requested", 1)


def test_a_retry_that_is_raised_by_hand_is_not_lost(project, send):
    result = send("by_hand")

    def is_safe():
        return len(project.records(id=result.id)) > 1 or result.id in {one.record.task_id for one in project.dead()}

    eventually(is_safe, within=5)


def test_the_traceback_of_a_retry_is_of_the_task_and_has_all_its_errors(send):
    result = send("chained")
    eventually(lambda: result.state == "RETRY")

    files = re.findall(r'File "[^"]*?([^/"]+)", line \d+, in (\w+)', result.traceback)
    assert files.count(("project_policies.py", "chained")) == 2
    assert set(files) <= {("project_policies.py", "chained"), ("trace.py", "handle_retry"), ("trace.py", "_raised")}
    assert re.findall(r"^(KeyError|OSError|celery\.exceptions\.Retry):", result.traceback, re.MULTILINE) == [
        "KeyError",
        "OSError",
        "celery.exceptions.Retry",
    ]
