"""Nothing in the package deletes or takes anything away, unless an operator asked for exactly that.

Every call that can is found in the source, and has its reason here. Who adds one adds its reason.
"""

import ast
from pathlib import Path

import celery_dlx_retry

ROOT = Path(celery_dlx_retry.__file__).parent

#: Methods of py-amqp's and Kombu's channels, queues and exchanges that take something away for good.
TAKING = {
    "basic_ack",
    "delete",
    "exchange_delete",
    "exchange_unbind",
    "purge",
    "queue_delete",
    "queue_purge",
    "queue_unbind",
    "unbind_from",
}
#: Names of AMQP's own methods, for those who write frames themselves.
FRAMES = {"Delete", "Purge", "Unbind"}
#: Keyword arguments by which the broker takes a message for done as soon as it has sent it.
AUTOMATIC = {"auto_ack", "no_ack"}

MOVED = "the broker has confirmed the message in its new place"
PRUNE = "`celery dlx prune`: an operator asks for it, and names nothing that is in use"
#: (module, function, what it calls or sets) -> why it may.
ALLOWED = {
    ("broker.lanes", "_unbind", "queue_unbind"): PRUNE,
    ("broker.lanes", "_delete", "queue_delete"): PRUNE,
    ("broker.lanes", "_delete", "exchange_delete"): PRUNE,
    ("broker.peek", "_classic", "basic_ack"): "what Seen.acknowledge does; called by take()",
    (
        "broker.dead_letters",
        "discard",
        "acknowledge",
    ): "`celery dlx dead purge`: an operator asks for it and confirms it",
    ("broker.dead_letters", "replay", "acknowledge"): MOVED,
    ("broker.dead_letters", "rewrite", "acknowledge"): MOVED,
    ("broker.async_publisher", "_use", "basic_ack"): "the name of an event: the broker's confirm",
    ("broker.paged_reader", "acknowledge_last", "basic_ack"): "what the functions of broker.dead_letters call",
    ("broker.orphans", "return_orphans", "acknowledge"): MOVED,
    ("broker.waiting", "take", "acknowledge"): MOVED + ", or `celery dlx waiting cancel` asks for exactly this",
    ("broker.crash_marks", "forget", "queue_delete"): "crash marks of one message: they hold no task",
    ("broker.crash_marks", "marks_of", "x-expires"): "crash marks of one message: they hold no task",
    ("broker.permission_probe", "forbidden", "queue_delete"): "asks for a random name that does not exist",
    ("broker.permission_probe", "forbidden", "queue_unbind"): "asks for a random key that is not bound",
    ("operations.diagnose", "diagnose_quietly", "x-expires"): "asks which lanes expire; a look at one keeps it alive",
    ("topology.objects", "lane", "x-expires"): "classic lanes, with dlx_lane_expires, declared again before each use",
    ("topology.objects", "lane", "auto_delete"): "the exchange of such a lane; an exchange holds no message",
    ("testing.chaos.report", "delete", "queue_delete"): "a chaos run removes what it made itself",
    ("testing.chaos.report", "delete", "exchange_delete"): "a chaos run removes what it made itself",
}


def found(source):
    """(function, what) of all that takes something away."""

    def visit(node, function):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            function = node.name
        yield from ((function, what) for what in takes(node))
        for child in ast.iter_child_nodes(node):
            yield from visit(child, function)

    yield from visit(ast.parse(source), "")


def takes(node):
    if isinstance(node, ast.Attribute) and node.attr in TAKING | FRAMES:
        yield node.attr
    elif isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) == "acknowledge":
        yield "acknowledge"
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        # methodcaller("queue_delete"), method="DELETE", {"x-expires": …}
        if node.value in (TAKING - {"delete", "purge"}) | {"DELETE", "x-expires", "auto-delete"}:
            yield node.value
    elif isinstance(node, ast.keyword) and node.arg in AUTOMATIC | {"auto_delete", "expires"} and not is_harmless(node):
        yield node.arg


def is_harmless(keyword):
    """``auto_delete=False``, and an argument that is passed on as it is, ``auto_delete=queue.auto_delete``."""
    value = keyword.value
    if isinstance(value, ast.Constant):
        return not value.value
    return isinstance(value, ast.Attribute) and value.attr == keyword.arg


def test_every_call_that_takes_something_away_has_a_reason():
    calls = {
        (".".join(path.relative_to(ROOT).with_suffix("").parts), function, what)
        for path in ROOT.rglob("*.py")
        for function, what in found(path.read_text(encoding="utf-8"))
    }

    # How a worker acknowledges what it ran is Celery's business, and that of tests/worker.
    assert {call for call in calls if not (call[0].startswith("worker.") and call[2] == "acknowledge")} == set(ALLOWED)


def test_such_calls_are_found():
    source = """
def f(channel, queue):
    channel.queue_delete("q")
    queue.purge()
    methodcaller("queue_unbind", "q")
    channel.send_method(spec.Queue.Purge)
    Request(url, method="DELETE")
    channel.basic_get("q", no_ack=True)
    channel.basic_get("q", no_ack=False)
    QueueSpec(arguments=(("x-expires", 5),))
    channel.queue_declare("q", auto_delete=queue.auto_delete)
    Queue("q", auto_delete=True)
"""
    assert sorted(found(source)) == [
        ("f", what)
        for what in sorted(
            ["queue_delete", "purge", "queue_unbind", "Purge", "DELETE", "no_ack", "x-expires", "auto_delete"]
        )
    ]
