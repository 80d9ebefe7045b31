"""The shipped alerts and dashboard use metrics that exist."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from celery_dlx_retry.contrib.prometheus import Metrics
from celery_dlx_retry.contrib.prometheus_collector import metrics

FILES = Path(__file__).parents[2] / "docs" / "monitoring"
NAME = re.compile(r"\bcelery_dlx_[a-z_]+")
PARTS = re.compile(r"_(total|bucket|count|sum)$")


def names_in(text):
    return {PARTS.sub("", name) for name in NAME.findall(text)}


@pytest.mark.parametrize("file", ["alerts.yml", "dashboard.json"])
def test_every_metric_in_a_shipped_file_is_one_of_ours(file):
    registry = CollectorRegistry()
    Metrics(registry)
    ours = {metric.name for metric in (*metrics(), *registry.collect())}

    assert names_in((FILES / file).read_text()) - ours == set()
    assert len(ours) == 12 + 15  # of the exporter and of the worker


def test_the_alerts_cover_what_goes_wrong():
    alerts = re.findall(r"- alert: CeleryDlx(\w+)", (FILES / "alerts.yml").read_text())

    assert set(alerts) >= {
        "DeadLettersGrowing", "DeadLetterOld", "Orphans", "MissingObjects", "NoConsumers", "LaneOverdue", "GivenBack",
        "RetryStorm", "BreakerOpen",
    }  # fmt: skip


def test_no_alert_looks_at_ready_messages_or_at_consumers_of_lanes():
    text = (FILES / "alerts.yml").read_text()

    assert "_ready" not in text
    assert "rabbitmq_queue_consumers" not in text


def test_the_panels_of_the_dashboard_do_not_overlap_and_have_queries():
    panels = json.loads((FILES / "dashboard.json").read_text())["panels"]
    cells = [
        (x, y)
        for at in (panel["gridPos"] for panel in panels)
        for x in range(at["x"], at["x"] + at["w"])
        for y in range(at["y"], at["y"] + at["h"])
    ]

    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24
    assert all(target["expr"] for panel in panels for target in panel["targets"])
