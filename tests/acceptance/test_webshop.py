"""``make shop``: a Django and a Flask shop in a world that fails, and the difference to plain Celery on its page."""

from __future__ import annotations

import difflib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from celery_dlx_retry.testing.sandbox import free_ports
from example_project.webshop.plain import REPLACED, lay_out

ROOT = Path(__file__).parents[2]
SHOP = ROOT / "example_project" / "webshop"
PAGE = ROOT / "docs" / "example.md"
PAIRS = {f"before/{before}": after for before, after in REPLACED.items()}


@pytest.fixture(scope="module")
def finished(broker):
    return run("-m", "example_project.webshop", url=broker.url)


@pytest.fixture(scope="module")
def before(broker):
    """The same day on plain Celery."""
    return run("-m", "example_project.webshop", "--before", "--down", "5", url=broker.url)


def test_every_order_gets_through_and_what_no_retry_heals_is_kept(finished):
    assert (finished.returncode, finished.stderr) == (0, "")
    told = finished.stdout
    assert told.splitlines()[-1].startswith("10 orders paid, confirmed and sent; nothing lost")
    assert "webhook down for 6 s" in told
    assert "payments 10, mails 10, webhook 10, thumbnails 6, books 8 | waiting in the broker 0, dead letters 6" in told
    for reason in (r"failed\s+\S+\.book ", r"worker-lost\s+\S+\.draw_thumbnail ", r"crash-loop\s+\S+\.draw_thumbnail "):
        assert re.search(reason, told), told


def test_a_picture_that_kills_its_whole_worker_holds_up_no_other_order(finished):
    lines = finished.stdout.splitlines()
    kills = [number for number, line in enumerate(lines) if "was killed; it is started again" in line]

    assert len(kills) == 6
    assert "The workers were killed 3 times and 3 times." in lines
    # Those that were ordered together with it are drawn and booked before its last kill.
    assert any("thumbnails 6, books 8" in line for line in lines[: kills[-1]])


def test_the_list_of_dead_letters_is_for_readers(finished):
    lines = finished.stdout.splitlines()

    assert max(map(len, lines)) <= 120
    assert not any("\t" in line for line in lines)


def test_plain_celery_loses_what_fails_for_good_or_takes_its_process_with_it(before):
    assert (before.returncode, before.stderr) == (0, "")
    told = before.stdout
    assert "Two shops on plain Celery" in told
    assert "webhook down for 5 s" in told
    assert "in the queues are 0 tasks" in told
    assert re.search(r"draw_thumbnail +6 done, 4 lost: django-2, flask-2, django-4, flask-4\n", told), told
    assert re.search(r"book +8 done, 2 lost: django-3, flask-3\n", told), told


def test_plain_celery_holds_retries_in_its_workers(before):
    assert int(re.search(r"Up to (\d+) retries at once were held by workers", before.stdout)[1]) >= 6


@pytest.mark.parametrize("day", ["finished", "before"])
def test_the_shops_leave_no_process_and_no_queue(day, request, management):
    name = re.search(r"shop-\w+", request.getfixturevalue(day).stdout)[0]

    running = [path for path in Path("/proc").glob("[0-9]*/cmdline") if name in read(path)]
    assert running == []
    if management:
        assert [one for kind in ("queues", "exchanges") for one in management.names(kind) if name in one] == []


def test_without_a_broker_the_shops_say_so_in_one_sentence():
    (port,) = free_ports(1)

    done = run("-m", "example_project.webshop", url=f"amqp://guest:guest@127.0.0.1:{port}//")

    assert done.returncode == 2
    assert re.fullmatch(r"No RabbitMQ is available \(.*\)\. Name one .*\n", done.stderr)


def test_the_page_shows_the_difference_to_plain_celery():
    shown = re.findall(r"```diff\n(.*?)```", PAGE.read_text(), re.DOTALL)

    assert shown == [difference(before, after) for before, after in PAIRS.items()]


PLAIN = """
from example_project.webshop import flask_shop, tasks
from example_project.webshop.django_shop import celery_app

for app in (celery_app, flask_shop.celery_app):
    task = app.tasks[tasks.charge.name]
    print(task.max_retries, "DLXRetryTask" in [base.__name__ for base in type(task).__mro__])
"""


def test_before_it_is_plain_celery(tmp_path):
    lay_out(tmp_path)

    assert run("-c", PLAIN, url="memory://", folder=tmp_path).stdout == "8 False\n" * 2


def difference(before, after):
    lines = [(SHOP / path).read_text().splitlines(keepends=True) for path in (before, after)]
    return "".join(difflib.unified_diff(*lines, before, after, n=2))


def read(path):
    try:
        return path.read_text(errors="replace")
    except OSError:  # it ended while we looked
        return ""


def run(*arguments, url, folder=ROOT):
    environment = {**os.environ, "DLX_TEST_BROKER_URL": url, "SHOP_BROKER_URL": url}
    command = [sys.executable, *arguments]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=120
    )
