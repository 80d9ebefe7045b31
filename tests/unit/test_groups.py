"""Two dead letters are the same failure if the same exception came out of the same function of our own."""

import pytest

from celery_dlx_retry.deadletters.fingerprint import Fingerprint, dead_lettered, fingerprint
from celery_dlx_retry.deadletters.groups import Histogram, grouped
from celery_dlx_retry.policy.reasons import Reason
from celery_dlx_retry.wire.dead_record import record_of, with_record
from tests.unit.letters import a_letter


def frame(path, function, line=7):
    return f'  File "{path}", line {line}, in {function}\n    some(code)\n'


def traceback(*frames):
    return "Traceback (most recent call last):\n" + "".join(frames) + "ValueError: no\n"


def where(text):
    return fingerprint(a_letter(traceback=text).record).where


def test_the_innermost_frame_that_is_not_installed_counts():
    text = traceback(
        frame("/srv/shop/tasks.py", "charge"),
        frame("/srv/shop/bank.py", "pay"),
        frame("/venv/lib/python3.11/site-packages/requests/api.py", "get"),
        frame("/usr/lib/python3.11/socket.py", "connect"),
        frame("<frozen importlib._bootstrap>", "_find"),
        frame("/checkout/celery_dlx_retry/worker/task.py", "dead_letter"),
    )

    assert where(text) == "shop/bank.py:pay"


def test_if_all_is_installed_the_innermost_counts():
    installed = frame("/venv/lib/python3.11/site-packages/requests/api.py", "get")

    assert where(traceback(installed)) == "requests/api.py:get"


@pytest.mark.parametrize(
    "path",
    [
        "/venv/lib/python3.11/site-packages/celery/app/trace.py",
        "/venv/lib/python3.11/site-packages/kombu/messaging.py",
        "/src/billiard/pool.py",
        "/src/celery/celery/app/autoretry.py",
        "/src/celery/celery/concurrency/prefork.py",
        "/checkout/celery_dlx_retry/worker/run.py",
        "/usr/lib/python3.11/threading.py",
    ],
)
def test_a_frame_of_celery_of_ours_or_of_python_is_never_the_place(path):
    installed = frame("/venv/lib/python3.11/site-packages/shop/tasks.py", "charge")

    assert where(traceback(frame(path, "run"))) == "shop.charge"
    assert where(traceback(installed, frame(path, "run"))) == "shop/tasks.py:charge"


def test_a_folder_of_yours_with_the_name_of_celery_is_yours():
    assert where(traceback(frame("/srv/celery/tasks.py", "charge"))) == "celery/tasks.py:charge"


@pytest.mark.parametrize(
    ("reason", "error_type"),
    [
        (Reason.TIMEOUT, "TimeLimitExceeded"),
        (Reason.WORKER_LOST, "WorkerLostError"),
        (Reason.CRASH_LOOP, ""),
        (Reason.UNKNOWN_TASK, "NotRegistered"),
    ],
)
def test_without_a_frame_of_yours_each_task_and_error_is_a_group(reason, error_type):
    text = traceback(frame("/venv/lib/python3.11/site-packages/billiard/pool.py", "on_hard_timeout"))
    facts = {"reason": reason, "error_type": error_type, "traceback": text}
    charge, again, refund = (a_letter(task=task, **facts) for task in ("shop.charge", "shop.charge", "shop.refund"))

    assert charge.fingerprint == Fingerprint(error=error_type or str(reason), where="shop.charge")
    assert charge.fingerprint.group == again.fingerprint.group != refund.fingerprint.group


def test_the_ids_of_groups_stay_as_they_were_in_earlier_releases():
    assert Fingerprint(error="KeyError", where="shop/bank.py:pay").group == "5b3e7fd8"


@pytest.mark.parametrize("frames", [1, 2_000])
def test_the_event_of_a_dead_letter_has_the_group_of_the_letter(frames):
    text = traceback(*[frame("/srv/shop/tasks.py", f"step_{number}") for number in range(frames)])
    record = a_letter(traceback=text).record

    stored = record_of(with_record({}, record))

    assert len(stored.traceback) < 31_000
    assert dead_lettered(record).group == fingerprint(stored).group


def test_a_trend_has_one_bar_for_each_span_between_the_first_death_and_the_last():
    deaths = Histogram()
    for minute, count in ((0, 1), (5, 4), (11, 8)):
        for _ in range(count):
            deaths.add(1_700_000_040_000 + minute * 60_000)

    bars = deaths.trend(1_700_000_040_000, 1_700_000_040_000 + 12 * 60_000 - 1)

    assert bars == "▂    ▅     █"
    assert Histogram().trend(0, 0) == " " * 12


def test_a_long_time_of_deaths_takes_little_memory_and_loses_no_count():
    deaths = Histogram()
    for minute in range(10_000):
        deaths.add(1_700_000_040_000 + minute * 60_000)

    assert len(deaths._counts) <= 240
    assert deaths.since(1_700_000_040_000) == 10_000


def test_of_chained_errors_the_last_one_counts():
    first, last = traceback(frame("/srv/shop/a.py", "f")), traceback(frame("/srv/shop/b.py", "g"))

    assert (
        where(f"{first}\nDuring handling of the above exception, another exception occurred:\n\n{last}")
        == "shop/b.py:g"
    )


@pytest.mark.parametrize("text", ["", "Traceback …", 'File "x", line 1', "\0"])
def test_without_a_frame_the_task_counts(text):
    assert where(text) == "shop.charge"


def test_releases_hosts_and_moved_lines_are_the_same_group_and_other_errors_are_not():
    one = a_letter(traceback=traceback(frame("/srv/releases/1/shop/tasks.py", "charge", 12)))
    same = a_letter(traceback=traceback(frame("/opt/shop/tasks.py", "charge", 99)))
    other = a_letter(error_type="KeyError", traceback=one.record.traceback)

    assert one.fingerprint == same.fingerprint
    assert one.fingerprint.group != other.fingerprint.group


def test_a_windows_path_and_an_odd_name_have_a_group_too():
    assert where(traceback(frame(r"C:\shop\tasks.py", "<lambda>"))) == "shop/tasks.py:<lambda>"
    assert len(Fingerprint(error="\ud800", where="ä").group) == 8


def test_groups_are_counted_with_first_last_and_the_newest_as_sample():
    letters = [a_letter(task_id=str(at), died_at_ms=at, error=f"order {at}") for at in (30, 10, 20, 0)]

    (group, single) = grouped([*letters, a_letter(error_type="KeyError")])

    assert (group.count, group.first_ms, group.last_ms) == (4, 10, 30)
    assert (group.sample_id, group.sample_error) == ("30", "order 30")
    assert group.facts["tasks"] == {"shop.charge": 4}
    assert group.facts["queues"] == {"orders": 4}
    assert single.count == 1
