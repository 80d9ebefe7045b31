"""Layers are folders, and imports point one way: from the pure layers to broker, worker and the edges."""

import ast
import functools
import sys
from pathlib import Path

import pytest

import celery_dlx_retry

PACKAGE = "celery_dlx_retry"
ROOT = Path(celery_dlx_retry.__file__).parent
LINES = 400
PUBLIC_NAMES = 20

#: Each may import itself, what stands before it, and these besides the standard library.
LAYERS = {
    "version": set(),
    "lazy_names": set(),
    "sentences": set(),
    "errors": set(),
    "events": set(),
    "values": set(),
    "policy": set(),
    "settings": set(),
    "settings_lookup": set(),
    "wire": set(),
    "topology": set(),
    "deadletters": set(),
    "doctor": set(),
    "celery_compat": {"amqp", "billiard", "celery", "kombu"},
    "broker": {"amqp", "kombu"},
    "app": {"celery", "kombu"},
    "worker": {"amqp", "billiard", "celery", "click", "kombu"},  # Celery and what it stands on
    "operations": {"amqp", "celery", "kombu"},
}
#: An edge may use these edges: a command serves what an adapter collects.
EDGES_USED = {"cli": {"contrib.prometheus_collector"}}
#: Neither of these imports the other.
BESIDE = {"worker", "operations"}
PURE = list(LAYERS)[: list(LAYERS).index("celery_compat")]
CLOCKS_AND_CHANCE = {"random", "secrets", "time", "uuid"}


parsed = functools.cache(ast.parse)


def name_of(path):
    parts = (PACKAGE, *path.relative_to(ROOT).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(path): path.read_text(encoding="utf-8") for path in sorted(ROOT.rglob("*.py"))}


def is_init(module):
    return (ROOT.parent / module.replace(".", "/")).is_dir()


def layer_of(module):
    """``policy``; an edge is a layer of its own: ``cli``, ``contrib.django``; the package itself is ``""``."""
    parts = module.split(".")[1:]
    if parts[:1] == ["contrib"]:
        return ".".join(parts[:2])
    edges = {path.stem for path in ROOT.iterdir() if path.stem != "__init__"}
    return parts[0] if parts and parts[0] in edges else ""


def imported(module, source):
    """Every module that the source imports, also where only the type checker does."""
    package = module if is_init(module) else module.rpartition(".")[0]
    for node in ast.walk(parsed(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            target = ".".join([*start, *([node.module] if node.module else [])])
            yield from (f"{target}.{alias.name}" for alias in node.names)


def import_problems(module, source):
    ours = layer_of(module)
    order = list(LAYERS)
    for target in sorted(set(imported(module, source))):
        top = target.partition(".")[0]
        if top == PACKAGE:
            theirs = layer_of(target)
            if ours in LAYERS:
                allowed = theirs in order[: order.index(ours) + 1] and {ours, theirs} != BESIDE
            else:
                allowed = theirs in LAYERS or theirs in {"", ours} | EDGES_USED.get(ours, set())
        else:
            allowed = ours not in LAYERS or top in sys.stdlib_module_names or top in LAYERS[ours]
        if not allowed:
            yield f"{module} imports {target}"


def purity_problems(module, source):
    if layer_of(module) not in PURE:
        return
    for target in sorted(set(imported(module, source))):
        if target.partition(".")[0] in CLOCKS_AND_CHANCE:
            yield f"{module} imports {target}"
    for node in ast.walk(parsed(source)):
        if isinstance(node, ast.Attribute) and node.attr in {"now", "today", "utcnow"} and ends_in_date(node.value):
            yield f"{module} asks the clock in line {node.lineno}"


def ends_in_date(node):
    return (node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")) in {"date", "datetime"}


def shape_problems(module, source):
    tree = parsed(source)
    if not ast.get_docstring(tree):
        yield f"{module} does not say what it is for"
    if len(source.splitlines()) > LINES:
        yield f"{module} is longer than {LINES} lines"
    if is_init(module):
        for node in tree.body[1:]:
            if not isinstance(node, (ast.Import, ast.ImportFrom)) and not is_all(node) and not is_lazy(node):
                yield f"{module} has logic in line {node.lineno} of its __init__"


def is_all(node):
    return isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == ["__all__"]


def is_lazy(node):
    """``if TYPE_CHECKING:`` imports, ``else: __getattr__ = lazy_names(…)`` with the same names of the same modules."""
    if not isinstance(node, ast.If) or ast.unparse(node.test) != "TYPE_CHECKING" or len(node.orelse) != 1:
        return False
    imports = [line for line in node.body if isinstance(line, ast.ImportFrom)]
    call = getattr(node.orelse[0], "value", None)
    if len(imports) != len(node.body) or not isinstance(call, ast.Call) or ast.unparse(call.func) != "lazy_names":
        return False
    table = call.args[1]
    lazy = {f"{PACKAGE}.{key.value}": set(constants(it)) for key, it in zip(table.keys, table.values, strict=True)}
    return lazy == {line.module: {alias.name for alias in line.names} for line in imports}


def constants(node):
    return [each.value for each in ast.walk(node) if isinstance(each, ast.Constant)]


def problems(module, source):
    return [
        *import_problems(module, source),
        *purity_problems(module, source),
        *shape_problems(module, source),
    ]


@pytest.mark.parametrize("module", MODULES)
def test_a_module_keeps_to_its_layer(module):
    assert problems(module, MODULES[module]) == []


def test_every_layer_has_modules_to_be_checked():
    assert {layer_of(module) for module in MODULES} >= {"", *LAYERS, "cli", "testing"}


def test_the_package_has_at_most_twenty_public_names_and_imports_no_more():
    (public,) = [ast.literal_eval(node.value) for node in ast.parse(MODULES[PACKAGE]).body if is_all(node)]

    assert len(public) <= PUBLIC_NAMES
    names = {target.rpartition(".")[2] for target in imported(PACKAGE, MODULES[PACKAGE])}
    assert names - {"TYPE_CHECKING", "lazy_names"} == set(public)
    assert all(hasattr(celery_dlx_retry, name) for name in public)


# --- the checks themselves can fail ---


@pytest.mark.parametrize(
    "wrong",
    [
        "if True: pass",
        "if TYPE_CHECKING:\n    from celery_dlx_retry.errors import RetryIn",
        "if TYPE_CHECKING:\n    from celery_dlx_retry.errors import RetryIn\nelse:\n    __getattr__ = print",
        """if TYPE_CHECKING:
    from celery_dlx_retry.errors import RetryIn
else:
    __getattr__ = lazy_names(__name__, {'errors': ('DLXError',)})""",
    ],
)
def test_an_init_with_other_logic_than_lazy_names_is_seen(wrong):
    assert list(shape_problems(PACKAGE, f'"""For something."""\n{wrong}\n')) != []


@pytest.mark.parametrize(
    ("module", "line", "problem"),
    [
        ("errors", "from celery_dlx_retry.values.durations import to_ms", "celery_dlx_retry.values.durations.to_ms"),
        ("errors", "import kombu", "kombu"),
        ("wire.wrong", "import kombu", "kombu"),
        ("wire.wrong", "from celery.app.task import Task", "celery.app.task.Task"),
        ("wire.wrong", "import celery_dlx_retry.broker.work_queues", "celery_dlx_retry.broker.work_queues"),
        ("wire.wrong", "from celery_dlx_retry import broker", "celery_dlx_retry.broker"),
        ("wire.wrong", "from celery_dlx_retry import Fixed", "celery_dlx_retry.Fixed"),
        ("wire.wrong", "from ..worker import task", "celery_dlx_retry.worker.task"),
        ("wire.wrong", "from .. import cli", "celery_dlx_retry.cli"),
        ("wire.wrong", "def f():\n    import amqp", "amqp"),
        ("wire.wrong", "if TYPE_CHECKING:\n    from kombu import Queue", "kombu.Queue"),
        ("wire.wrong", "import time", "time"),
        ("wire.wrong", "from random import random", "random.random"),
        ("broker.wrong", "import celery", "celery"),
        ("broker.wrong", "from celery.utils.log import get_logger", "celery.utils.log.get_logger"),
        ("broker.wrong", "from celery_dlx_retry.worker import task", "celery_dlx_retry.worker.task"),
        ("worker.wrong", "from celery_dlx_retry.cli import dlx", "celery_dlx_retry.cli.dlx"),
        ("worker.wrong", "from celery_dlx_retry.testing import provide", "celery_dlx_retry.testing.provide"),
        ("worker.wrong", "from celery_dlx_retry.contrib import django", "celery_dlx_retry.contrib.django"),
        ("worker.wrong", "import rich", "rich"),
        ("worker.wrong", "from celery_dlx_retry.operations import status", "celery_dlx_retry.operations.status"),
        ("operations.wrong", "from celery_dlx_retry.worker import task", "celery_dlx_retry.worker.task"),
        ("operations.wrong", "from celery_dlx_retry.cli import dlx", "celery_dlx_retry.cli.dlx"),
        ("operations.wrong", "import click", "click"),
        ("cli", "from celery_dlx_retry.testing import provide", "celery_dlx_retry.testing.provide"),
        ("cli.wrong", "from celery_dlx_retry.contrib import django", "celery_dlx_retry.contrib.django"),
        ("testing.wrong", "from celery_dlx_retry.cli import dlx", "celery_dlx_retry.cli.dlx"),
        ("contrib.web", "import celery_dlx_retry.contrib.django", "celery_dlx_retry.contrib.django"),
    ],
)
def test_an_import_against_the_direction_is_found(module, line, problem):
    module = f"{PACKAGE}.{module}"

    assert problems(module, f'"""Wrong."""\n{line}') == [f"{module} imports {problem}"]


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("wire.right", "import json\nfrom datetime import datetime, timedelta"),
        ("wire.right", "from celery_dlx_retry.values.durations import to_ms\nfrom ..errors import DLXError"),
        ("broker.right", "import time\nfrom kombu.entity import Queue\nfrom . import declare"),
        ("worker.right", "import random\nfrom celery import Celery\nfrom celery_dlx_retry.broker import publish"),
        ("operations.right", "import time\nfrom celery import Celery\nfrom celery_dlx_retry.app import context"),
        ("cli", "import click\nfrom celery_dlx_retry.worker import runtime\nfrom celery_dlx_retry import install"),
        ("contrib.django.apps", "import django\nfrom celery_dlx_retry.contrib.django import models"),
    ],
)
def test_an_import_in_the_right_direction_is_fine(module, line):
    assert problems(f"{PACKAGE}.{module}", f'"""Right."""\n{line}') == []


@pytest.mark.parametrize(
    ("module", "source", "problem"),
    [
        ("wire.wrong", '"""Wrong."""\nnow = datetime.now(UTC)', "asks the clock in line 2"),
        ("wire.wrong", '"""Wrong."""\nnow = datetime.datetime.utcnow()', "asks the clock in line 2"),
        ("wire.wrong", '"""Wrong."""\nnow = date.today()', "asks the clock in line 2"),
        ("wire.wrong", "x = 1", "does not say what it is for"),
        ("wire.wrong", '"""Wrong."""' + "\n" * 401, "is longer than 400 lines"),
        ("wire", '"""Wrong."""\nx = 1', "has logic in line 2 of its __init__"),
        ("worker", '"""Wrong."""\ndef f(): ...', "has logic in line 2 of its __init__"),
    ],
)
def test_a_module_of_the_wrong_shape_is_found(module, source, problem):
    assert problems(f"{PACKAGE}.{module}", source) == [f"{PACKAGE}.{module} {problem}"]
