"""Run other projects' test suites twice, with plain Celery and with ``task_cls`` set to ours, and compare by test id.

``python -m celery_suite.run`` runs all of them, ``python -m celery_suite.run unit integration`` these.
Each writes its row in docs/compatibility.md.
Records and logs are in build/celery-suite/runs.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from contextlib import ExitStack, suppress
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from urllib.parse import urlsplit

from celery_suite import page, suite_plugin
from celery_suite.compare import Comparison, compare, read
from celery_suite.differences import DIFFERENCES
from celery_suite.suites import SUITES, Suite
from record import commit

from tests.provision import provide, provide_redis

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build" / "celery-suite"
RUNS = BUILD / "runs"
SIDES = {"baseline": "", "ours": "celery_dlx_retry:DLXRetryTask"}
SIDE_SECONDS = 3_600.0
PLUGINS = ("-p", "celery.contrib.pytest", "-p", "suite_plugin", "-p", "no:celery_dlx_retry", "-p", "no:cacheprovider")


class NoSource(Exception):
    """Says which distribution, and why."""


def main(*names: str) -> int:
    unknown = set(names) - {suite.name for suite in SUITES}
    if unknown:
        say(f"There is no suite {', '.join(sorted(unknown))}; there are {', '.join(suite.name for suite in SUITES)}.")
        return 2
    problems: list[str] = []
    for suite in (suite for suite in SUITES if not names or suite.name in names):
        began, tested = datetime.now(timezone.utc), commit()
        result = run(suite)
        problems += result.problems()
        row = page.row(result, version=version(suite.package), began=began, commit=tested)
        page.write(ROOT / "docs" / "compatibility.md", {suite.name: row})
    for problem in problems:
        say(problem)
    say(f"{len(problems)} problems" if problems else "Only documented differences.")
    return 1 if problems else 0


def run(suite: Suite) -> Comparison:
    """Run both sides at the same time, each with its own RabbitMQ and Redis."""
    source = fetch(suite)
    say(f"{suite.name}: {suite.package} {version(suite.package)}, {' '.join(suite.paths)}")
    began = time.monotonic()
    with ExitStack() as stack:
        sides = {side: start(side, suite, source, stack) for side in SIDES}
        for process in sides.values():
            wait(process, seconds=SIDE_SECONDS - (time.monotonic() - began))
    runs = {side: read(record(suite, side)) for side in SIDES}
    result = compare(suite.name, **runs, documented=DIFFERENCES)
    say(
        f"  {len(result.baseline.outcomes)} tests in {time.monotonic() - began:.0f} s: "
        f"{len(result.baseline.passed)} pass with plain Celery, {len(result.ours.passed)} with ours; "
        f"{len(result.differing)} differ, {len(result.undocumented)} of them undocumented"
    )
    return result


def fetch(suite: Suite) -> Path:
    """Return the folder of the source distribution of the installed version, without the package itself."""
    wanted = f"{suite.package}-{version(suite.package)}"
    source = BUILD / "src" / wanted
    if source.exists():
        return source
    download = BUILD / "sdists" / wanted
    shutil.rmtree(download, ignore_errors=True)
    pin = wanted.replace(f"{suite.package}-", f"{suite.package}==", 1)
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    said = subprocess.run(
        [*pip, "--no-binary", suite.package, "--dest", str(download), pin], capture_output=True, text=True, check=False
    )
    archives = sorted(download.glob("*.tar.gz"))
    if said.returncode or not archives:
        raise NoSource(f"pip could not download the source distribution {pin}: {said.stderr.strip()[-500:]}")
    unpacked = BUILD / "sdists" / f"{wanted}-unpacked"
    shutil.rmtree(unpacked, ignore_errors=True)
    with tarfile.open(archives[0]) as archive:
        archive.extractall(unpacked, filter="data")
    (folder,) = unpacked.iterdir()
    missing = [path for path in suite.paths if not (folder / path).exists()]
    if missing:
        raise NoSource(f"the source distribution {pin} does not have {', '.join(missing)}")
    shutil.rmtree(folder / suite.shadow)
    source.parent.mkdir(parents=True, exist_ok=True)
    folder.rename(source)
    return source


def start(side: str, suite: Suite, source: Path, stack: ExitStack) -> subprocess.Popen[bytes]:
    env = {
        **os.environ,
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),  # tests start ``celery``
        "PYTHONPATH": os.pathsep.join(map(str, [Path(__file__).parent, source, ROOT])),
        suite_plugin.RECORD: str(record(suite, side)),
        suite_plugin.TASK_CLS: SIDES[side],
    }
    if suite.needs_broker:
        broker = stack.enter_context(provide(say=say))
        redis = stack.enter_context(provide_redis(say=say))
        where = urlsplit(redis)
        env |= {"TEST_BROKER": broker.url, "TEST_BACKEND": redis}
        env |= {"REDIS_HOST": where.hostname or "", "REDIS_PORT": str(where.port or 6379)}
        env |= {suite_plugin.BROKER: broker.url} if suite.replaces_broker else {}
    RUNS.mkdir(parents=True, exist_ok=True)
    record(suite, side).unlink(missing_ok=True)
    log = stack.enter_context(record(suite, side).with_suffix(".log").open("wb"))
    unload = [word for name in suite.unloads for word in ("-p", f"no:{name}")]
    command = [sys.executable, "-m", "pytest", "-q", "--tb=short", *PLUGINS, *unload, *suite.paths]
    process = subprocess.Popen(
        command, cwd=source, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
    )
    stack.callback(end, process)
    return process


def wait(process: subprocess.Popen[bytes], *, seconds: float) -> None:
    try:
        process.wait(timeout=max(seconds, 0))
    except subprocess.TimeoutExpired:
        end(process)


def end(process: subprocess.Popen[bytes]) -> None:
    """End the side with everything that it started; a suite may leave workers behind."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def record(suite: Suite, side: str) -> Path:
    return RUNS / f"{suite.name}-{side}.jsonl"


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    try:
        sys.exit(main(*sys.argv[1:]))
    except NoSource as problem:
        sys.exit(f"The suites cannot be run: {problem}.")
