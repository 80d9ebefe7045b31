"""``make bench`` measures, writes its files and leaves nothing behind; how fast we are is no test's business."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support import eventually

from benchmarks.compare.gauge import gauge
from benchmarks.compare.numbers import in_turns, ratio, typical
from benchmarks.instructions import steps

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "benchmarks.md"
PNG = b"\x89PNG\r\n"
FAST = {"worker_ms": 1.0, "broker_ms": 1.0}
SLOW = {"worker_ms": 3.0, "broker_ms": 1.0}


@pytest.fixture
def page(tmp_path):
    shutil.copy(PAGE, tmp_path)
    return tmp_path / PAGE.name


def bench(*arguments, broker=None):
    given = {"DLX_TEST_BROKER_URL": broker.url, "DLX_TEST_MANAGEMENT_URL": broker.management_url} if broker else {}
    command = [sys.executable, "-m", "benchmarks.compare", *map(str, arguments)]
    return subprocess.run(
        command, cwd=ROOT, env={**os.environ, **given}, capture_output=True, text=True, check=False, timeout=120
    )


def test_the_smallest_run_writes_figures_plot_and_page_and_leaves_no_virtual_host(broker, management, page, tmp_path):
    if management is None:
        pytest.skip("virtual hosts are made over the HTTP API")

    done = bench(
        "--tiny", "--only", "throughput", "--only", "waiting", "--out", tmp_path / "out", "--page", page, broker=broker
    )

    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "out" / "figures.json").read_text())
    assert found["about"]["passed over"] == []
    assert found["throughput"]["solo"]["classic"][0]["per_second"] > 0
    assert found["waiting"]["classic"]["recovery_seconds"] > 0
    assert (tmp_path / "out" / "figures.png").read_bytes().startswith(PNG)
    assert "Retries through one worker, solo" in done.stdout
    assert "### Retries through one worker, solo" in page.read_text()
    assert not [one["name"] for one in management.call("GET", "/vhosts") if one["name"].startswith("bench-")]


def test_the_page_shows_the_figures_that_lie_beside_it(page, tmp_path):
    done = bench("--from", PAGE.with_suffix(".json"), "--out", tmp_path / "out", "--page", page)

    assert done.returncode == 0, done.stderr
    assert page.read_text() == PAGE.read_text()
    assert page.with_suffix(".png").read_bytes().startswith(PNG)


def worker_ratio(one, other):
    return ratio(one["worker_ms"], other["worker_ms"])


def test_a_ratio_is_within_a_round_and_not_between_two():
    assert in_turns(worker_ratio, [FAST, SLOW, FAST], [FAST, SLOW, SLOW]) == 1


def test_a_round_that_one_of_them_has_not_does_not_count():
    assert in_turns(worker_ratio, [None, SLOW], [FAST, FAST]) == 3
    assert typical([None, SLOW], "worker_ms") == 3


@pytest.mark.parametrize("theirs", [None, [], [None], [{"worker_ms": 0.0}]])
def test_what_was_not_measured_has_no_ratio(theirs):
    assert in_turns(worker_ratio, [FAST], theirs) is None


def test_the_gauge_runs_on_every_core_and_knows_of_no_machine_that_is_faster_than_at_its_best():
    with gauge() as it:
        it.settle()
        before = it.read()
        eventually(lambda: all(now[1] > then[1] for now, then in zip(it.read(), before, strict=True)))

        assert len(before) == len(os.sched_getaffinity(0))
        assert it.slowness_since(before) > 0.8  # a loop may beat the best before it by a little


@pytest.mark.parametrize("step", steps())
def test_what_is_counted_in_instructions_can_be_done(step):
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.instructions", "--repeat", step, "--count", "3"],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_without_valgrind_it_says_what_to_install(monkeypatch):
    monkeypatch.setenv("PATH", "")
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.instructions"], cwd=ROOT, capture_output=True, text=True, check=False
    )

    assert done.returncode == 1
    assert done.stderr == "valgrind is not installed, and callgrind is a part of it: apt-get install valgrind\n"
