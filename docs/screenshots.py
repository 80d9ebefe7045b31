"""Make the pictures of docs/monitoring-pictures.md: a real run, seen by a real Flower and a real Prometheus.

python docs/screenshots.py [FOLDER]       # three minutes; FOLDER is docs/pictures

Chromium photographs Flower and Prometheus. No registry that we can reach has a Grafana, so matplotlib draws the panels
of docs/monitoring/dashboard.json from the answers of Prometheus.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import matplotlib as mpl
from PIL import Image

DOCS = Path(__file__).parent
if __name__ == "__main__":
    sys.path[:0] = [str(DOCS.parent), str(DOCS.parent / "tests")]

from celery_dlx_retry.testing.sandbox import LOOPBACK  # noqa: E402
from tests.chromium import find_chromium, photograph  # noqa: E402
from tests.prometheus import find_prometheus, run_prometheus  # noqa: E402
from tests.provision import provide, provide_redis  # noqa: E402
from tests.side_by_side.world import World  # noqa: E402

if TYPE_CHECKING:
    from tests.prometheus import Prometheus

PICTURES = DOCS / "pictures"
DASHBOARD = DOCS / "monitoring" / "dashboard.json"
GRAPH = "sum by (reason) (increase(celery_dlx_dead_letters_total[1m]))"
RUN_SECONDS = 90.0
COLOURS = 64  # a screenshot of text needs no more, and is a third of the size


def pictures(world: World, prometheus: Prometheus, chromium: str, folder: Path, *, began: float) -> list[Path]:
    """Write all pictures."""
    flower, graph, dashboard = (folder / f"{name}.png" for name in ("flower", "prometheus", "dashboard"))
    photograph(chromium, f"http://{LOOPBACK}:{world.flower_port}/tasks", flower, width=1500, height=1000)
    asked = {"g0.expr": GRAPH, "g0.tab": 0, "g0.range_input": "2m", "g0.stacked": 0}
    photograph(chromium, f"{prometheus.url}/graph?{urlencode(asked)}", graph, height=860)
    draw(panels(prometheus, began=began), dashboard)
    for picture in (flower, graph, dashboard):
        with Image.open(picture) as it:
            it.convert("RGB").quantize(COLOURS).save(picture, optimize=True)
    return [flower, graph, dashboard]


def panels(prometheus: Prometheus, *, began: float) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Return each panel of the dashboard with its series: points of time and value by legend."""
    found = []
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        series: dict[str, Any] = {}
        for target in panel["targets"]:
            query = target["expr"].replace("$__rate_interval", "30s").replace("$queue", ".*")
            asked = {"query": query, "start": f"{began:.0f}", "end": f"{time.time():.0f}", "step": "2"}
            for it in prometheus.api("query_range", **asked)["result"]:
                labels = {
                    name: value for name, value in it["metric"].items() if name not in {"__name__", "instance", "job"}
                }
                legend = target.get("legendFormat") or ", ".join(labels.values())
                for name, value in labels.items():
                    legend = legend.replace(f"{{{{{name}}}}}", value)
                points = [(float(at) - began, float(value)) for at, value in it["values"]]
                series[legend or panel["title"]] = points
        found.append((panel, series))
    return found


def draw(found: list[tuple[dict[str, Any], dict[str, Any]]], picture: Path) -> None:
    """Draw panels where Grafana has them: 24 columns wide, numbers as numbers and graphs as graphs."""
    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415 - after use()

    rows = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel, _ in found)
    plt.style.use("dark_background")
    figure = plt.figure(figsize=(14, rows * 0.32), dpi=90, facecolor="#111217")
    for panel, series in found:
        at = panel["gridPos"]
        place = (
            at["x"] / 24 + 0.025,
            1 - (at["y"] + at["h"]) / rows + 0.015,
            at["w"] / 24 - 0.04,
            at["h"] / rows - 0.045,
        )
        axes = figure.add_axes(place, facecolor="#181b1f")
        axes.set_title(panel["title"], loc="left", fontsize=8, color="#ccccdc")
        axes.tick_params(labelsize=7, colors="#8e8e99")
        if panel["type"] in {"stat", "gauge"}:
            axes.set(xticks=[], yticks=[])
            total = sum(points[-1][1] for points in series.values())
            axes.text(
                0.5,
                0.45,
                f"{total:.3g}" if series else "no data",
                fontsize=26,
                color="#73bf69",
                ha="center",
                va="center",
            )
            continue
        for legend, points in series.items():
            axes.plot(*zip(*points, strict=True), label=legend, linewidth=1.2)
        if series:
            axes.legend(fontsize=6, loc="upper left", frameon=False, ncols=1 + len(series) // 7)
        else:
            axes.text(0.5, 0.5, "no data", fontsize=9, color="#8e8e99", ha="center", va="center")
        axes.grid(color="#2c2f36", linewidth=0.5)
    figure.savefig(picture)
    plt.close(figure)


def main() -> None:
    """Run tasks for a while, and make the pictures."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else PICTURES
    with ExitStack() as stack:
        broker = stack.enter_context(provide())
        redis = stack.enter_context(provide_redis(say=print))
        logs = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        world = World(
            url=broker.url, backend=redis, folder=logs, stack=stack, management_url=broker.management_url or ""
        )
        stack.enter_context(closing(world))
        world.start()
        targets = {"worker": [f"{LOOPBACK}:{world.worker_port}"], "exporter": [f"{LOOPBACK}:{world.dlx_port}"]}
        prometheus = stack.enter_context(run_prometheus(find_prometheus(print), targets))
        began = time.time()
        while time.time() < began + RUN_SECONDS:
            world.send_all()
            world.wait()
        for picture in pictures(world, prometheus, find_chromium(print), folder, began=began):
            print(f"{picture}: {picture.stat().st_size // 1024} kB")  # noqa: T201 - a script


if __name__ == "__main__":
    main()
