"""A real worker for a test: a separate process, which writes records for the test."""

from __future__ import annotations

import json
import os
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from celery_dlx_retry.errors import ConfigurationError, DLXError
from celery_dlx_retry.testing.sandbox import Sandbox, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping


#: Where a worker that loads ``celery_dlx_retry.testing.worker_plugin`` records.
RECORDS = "DLX_TEST_RECORDS"
START_SECONDS = 30.0
FIRST_LINES, LAST_LINES = 4, 6
STOP_SECONDS = 10.0

#: The test's databases, as JSON, for its worker.
DATABASES = "DLX_TEST_DATABASES"
_KEYS = ("ENGINE", "NAME", "USER", "PASSWORD", "HOST", "PORT")


class NoWorker(DLXError):
    """``app``, ``said``."""

    sentence = "No worker could be started with -A {app}. It said:\n{said}"


def worker_command(app: str, *flags: str, broker: str | None = None) -> list[str]:
    """Return the command of a worker that does not talk to other workers."""
    options = ("-A", app, *(("-b", broker) if broker else ()))
    quiet = ("--loglevel=INFO", "--without-gossip", "--without-mingle")
    return [sys.executable, "-m", "celery", *options, "worker", *quiet, *flags]


def worker_environment(more: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a worker that imports modules from the same places as this process."""
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),  # noqa: PTH109 - as Python reads it
        "C_FORCE_ROOT": "1",  # containers run as root, and Celery refuses that
        **more,
    }


@contextmanager
def running_worker(app: str, *flags: str, records: Path, broker: str | None) -> Iterator[None]:
    """Run ``celery -A app worker`` until the block ends. The block begins when the worker is ready."""
    plugin = "--include=celery_dlx_retry.testing.worker_plugin"
    command = worker_command(app, plugin, "--concurrency=2", *flags, broker=broker)
    environment = worker_environment({RECORDS: str(records), **of_this_test()})
    sandbox = Sandbox("worker")
    try:
        sandbox.spawn("worker", command, environment)
        output = sandbox.path / "worker.out"
        wait_until(lambda: is_ready(output) or not sandbox.pid("worker"), within=START_SECONDS)
        if not is_ready(output):
            raise NoWorker(app=app, said=telling(output.read_text(errors="replace")))
        yield
        sandbox.terminate("worker", within=STOP_SECONDS)
    finally:
        sandbox.close()


def is_ready(log: Path) -> bool:
    """Return whether the log of a worker, of level INFO, says that the worker is ready."""
    return log.exists() and " ready." in log.read_text(errors="replace")


def telling(output: str) -> str:
    """Return the lines that say why: those from the first error on; of a long traceback its beginning and end."""
    lines = [f"  {line}" for line in output.splitlines() if line.strip()]
    first = next((number for number, line in enumerate(lines) if "error" in line.lower()), -LAST_LINES)
    lines = lines[first:]
    if len(lines) > FIRST_LINES + LAST_LINES:
        lines[FIRST_LINES:-LAST_LINES] = ["  …"]
    return "\n".join(lines) or "  nothing"


# A worker reads the settings again, and they name the databases of development.


class InMemory(ConfigurationError):
    """``alias``."""

    sentence = (
        "A task in dlx.worker() was about to open the database {alias!r}, which this test has in memory, where no "
        "other process can see it. Give it a file: DATABASES[{alias!r}]['TEST'] = {{'NAME': 'test.sqlite3'}}."
    )


class NoTestDatabase(ConfigurationError):
    """``alias``, ``name``."""

    sentence = (
        "A task in dlx.worker() was about to open {name!r}, the database {alias!r} of the settings, for this test has "
        "no test database. Make it a TransactionTestCase, or mark it django_db(transaction=True); if {name!r} is there "
        "for tests, say so: DATABASES[{alias!r}]['TEST'] = {{'NAME': {name!r}}}."
    )


def of_this_test() -> dict[str, str]:
    """Return what to add to a worker's environment; nothing if this process does not use Django."""
    registry = sys.modules.get("django.apps")
    if registry is None or not registry.apps.ready:
        return {}
    from django.db import connections  # noqa: PLC0415 - only where it is in use

    return {DATABASES: json.dumps({alias: _facts(connections[alias]) for alias in connections}, default=str)}


def _facts(connection: Any) -> dict[str, Any]:
    settings = connection.settings_dict
    is_sqlite = connection.vendor == "sqlite"
    return {
        "settings": _named(settings),
        "is_in_memory": is_sqlite and connection.is_in_memory_db(),
        # A worker has another working directory.
        "name": Path(settings["NAME"]).absolute() if is_sqlite else settings["NAME"],
    }


def _named(settings: dict[str, Any]) -> dict[str, str | None]:
    """Return which database it is, as texts: a name may be a Path."""
    return {key: None if settings[key] is None else str(settings[key]) for key in _KEYS}


def use_those_of_the_test(refuse: Callable[[str], None]) -> None:
    """In the worker, use the databases of the test. ``refuse`` gets the problem if a task opens a wrong one."""
    if DATABASES not in os.environ:
        return
    from django.conf import settings  # noqa: PLC0415

    if settings.configured or "DJANGO_SETTINGS_MODULE" in os.environ:
        from django.db import connections  # noqa: PLC0415

        databases = json.loads(os.environ[DATABASES])
        known = [alias for alias in databases if alias in connections.settings]
        _keep_shut({alias: no for alias in known if (no := _use(connections, alias, databases[alias]))}, refuse)


def _use(connections: Any, alias: str, of_test: dict[str, Any]) -> ConfigurationError | None:
    """Let the alias mean the test's database; return the problem if that is not possible."""
    if of_test["is_in_memory"]:
        return InMemory(alias=alias)
    own = connections.settings[alias]
    name = str(own["NAME"])
    if of_test["settings"] == _named(own) and name != str(own["TEST"]["NAME"]):
        return NoTestDatabase(alias=alias, name=name)  # the test has no test database
    connections[alias].close()
    del connections[alias]  # the next connection, also of another thread, reads the settings
    own.update({**of_test["settings"], "NAME": of_test["name"]})
    return None


def _keep_shut(problems: dict[str, ConfigurationError], refuse: Callable[[str], None]) -> None:
    from django.db.backends.base.base import BaseDatabaseWrapper  # noqa: PLC0415

    original = BaseDatabaseWrapper.ensure_connection

    def ensure_connection(connection: Any) -> Any:
        problem = problems.get(connection.alias)
        if problem is not None:
            refuse(str(problem))
            raise problem
        return original(connection)

    BaseDatabaseWrapper.ensure_connection = ensure_connection
