"""Two dead letters are the same failure if the same exception came out of the same function of our own."""

import pytest

from celery_dlx_retry.deadletters.fingerprint import Fingerprint, fingerprint
from celery_dlx_retry.deadletters.groups import grouped
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
    assert single.count == 1
