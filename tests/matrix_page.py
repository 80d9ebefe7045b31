"""docs/compatibility.md, from what the sessions of the matrix recorded."""

from __future__ import annotations

import inspect
import json
import re
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

import rabbits
from celery_suite import page as celery_suite

from celery_dlx_retry import celery_compat as versions

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

POOLS = ("prefork", "solo", "threads", "gevent")
SMOKE = "smoke-"
CLAIM = re.compile(r"::test_(\w+)\[([\d.]+)-(\w+)\]$")

HEAD = """\
# Compatibility

The package supports Python 3.10 to 3.13, Celery 5.5 to 5.7, RabbitMQ 3.10 to 4.3, in every combination.
It supports the pools prefork, solo, threads and gevent on all of them.
`make matrix` tests this and writes this page; [tox.ini](../tox.ini) has the environments.
The Pythons and RabbitMQs must be on the machine: `make matrix` says what is missing.

## Every combination

A session runs a real worker of each pool on a private RabbitMQ: {sessions} sessions, {checks} checks, {failed} failed.
A cell is the number of claims that passed; `7 of 8` is a failure.

"""
CLAIMS = """
The claims, and the pools that they are tested with:

{claims}

Celery has no hard time limits with solo and threads, and only prefork has processes that can be lost.
The commands are the same with every pool, so they run once.
{failures}
The exact versions:

| Python | Celery | kombu | py-amqp | billiard | gevent | from | commit | seconds |
|---|---|---|---|---|---|---|---|---|
"""
DIAGONAL = """
## The diagonal

All tests of `tests/unit tests/broker tests/worker`, with every version at least once.
`make test` runs all tests on the newest Celery and the installed RabbitMQ.
`make ends` runs the claims above on the oldest and the newest version of everything.

| environment | Python | Celery | RabbitMQ | tests | failed | skipped | from | commit | minutes |
|---|---|---|---|---|---|---|---|---|---|
"""
DIFFERENCES = """
## What differs

- RabbitMQ 4.0 counts each look at a quorum queue as a failed delivery, and drops a message at the 21st.
  Our dead-letter queues have no such limit.
  Do not look more than twenty times into a quorum queue that you declared yourself with the broker's default limit.
- RabbitMQ 4.0 also counts each time that a task goes back to its quorum queue because its publish failed.
  At the 21st time the task is a dead letter if the queue has a dead-letter exchange; otherwise the broker drops it.
  So give the queue one, with `dlx_queue()` or `celery dlx policy`.
- When a pool process is killed, Celery 5.7 looks into the result backend.
  It acknowledges the task if its id has a SUCCESS, even if that SUCCESS belongs to an earlier task with the same id.
  A `DLXRetryTask` runs again.
- `Reject(requeue=True)` in a task is Celery's own `basic.reject`, which every RabbitMQ 4 counts.
- RabbitMQ after 4.0 shows queues and exchanges only to users who have a permission on them.

[One module](../celery_dlx_retry/celery_compat.py) has every private name of Celery and Kombu that the package uses.
A worker that starts with a Celery without one of them logs one sentence with the consequence.
`make compat-next` checks the newest pre-releases for these names.

The same module has the code that a single Celery version needs.
We remove an entry when the oldest supported Celery no longer needs it.

| what Celery does | fixed in |
|---|---|
"""


def environments(tox_ini: Path) -> list[str]:
    """The names of the matrix in tox.ini, the quick ones first."""
    listed = tox_ini.read_text().partition("env_list =")[2].partition("\nskip_")[0].split()
    names = [name for pattern in listed for name in _expanded(pattern) if "celery" in name]
    return sorted(names, key=lambda name: not name.startswith(SMOKE))


def write(page: Path, folder: Path) -> None:
    """Of every record in a folder. The section of ``make celery-suite`` stays as it is."""
    suites = celery_suite.section_of(page.read_text())
    records = [json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))]
    smoke = [record for record in records if record["session"].startswith(SMOKE)]
    diagonal = [record for record in records if not record["session"].startswith(SMOKE)]
    page.write_text("".join([*_product(smoke), *_diagonal(diagonal), "\n", suites, *_differences()]))


def _product(records: list[dict[str, Any]]) -> Iterator[str]:
    results = Counter(outcome for record in records for outcome in record["tests"].values())
    checks = sum(results.values())
    sessions = sum(len(record["rabbitmq"]) for record in records)
    yield HEAD.format(sessions=sessions, checks=checks, failed=checks - results["passed"])
    exact = {wanted: version for record in records for version in record["rabbitmq"]
             for wanted in rabbits.VERSIONS if rabbits.is_of(wanted, version)}  # fmt: skip
    columns = [(wanted, pool) for wanted in rabbits.VERSIONS for pool in POOLS]
    yield f"| Python | Celery | {' | '.join(f'{exact.get(wanted, wanted)} {pool}' for wanted, pool in columns)} |\n"
    yield f"|---|---|{'---|' * len(columns)}\n"
    pools_of: dict[str, set[str]] = defaultdict(set)
    failures = []
    for record in records:
        cells: dict[tuple[str, str], list[bool]] = defaultdict(list)
        for node, outcome in record["tests"].items():
            claim, wanted, pool = CLAIM.findall(node)[0]
            pools_of[claim].add(pool)
            cells[wanted, pool].append(outcome == "passed")
            if outcome != "passed":
                failures.append(f"- {outcome}: {record['session']}, RabbitMQ {wanted}, {pool}: {_sentence(claim)}\n")
        row = " | ".join(_cell(cells[column]) for column in columns)
        yield f"| {record['python']} | {record['celery']} | {row} |\n"
    claims = (f"- {_sentence(it)} ({', '.join(sorted(pools, key=POOLS.index))})" for it, pools in pools_of.items())
    failures = ["\nWhat failed:\n\n", *failures] if failures else []
    yield CLAIMS.format(claims="\n".join(claims), failures="".join(failures))
    for it in records:
        yield (
            f"| {it['python']} | {it['celery']} | {it['kombu']} | {it['amqp']} | {it['billiard']} | {it['gevent']} "
            f"| {it['began'][:10]} | {it['commit']} | {it['seconds']} |\n"
        )


def _diagonal(records: list[dict[str, Any]]) -> Iterator[str]:
    yield DIAGONAL
    for it in records:
        results = Counter(it["tests"].values())
        yield (
            f"| `{it['session']}` | {it['python']} | {it['celery']} | {', '.join(it['rabbitmq'])} "
            f"| {sum(results.values()):,} | {results['failed']} | {results['skipped']} "
            f"| {it['began'][:10]} | {it['commit']} | {it['seconds'] / 60:.0f} |\n"
        )
    failed = [(it["session"], node) for it in records for node, outcome in it["tests"].items() if outcome == "failed"]
    if failed:
        yield "\nWhat failed:\n\n"
        yield from (f"- `{session}`: `{node.partition('::')[2]}`\n" for session, node in failed)


def _differences() -> Iterator[str]:
    yield DIFFERENCES
    for name, version in versions.ENDS.items():
        yield f"| {_what(name)} | Celery {version} |\n"
    for name, version in versions.STILL_IN.items():
        yield f"| {_what(name)} | not fixed up to {version} |\n"


def _what(name: str) -> str:
    return (inspect.getdoc(getattr(versions, name)) or "").partition("\n")[0].replace("``", "`")


def _sentence(claim: str) -> str:
    return claim.replace("_", " ")


def _cell(held: list[bool]) -> str:
    if not held:
        return "not run"
    return str(len(held)) if all(held) else f"**{sum(held)} of {len(held)}**"


def _expanded(pattern: str) -> list[str]:
    """``py3{10,11}-x`` as tox reads it."""
    head, brace, rest = pattern.partition("{")
    if not brace:
        return [pattern]
    values, _, tail = rest.partition("}")
    return [f"{head}{value}{end}" for value in values.split(",") for end in _expanded(tail)]
