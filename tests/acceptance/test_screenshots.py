"""The pictures on docs/monitoring-pictures.md: docs/screenshots.py makes them, and they are there and small."""

from __future__ import annotations

import re
import time
from contextlib import ExitStack, closing
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
from PIL import Image
from support import eventually

from celery_dlx_retry.testing.sandbox import LOOPBACK
from tests.acceptance.tenancy import Tenancy
from tests.chromium import find_chromium
from tests.prometheus import prometheus_program, run_prometheus
from tests.side_by_side.world import World

__all__ = ["prometheus_program"]

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "monitoring-pictures.md").read_text()
LARGEST_BYTES = 150_000
#: An empty page has fewer.
LEAST_COLOURS = 8


def script():
    spec = spec_from_file_location("screenshots", DOCS / "screenshots.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def drawn(panels):
    """The panels that have a number or a line."""
    return {panel["title"] for panel, series in panels if series}


@pytest.fixture
def world(broker, management, redis_url, tmp_path):
    with ExitStack() as stack:
        tenancy = stack.enter_context(closing(Tenancy(broker, management, "screenshots")))
        options = {"backend": redis_url, "management_url": broker.management_url}
        it = World(url=tenancy.url, folder=tmp_path, stack=stack, **options)
        stack.enter_context(closing(it))
        it.start()
        yield it


def test_the_script_photographs_a_real_run(world, prometheus_program, say, tmp_path):
    targets = {"worker": [f"{LOOPBACK}:{world.worker_port}"], "exporter": [f"{LOOPBACK}:{world.dlx_port}"]}
    screenshots, began = script(), time.time()
    with run_prometheus(prometheus_program, targets) as prometheus:
        for name in ("fails", "waits"):
            world.send("ours", name)
        eventually(lambda: drawn(screenshots.panels(prometheus, began=began)) >= {"Waiting", "Dead letters"}, within=60)
        made = screenshots.pictures(world, prometheus, find_chromium(say), tmp_path, began=began)

    assert sorted(it.name for it in made) == sorted(re.findall(r"\(pictures/(\w+\.png)\)", PAGE))
    for picture in made:
        with Image.open(picture) as it:
            assert it.width >= 1000
            assert len(it.getcolors()) >= LEAST_COLOURS, picture


def test_the_pictures_of_the_page_are_small():
    pictures = [DOCS / name for name in re.findall(r"\((pictures/\w+\.png)\)", PAGE)]

    assert len(pictures) == 3
    assert all(picture.stat().st_size < LARGEST_BYTES for picture in pictures)
