"""``make bench`` measures, writes its files and leaves nothing behind; how fast we are is no test's business."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "benchmarks.md"
PNG = b"\x89PNG\r\n"


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
    assert found["throughput"]["solo"]["classic"]["per_second"] > 0
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
