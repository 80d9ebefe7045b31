"""celery_compat.py owns every private name of Celery, Kombu, billiard and py-amqp, and the installed versions have it.

`make compat-next` runs this file against the newest pre-releases.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from pathlib import Path

import pytest
from celery import Celery
from celery._state import _set_task_join_will_block

from celery_dlx_retry import DLXRetryTask, celery_compat

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "celery_dlx_retry"
LIBRARIES = ("amqp", "billiard", "celery", "kombu", "vine")
MOST_NAMES = 25
#: What a remark about one version of Celery looks like.
REMARK = re.compile(r"(celery|kombu|billiard)( \w+)? \d+\.\d|\b(before|since|until|from) 5\.\d", re.IGNORECASE)
#: Names without an underscore that no documentation promises.
UNDOCUMENTED = (
    "amqp.connection:Connection.on_inbound_frame",
    "amqp.abstract_channel:AbstractChannel.send_method",
    "celery.app.amqp:AMQP.create_task_message",
    "celery.app.task:Task.__trace__",
    "celery.app.task:Task.signature_from_request",
    "celery.app.trace:build_tracer",
    "celery.app.trace:trace_ok_t",
    "celery.app.trace:TraceInfo.handle_retry",
    "celery.worker.consumer:Consumer.create_task_handler",
    "celery.worker.consumer:Consumer.on_invalid_task",
    "celery.worker.consumer:Consumer.on_unknown_message",
    "celery.worker.consumer:Consumer.on_unknown_task",
    "celery.worker.request:Request.on_failure",
    "celery.worker.request:Request.on_timeout",
    "celery.worker.state:should_stop",
    "celery.worker.state:should_terminate",
    "celery.worker.state:task_ready",
)


def number(version):
    return tuple(map(int, version.split(".")))


def oldest():
    (version,) = re.findall(r'^dependencies = \["celery>=([\d.]+),', text("pyproject.toml"), re.MULTILINE)
    return number(version)


def newest():
    """Of the matrix."""
    return max(number(version) for version in re.findall(r"celery==([\d.]+)\.\*", text("tox.ini")))


def text(file):
    return (ROOT / file).read_text()


@pytest.mark.parametrize("name", celery_compat.USES)
def test_celery_still_has(name):
    assert celery_compat.has(name), f"without it: {celery_compat.USES[name]}"


@pytest.mark.parametrize("name", UNDOCUMENTED)
def test_celery_still_has_the_undocumented(name):
    assert celery_compat.has(name)


def test_we_use_few_private_names():
    assert len(celery_compat.USES) <= MOST_NAMES


def test_a_worker_with_this_celery_has_nothing_to_report():
    assert not celery_compat.lacks()


def test_a_missing_name_is_reported_in_one_sentence(monkeypatch):
    monkeypatch.setattr(celery_compat, "USES", {"kombu.message:Message._gone": "nothing is lost"})

    sentence = celery_compat.lacks()

    assert re.fullmatch(
        r"Celery \S+ lacks kombu\.message:Message\._gone, which celery_dlx_retry uses: nothing is lost\.", sentence
    )


def test_a_worker_reports_a_missing_name_at_its_start(monkeypatch, caplog):
    monkeypatch.setitem(celery_compat.USES, "kombu.message:Message._gone", "nothing is lost")
    app = Celery("lacking", broker="amqp://127.0.0.1:1//", set_as_current=False, task_cls=DLXRetryTask)
    app.loader.import_default_modules()

    try:
        app.WorkController(pool="solo", loglevel="CRITICAL")
    finally:
        _set_task_join_will_block(blocks=False)  # this process was a worker

    (sentence,) = [it.getMessage() for it in caplog.records if "Message._gone" in it.getMessage()]
    assert sentence.endswith("which celery_dlx_retry uses: nothing is lost.")


@pytest.mark.parametrize("name", ["no_such_module:Message.body", "kombu.message:NoSuchClass.body", "kombu.message:_no"])
def test_a_name_whose_owner_is_gone_is_missing(name):
    assert not celery_compat.has(name)


class Bare:
    """An object of a Celery without any private name."""

    queues = ()
    amqp = None
    request_dict = {"id": "1", "retries": 2}  # noqa: RUF012


def test_without_the_private_names_the_public_way_is_taken():
    bare = Bare()
    bare.amqp = Bare()

    assert celery_compat.queues_by_tag(bare) == {}
    assert celery_compat.fixups(bare) == ()
    assert celery_compat.event_dispatcher(bare) is None
    assert celery_compat.task_context(bare).retries == 2
    assert not celery_compat.is_ended_by_celery(bare)
    celery_compat.wrap_receive(bare, wrap=None)
    celery_compat.encode_properties(bare)
    celery_compat.wait_for_what_is_given(bare)


def test_the_public_way_reads_the_same_options_of_a_task(monkeypatch):
    app = Celery("options", set_as_current=False)

    @app.task(shared=False, name="options.task", time_limit=3, ignore_result=True)
    def task():
        pass

    private = celery_compat.exec_options(task)
    monkeypatch.setattr(type(app.tasks["options.task"]), "_get_exec_options", None)

    public = celery_compat.exec_options(task)

    assert {key: value for key, value in public.items() if value is not None} == {
        key: value for key, value in private.items() if value is not None
    }


def test_every_function_names_what_it_uses():
    functions = [it for it in ast.parse(inspect.getsource(celery_compat)).body if isinstance(it, ast.FunctionDef)]
    bare = {it.name for it in functions if it.name[0] != "_" and not it.decorator_list}

    assert bare == {"has", "lacks"}


def test_every_fault_says_what_celery_does():
    faults = {*celery_compat.ENDS, *celery_compat.STILL_IN}

    assert all("Celery" in inspect.getdoc(getattr(celery_compat, name)).partition("\n")[0] for name in faults)


def test_no_fault_outlives_the_version_that_ends_it():
    over = [name for name, version in celery_compat.ENDS.items() if number(version) <= oldest()]

    assert over == [], "our oldest Celery does not have these faults: delete them from celery_compat.py"


def test_what_has_no_end_was_looked_for_in_the_newest_celery():
    unseen = [name for name, version in celery_compat.STILL_IN.items() if number(version) < newest()]

    assert unseen == [], "does the newest Celery still have these faults?"


def test_no_other_module_speaks_of_a_version_of_celery():
    others = [path for path in PACKAGE.rglob("*.py") if path.name != "celery_compat.py"]
    found = [f"{path.relative_to(ROOT)}: {hit[0]}" for path in others for hit in REMARK.finditer(path.read_text())]

    assert found == []


def is_private(name):
    return name.startswith("_") and not name.endswith("__") and not name.startswith("_dlx_")


def is_of_a_library(module):
    return (module or "").partition(".")[0] in LIBRARIES


def own_names(tree):
    """Every private name that a module, or the module of a base class in our package, gives to its own objects."""
    bases = {ast.unparse(base) for node in ast.walk(tree) if isinstance(node, ast.ClassDef) for base in node.bases}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and not bases.isdisjoint(it.name for it in node.names):
            path = ROOT / f"{node.module.replace('.', '/')}.py"
            yield from own_names(ast.parse(path.read_text())) if path.is_file() else ()
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self":
            yield node.attr


def foreign_bases(tree):
    """The classes of the libraries that the classes of a module derive from, by the name of our class."""
    imports = {
        alias.asname or alias.name: (node.module, alias.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and is_of_a_library(node.module)
        for alias in node.names
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            for base in node.bases:
                if (name := ast.unparse(base).partition(".")[0]) in imports:
                    module, attribute = imports[name]
                    found = getattr(importlib.import_module(module), attribute, None)
                    yield node, f"{module}:{attribute}" if isinstance(found, type) else None


def private_uses(source):
    """Each private name of a library that a module imports, reads, writes, calls or overrides."""
    tree = ast.parse(source)
    ours = set(own_names(tree))
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and is_of_a_library(node.module):
            yield from (it.name for it in node.names if is_private(it.name))
            yield from (part for part in node.module.split(".") if is_private(part))
        elif isinstance(node, ast.Attribute) and is_private(node.attr) and node.attr not in ours:
            yield ast.unparse(node)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in {"getattr", "setattr", "hasattr", "delattr"}:
            name = node.args[1]
            if isinstance(name, ast.Constant) and is_private(name.value):
                yield ast.unparse(node)
        elif isinstance(node, ast.Attribute) and node.attr in {"__closure__", "cell_contents"}:
            yield ast.unparse(node)
    for kind, base in foreign_bases(tree):
        if base is not None:
            used = {it.name for it in kind.body if isinstance(it, ast.FunctionDef)} | {
                it.attr for it in ast.walk(kind) if isinstance(it, ast.Attribute) and ast.unparse(it.value) == "self"
            }
            yield from (f"{base}.{it}" for it in used if is_private(it) and celery_compat.has(f"{base}.{it}"))


#: Other libraries, whose private names these are not.
NOT_THEIRS = {"backend.TaskModel._default_manager"}  # Django documents it


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_other_module_uses_a_private_name(path):
    if path.name == "celery_compat.py":
        return

    assert set(private_uses(path.read_text())) - NOT_THEIRS == set()


@pytest.mark.parametrize(
    "source",
    [
        "from celery._state import get_current_app",
        "from kombu.messaging import _thing",
        "def run(message):\n    message._state = 'ACK'",
        "def run(message):\n    return getattr(message, '_state', None)",
        "from celery.worker.request import Request\nclass Ours(Request):\n    def now(self):\n        self._eta = None",
        "from kombu.messaging import Producer\nclass Ours(Producer):\n    def _publish(self):\n        pass",
        "def run(tracer):\n    return tracer.__closure__",
    ],
)
def test_a_private_name_is_found(source):
    assert list(private_uses(source))
