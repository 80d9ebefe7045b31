"""A real Prometheus that scrapes what a test names, and answers queries."""

from __future__ import annotations

import json
import os
import shutil
from contextlib import contextmanager
from pathlib import Path
from tempfile import gettempdir
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest

from celery_dlx_retry.testing.sandbox import (
    LOOPBACK,
    Sandbox,
    WayFailed,
    free_ports,
    unprivileged,
    wait_until,
)
from tests.provision.apt import apt_install, one_at_a_time

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

START_SECONDS = 30.0


class Prometheus:
    """The HTTP API of a Prometheus that runs."""

    def __init__(self, url: str) -> None:
        self.url = url

    @property
    def is_ready(self) -> bool:
        """Whether it answers queries."""
        try:
            with urlopen(f"{self.url}/-/ready", timeout=2) as answer:  # noqa: S310 - our own server
                return bool(answer.status == 200)
        except OSError:
            return False

    def query(self, promql: str) -> list[tuple[dict[str, str], float]]:
        """Return the labels and the value of each series that an instant query finds."""
        found = self.api("query", query=promql)["result"]
        return [(it["metric"], float(it["value"][1])) for it in found]

    def value(self, promql: str) -> float | None:
        """Return the value of the only series, or None if the query finds nothing."""
        found = self.query(promql)
        if len(found) > 1:
            raise AssertionError(f"{promql} finds {len(found)} series: {found}")
        return found[0][1] if found else None

    def api(self, path: str, **parameters: str) -> Any:
        """Return the data of ``/api/v1/<path>``."""
        with urlopen(f"{self.url}/api/v1/{path}?{urlencode(parameters)}", timeout=10) as answer:  # noqa: S310
            return json.load(answer)["data"]


def find_prometheus(say: Callable[[str], None], *, program: str = "prometheus") -> str:
    """Return the path of ``prometheus`` or ``promtool``. Debian's package ``prometheus`` is installed if root may."""
    with one_at_a_time():
        if shutil.which(program) is None:
            apt_install("prometheus", say=say)
    found = shutil.which(program)
    if found is None:
        raise WayFailed(way=program, problem="not on PATH")
    return found


@contextmanager
def run_prometheus(
    server: str, targets: Mapping[str, Sequence[str]], *, rules: Sequence[Path] = (), interval: str = "1s"
) -> Iterator[Prometheus]:
    """Start a Prometheus that scrapes these targets of each job: ``{"worker": ["127.0.0.1:9101"]}``."""
    (port,) = free_ports(1)
    sandbox = Sandbox("prometheus")
    try:
        copies = [shutil.copy(rule, sandbox.path / rule.name) for rule in rules]
        config = {
            "global": {"scrape_interval": interval, "evaluation_interval": interval},
            "rule_files": [str(it) for it in copies],
            "scrape_configs": [
                {"job_name": job, "static_configs": [{"targets": list(found)}]} for job, found in targets.items()
            ],
        }
        path = sandbox.path / "prometheus.yml"
        path.write_text(json.dumps(config))  # JSON is YAML
        account = unprivileged("prometheus", reaching=[Path(gettempdir()), Path(server).parent])
        if account:
            account.own(sandbox.path)
        command = [
            server,
            f"--config.file={path}",
            f"--storage.tsdb.path={sandbox.path / 'data'}",
            f"--web.listen-address={LOOPBACK}:{port}",
        ]
        sandbox.spawn("prometheus", command, dict(os.environ), account=account)
        found = Prometheus(f"http://{LOOPBACK}:{port}")
        came = wait_until(lambda: not sandbox.pid("prometheus") or found.is_ready, within=START_SECONDS)
        if not came or not sandbox.pid("prometheus"):
            raise WayFailed(way="prometheus", problem=f"did not start: {sandbox.said('prometheus.out')}")
        yield found
    finally:
        sandbox.close()


@pytest.fixture(scope="session")
def prometheus_program(say) -> str:
    """The path of the server."""
    try:
        return find_prometheus(say)
    except WayFailed as failure:
        pytest.fail(f"No Prometheus is available ({failure}). Install Debian's package prometheus.", pytrace=False)


@pytest.fixture
def prometheus(prometheus_program) -> Callable[..., Any]:
    """Start a Prometheus: ``with prometheus({"worker": ["127.0.0.1:9101"]}) as it: it.query("up")``."""

    def start(targets: Mapping[str, Sequence[str]], **options: Any) -> Any:
        return run_prometheus(prometheus_program, targets, **options)

    return start
