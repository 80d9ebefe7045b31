"""The example of docs/tracing.md, as a real prefork worker whose pool processes end after each task."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

from support import eventually

PAGE = (Path(__file__).parents[2] / "docs" / "tracing.md").read_text()
(EXAMPLE,) = (it for it in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if "worker_process_init" in it)


def objects(log):
    """The JSON objects of more than one line that a worker has printed."""
    for text in re.findall(r"^\{$.*?^\}$", log, re.MULTILINE | re.DOTALL):
        yield json.loads(text)


def test_the_worker_of_the_page_exports_all_spans_and_counts_once(project, tmp_path, monkeypatch):
    conf = {key: value for key, value in project.conf.items() if key != "result_backend"}
    (tmp_path / "traced_shop.py").write_text(f"{EXAMPLE}\n\napp.conf.update({conf!r})\n")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")

    with project.worker("--max-tasks-per-child", "1", module="traced_shop", concurrency=1) as worker:
        project.app.send_task("traced_shop.charge", (1,))
        eventually(lambda: len(project.dead()) == 1, within=60)
        spans = eventually(lambda: len(it := [*objects(worker.log)]) >= 6 and it, within=60)
        assert "celery.dlx" in worker.log
    printed = [json.loads(line) for line in worker.log.splitlines() if line.startswith('{"resource_metrics"')]

    names = sorted(it["name"].partition(" ")[0] for it in spans)
    assert names == ["dead-letter", "process", "process", "process", "retry", "retry"]
    assert [it["status"]["status_code"] for it in spans].count("ERROR") == 1
    known = {it["context"]["span_id"] for it in spans}
    assert {link["context"]["span_id"] for it in spans for link in it["links"]} <= known
    metrics = [
        metric
        for it in (printed or objects(worker.log))
        for resource in it.get("resource_metrics", ())
        for scope in resource["scope_metrics"]
        for metric in scope["metrics"]
        if metric["name"] == "celery.dlx.retries"
    ]
    assert [sum(point["value"] for point in it["data"]["data_points"]) for it in metrics] == [2]
