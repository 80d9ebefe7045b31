"""The tables of the reference pages say what the code says: arguments on the broker, policies, and what is API."""

from __future__ import annotations

import ast
import inspect
import re
from importlib import import_module
from pathlib import Path

import pytest

import celery_dlx_retry
from celery_dlx_retry import Delays, Policy
from celery_dlx_retry.broker.crash_marks import marks_of
from celery_dlx_retry.settings import Settings
from celery_dlx_retry.topology.ladder import Ladder, rungs
from celery_dlx_retry.topology.names import Names, WorkQueue
from celery_dlx_retry.topology.objects import landing, lane, shared_objects, work_queue_objects

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
API = (DOCS / "api.md").read_text()
NAMES = (DOCS / "headers-and-names.md").read_text()
PUBLIC = {name: getattr(celery_dlx_retry, name) for name in celery_dlx_retry.__all__}
POLICIES = (DOCS / "policies.md").read_text()
ARGUMENT = re.compile(r"`((?:x-|alternate)[a-z-]+)(?:=([\w-]+))?`")


def on_the_page():
    """Name -> (words of the arguments' column, its arguments with the values that are given)."""
    table = NAMES.partition("## Names on the broker")[2].partition("```")[0]
    rows = re.findall(r"^\| `([^`]+)` \| .* \|(.*)\|$", table, re.MULTILINE)
    return {name: (words, dict(ARGUMENT.findall(words))) for name, words in rows}


def in_the_code():
    """Name -> its arguments, exchange and queue together."""
    quorum, classic, orders = Names(), Names(kind="classic"), WorkQueue(name="orders")
    shared = Names(bulkheads=8)
    limited = [Names(kind=kind, max_waiting=1000) for kind in ("quorum", "classic")]
    parts = [
        shared_objects(quorum),
        work_queue_objects(quorum, orders),
        rungs(quorum, Ladder.of(Settings())),
        *(landing(names, orders) for names in (quorum, shared)),
        lane(classic, orders, 40_461, expires_ms=600_000),
        *(lane(names, orders, 5000) for names in (quorum, classic, shared, *limited)),
    ]
    specs = [spec for part in parts for spec in (*part.exchanges, *part.queues)]
    found = {quorum.lock(): {}}
    for spec in [*specs, marks_of(quorum, "id", queue="orders")]:
        name = re.sub(r"(?<=\.starts\.)[0-9a-f]{32}$", "<32 hex digits>", spec.name)
        found.setdefault(name, {}).update(spec.arguments)
    return found


def test_every_name_on_the_broker_has_the_arguments_on_the_page():
    page, code = on_the_page(), in_the_code()
    lanes = {kind: page[f"dlx.v2.wait.{kind}.000000005000.orders"][1] for kind in ("quorum", "classic")}
    shared = page["dlx.v2.shared.quorum.000000005000.001"][1]

    assert len(page) >= 17
    for name, (words, written) in page.items():
        promised = dict(written)
        if "as a shared lane's" in words:
            promised = {**shared, **written}
        elif re.search(r"\balso\b", words):
            promised = {**lanes["classic" if ".classic." in name else "quorum"], **written}
        assert set(promised) == set(code[name]), name
        given = {key: value for key, value in promised.items() if value}
        assert given == {key: str(code[name][key]) for key in given}, name


def test_no_kind_of_name_is_left_out():
    def kind(name):
        return re.sub(r"\d+", "0", name)

    assert {kind(name) for name in in_the_code()} == {kind(name) for name in on_the_page()}


def test_classic_orphans_and_dead_letter_queues_have_a_type_and_nothing_else():
    names = Names(kind="classic")
    queues = (shared_objects(names) | work_queue_objects(names, WorkQueue(name="orders"))).queues

    assert {queue.arguments for queue in queues} == {(("x-queue-type", "classic"),)}


def test_every_option_of_every_policy_is_there_with_its_default():
    written = dict(re.findall(r"^### (\w+)\n.*?^Default: ([^\n]+)$", POLICIES, re.MULTILINE | re.DOTALL))
    options = inspect.signature(Policy).parameters

    assert set(written) == set(options)
    for name, option in options.items():
        default = getattr(option.default, "__name__", repr(option.default))
        assert written[name].startswith("none." if name == "rules" else f"`{default}`"), name
    assert Delays([1, 2]).retries == 2


@pytest.mark.parametrize("row", re.findall(r"^\| `(\w+\(.*?\))` \|", POLICIES, re.MULTILINE))
def test_every_policy_of_the_table_can_be_made_as_it_stands_there(row):
    filled_in = {"step=…": "step=5", "limit=…": "limit=60", "[…]": "[1, 10]"}
    for dots, value in filled_in.items():
        row = row.replace(dots, value)

    made = eval(row, PUBLIC, {"delay": 30, "start": 10, "function": lambda *_: 7})  # noqa: S307 - our page

    assert made.delay_ms(1, OSError()) in {30_000, 10_000, 1000, 7000}


def blocks(page):
    return re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)


@pytest.mark.parametrize(
    "name", re.findall(r"^\| `(celery_dlx_retry\.\S+)` \|", API.partition("## Beneath the package")[2], re.MULTILINE)
)
def test_what_is_public_beneath_the_package_has_the_signature_on_the_page(name):
    module, _, attribute = name.rpartition(".")
    found = getattr(import_module(module), attribute)
    signature = inspect.signature(found)
    bare = [parameter.replace(annotation=parameter.empty) for parameter in signature.parameters.values()]
    (row,) = [line for line in API.splitlines() if line.startswith(f"| `{name}` |")]

    assert f"`{attribute}{signature.replace(parameters=bare, return_annotation=signature.empty)}`" in row
    for method, parameters in re.findall(r"`([a-z_]+)\(([^)=]*)\)`", row):
        if hasattr(found, method):
            taken = [one for one in inspect.signature(getattr(found, method)).parameters.values() if one.name != "self"]
            assert ", ".join(one.name for one in taken if one.default is one.empty) == parameters, method


@pytest.mark.parametrize("page", [ROOT / "README.md", *sorted(DOCS.glob("*.md"))], ids=lambda page: page.name)
def test_no_example_imports_an_internal_name(page):
    public = {
        *("celery_dlx_retry", "celery_dlx_retry.testing", "celery_dlx_retry.errors"),
        *("celery_dlx_retry.events", "celery_dlx_retry.signals", "celery_dlx_retry.contrib.prometheus"),
        *("celery_dlx_retry.contrib.prometheus_collector", "celery_dlx_retry.contrib.opentelemetry"),
        "celery_dlx_retry.contrib.sentry",
    }
    imported = [
        (node.module, alias.name)
        for code in blocks(page)
        for node in ast.walk(ast.parse(code))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if str(node.module).startswith("celery_dlx_retry")
    ]
    internal = [name for module, name in imported if module not in public and not is_documented(module, name)]

    assert internal == []


def is_documented(module, name):
    """Return True if api.md has its full name, or its name in the tables of operations."""
    operations = API.partition("## Operations")[2].partition("\n## ")[0]
    tables = "\n".join(line for line in operations.splitlines() if line.startswith("|"))
    is_operation = module.startswith("celery_dlx_retry.operations.")
    return f"`{module}.{name}`" in API or (is_operation and bool(re.search(rf"`(\w+\.)?{name}\b", tables)))
