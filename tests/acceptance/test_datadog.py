"""What Datadog's own libraries make of our worker: ddtrace's spans, and the OpenMetrics check on our endpoint."""

from __future__ import annotations

import json
import re
import subprocess
import threading
from contextlib import ExitStack, closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version
from pathlib import Path

import msgpack
import pytest
import yaml
from support import eventually

from celery_dlx_retry.testing.sandbox import LOOPBACK
from tests.acceptance.tenancy import Tenancy
from tests.side_by_side.environments import python_with
from tests.side_by_side.world import World
from tests.workers import start_worker

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "monitoring.md").read_text()
CHECK = """
import json, sys
from datadog_checks.base import OpenMetricsBaseCheckV2
from datadog_checks.base.stubs import aggregator
said = OpenMetricsBaseCheckV2("openmetrics", {}, [json.loads(sys.argv[1])]).run()
print(json.dumps({"said": said, "names": aggregator.metric_names}))
"""


class Agent(ThreadingHTTPServer):
    """Takes traces as Datadog's Agent does, and keeps them."""

    def __init__(self):
        super().__init__((LOOPBACK, 0), Intake)
        self.spans = []


class Intake(BaseHTTPRequestHandler):
    def do_PUT(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if "traces" in self.path:
            self.server.spans += [span for trace in msgpack.unpackb(body) for span in trace]
        self.do_GET()

    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"{}")

    do_POST = do_PUT  # noqa: N815 - http.server's name

    def log_message(self, *_):
        """Say nothing."""


@pytest.fixture(scope="module")
def agent():
    with Agent() as it:
        thread = threading.Thread(target=it.serve_forever)
        thread.start()
        yield it
        it.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def python():
    celery = f"celery[redis]=={version('celery')}"
    return python_with(
        "datadog", "ddtrace>=4,<5", "datadog-checks-base[deps]", celery, f"--editable={ROOT}[prometheus]"
    )


@pytest.fixture(scope="module")
def world(agent, python, broker, management, redis_url, tmp_path_factory):  # noqa: PLR0913, PLR0917 - fixtures
    """A worker of ours, started by ddtrace-run."""
    with ExitStack() as stack:
        tenancy = stack.enter_context(closing(Tenancy(broker, management, "datadog")))
        folder = tmp_path_factory.mktemp("datadog")
        it = World(url=tenancy.url, backend=redis_url, folder=folder, stack=stack, management_url=broker.management_url)
        stack.enter_context(closing(it))
        environment = {
            **it.environment,
            "DD_TRACE_AGENT_URL": f"http://{LOOPBACK}:{agent.server_port}",
            "DD_TRACE_API_VERSION": "v0.4",
            "DD_INSTRUMENTATION_TELEMETRY_ENABLED": "false",
            "DD_REMOTE_CONFIGURATION_ENABLED": "false",
        }
        command = [python.with_name("ddtrace-run"), python, "-m", "celery", "-A", "ours", "worker", "-c", "2"]
        command += ["--dlx-metrics-port", it.worker_port, "-n", "worker@ours", "-l", "INFO"]
        worker = start_worker(list(map(str, command)), log=folder / "log", environment=environment, cwd=folder)
        stack.callback(worker.stop)
        worker.wait_until_ready(within=90)
        for name in ("heals", "exhausted"):
            it.send("ours", name)
        yield it


def runs(agent, name):
    return [span for span in list(agent.spans) if (span["name"], span["resource"]) == ("celery.run", f"ours.{name}")]


@pytest.mark.parametrize(("name", "states"), [("heals", "RETRY RETRY SUCCESS"), ("exhausted", "RETRY RETRY FAILURE")])
def test_each_attempt_is_a_span_and_only_the_last_one_of_a_dead_letter_is_an_error(world, agent, name, states):
    assert world
    spans = sorted(eventually(lambda: len(it := runs(agent, name)) == 3 and it, within=60), key=lambda it: it["start"])

    assert [span["meta"]["celery.state"] for span in spans] == states.split()
    assert [span.get("error", 0) for span in spans] == [0, 0, int(name == "exhausted")]
    assert {span["meta"]["celery.delivery_info.routing_key"] for span in spans} == {"ours"}
    assert ["celery.eta" in span["meta"] for span in spans] == [False, True, True]


def test_the_span_of_a_retrys_publish_names_the_lane(world, agent):
    assert world

    def published():
        return {
            span["meta"]["celery.routing_key"]
            for span in list(agent.spans)
            if (span["name"], span["resource"]) == ("celery.apply", "ours.heals")
        }

    assert eventually(published, within=60) == {"dlx.v2.wait.quorum.000000001000.ours"}


def test_the_openmetrics_check_of_the_page_reads_the_worker(world, python):
    (text,) = re.findall(r"```yaml\n(instances:.*?)```", PAGE, re.DOTALL)
    instance, _ = yaml.safe_load(text)["instances"]
    instance["openmetrics_endpoint"] = f"http://{LOOPBACK}:{world.worker_port}/metrics"
    eventually(lambda: "celery_dlx_dead_letters_total{" in world.get(world.worker_port, "metrics"), within=60)

    def found():
        done = subprocess.run([python, "-c", CHECK, json.dumps(instance)], capture_output=True, text=True, check=True)
        return json.loads(done.stdout)

    seen = found()
    assert seen["said"] == ""
    assert {"shop.celery_dlx_retries.count", "shop.celery_dlx_dead_letters.count"} <= set(seen["names"])
