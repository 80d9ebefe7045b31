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

ROOT = Path(__file__).parents[2]
SHOP = ROOT / "example_project" / "webshop"
PAGE = ROOT / "docs" / "example.md"
PAIRS = {
    "before/tasks.py": "tasks.py",
    "before/celery.py": "django_shop/celery.py",
    "before/flask_shop.py": "flask_shop.py",
}


@pytest.fixture(scope="module")
def finished(broker):
    return run("-m", "example_project.webshop", url=broker.url)


def test_every_order_gets_through_and_what_no_retry_heals_is_kept(finished):
    assert (finished.returncode, finished.stderr) == (0, "")
    told = finished.stdout
    assert told.splitlines()[-1].startswith("6 orders paid, confirmed and told; nothing lost")
    assert "payments 6, mails 6, webhook 6, thumbnails 2, books 4, dead letters 4" in told
    for reason in (r"failed\s+\S+\.book\s", r"worker-lost\s+\S+\.draw_thumbnail\s"):
        assert re.search(reason, told), told


def test_the_shops_leave_no_process_and_no_queue(finished, management):
    name = re.search(r"shop-\w+", finished.stdout)[0]

    running = [path for path in Path("/proc").glob("[0-9]*/cmdline") if name in read(path)]
    assert running == []
    if management:
        assert [one for kind in ("queues", "exchanges") for one in management.names(kind) if name in one] == []


def test_without_a_broker_the_shops_say_so_in_one_sentence():
    (port,) = free_ports(1)

    done = run("-m", "example_project.webshop", url=f"amqp://guest:guest@127.0.0.1:{port}//")

    assert done.returncode == 2
    assert re.fullmatch(r"No RabbitMQ could be had \(.*\)\. Give one .*\n", done.stderr)


def test_the_page_shows_the_difference_to_plain_celery():
    shown = re.findall(r"```diff\n(.*?)```", PAGE.read_text(), re.DOTALL)

    assert shown == [difference(before, after) for before, after in PAIRS.items()]


PLAIN = """
from example_project.webshop.before import celery, flask_shop, tasks

for app in (celery.app, flask_shop.celery_app):
    task = app.tasks[tasks.charge.name]
    print(task.max_retries, "DLXRetryTask" in [base.__name__ for base in type(task).__mro__])
"""


def test_before_it_is_plain_celery():
    assert run("-c", PLAIN, url="memory://").stdout == "8 False\n" * 2


def difference(before, after):
    lines = [(SHOP / path).read_text().splitlines(keepends=True) for path in (before, after)]
    return "".join(difflib.unified_diff(*lines, before, after, n=2))


def read(path):
    try:
        return path.read_text(errors="replace")
    except OSError:  # it ended while we looked
        return ""


def run(*arguments, url):
    environment = {**os.environ, "DLX_TEST_BROKER_URL": url, "SHOP_BROKER_URL": url}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=120)
