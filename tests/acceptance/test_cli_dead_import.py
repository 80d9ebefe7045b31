"""``celery dlx dead import``: all lines of a file are sound, or nothing is imported, whoever wrote the file."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kombu.connection import Connection
from support import shown

from celery_dlx_retry.deadletters.export import to_line
from tests.unit.letters import a_letter, a_message

RED = "\x1b[31m"
LONG = "x" * 256
GOOD = json.loads(to_line(a_letter(message=a_message(headers={"id": "1", "task": "shop.charge"}))))


def headers(value):
    return {"headers": {"id": "1", "x": value}}


def properties(**values):
    return {"properties": values}


#: In a line, a list in a list in a list …
DEEP = "so deep: {depth}"

TEXTS = ["", "{", "[]", "7", "null", '"x"', "nonsense", "\0", "\ufeff{}", "[" * 100_000, "9" * 5_000, f"{RED}boo"]
QUEUES = [
    "",
    "nowhere",
    "{work}",
    "{victim}",
    "{prefix}.v1.dead",
    "{prefix}.v1.return.quorum",
    "dlx.v1.probe",
    "amq.direct",
]
QUEUES += [
    "celery",
    "dlx.v1.orphans.quorum",
    LONG,
    "x" * 70_000,
    "\ud800",
    f"{RED}",
    "a\nb",
    "{dead}\0",
    "{dead} ",
    "\u202e",
]
TYPES = [7, True, [], {}, LONG, "ä" * 128, {"$bytes": "AA=="}, {"$bytes": "AA"}]
HEADERS = [
    *({"$float": it} for it in ("nan", "inf", "-inf", "x", None, [], {})),
    *(float("nan"), float("inf"), -float("inf"), 2**63, -(2**63) - 1, 10**400),
    *(
        {"$decimal": it}
        for it in ("NaN", "sNaN", "Infinity", "1e10", "1e-300", "9" * 50, "one", [], {}, None, "1e999999999")
    ),
    *({"$time": it} for it in (1e20, -1, -1e20, 1.5e300, 253_402_300_800, float("nan"), "soon", None, [], {})),
    *({"$bytes": it} for it in ("!", "ä", "AAA", 7, None, [], {})),
    *({"$table": it} for it in (1, None, "x", [1], [[1]], [[1, 2]], [[None, 1]], [[[], 1]], [[{}, 1]], [[LONG, 1]])),
    *(
        {LONG: 1},
        {"a": {"ä" * 128: 1}},
        "x" * 140_000,
        [7] * 50_000,
        DEEP.format(depth=900),
        DEEP.format(depth=3_000),
        {"x": 2**64},
    ),
]
PROPERTIES = [
    *({"priority": it} for it in (-1, 256, "3", 1.5, [], {}, 2**70)),
    *({"timestamp": it} for it in (-1, 2**64, "now", 1.5, {"$time": 1}, [])),
    *({name: 7} for name in ("correlation_id", "reply_to", "message_id", "type", "app_id", "cluster_id")),
    *({"correlation_id": it} for it in (LONG, [], {}, True, {"$decimal": "1"})),
    *({"reply_to": it} for it in (LONG, "amq.rabbitmq.reply-to")),
    {"message_id": {"$bytes": "!"}},
]
BODIES = [None, 7, True, [], {}, "\ud800", {"$bytes": "!"}, {"$bytes": 7}, {"$text": "x"}, {"$time": 1}, ["x"]]
CHANGES = [
    *({"queue": it} for it in [*QUEUES, None, 7, [], {}]),
    *({name: it} for name in ("content_type", "content_encoding") for it in TYPES),
    *({"properties": it} for it in [*PROPERTIES, None, 7, "x", [], [["priority", 3]], {"$bytes": "AAAA"}]),
    *(headers(it) for it in HEADERS),
    *({"headers": it} for it in (None, 7, "x", [], {"$bytes": "AAAA"}, {"$table": 7}, {"$table": [[7, 7]]})),
    *({"body": it} for it in BODIES),
    *(
        {"format": it}
        for it in (None, 7, "", "other", "celery-dlx-retry dead letter 2", ["celery-dlx-retry dead letter 1"])
    ),
]
LINES = [*TEXTS, *CHANGES, *(f"-{key}" for key in GOOD), b"\xff\xfe", b'{"format": "\xff"}', b"\x80\x04}q\x00."]


@pytest.fixture(scope="module")
def place(shared_desk):
    """What lines are made of: names on the broker of the desk."""
    desk, victim = shared_desk, f"{shared_desk.project.prefix}.victim"
    with Connection(desk.project.url) as connection:
        connection.default_channel.queue_declare(victim, durable=True, auto_delete=False)
    names = {"dead": desk.dead_queue("classic"), "work": desk.work["classic"], "prefix": desk.project.prefix}
    yield {**names, "victim": victim}
    assert (desk.project.depth(victim), desk.project.depth(desk.work["classic"])) == (0, 0)
    desk.clear()


def line(place, hostile=None):
    """One line of a file: sound, or changed in one thing."""
    if isinstance(hostile, bytes):
        return hostile
    if isinstance(hostile, str) and not hostile.startswith("-"):
        return hostile.encode()
    facts = {**GOOD, "queue": place["dead"]}
    if isinstance(hostile, str):
        del facts[hostile[1:]]
    else:
        facts |= hostile or {}
    if isinstance(facts.get("queue"), str):
        for name, value in place.items():
            facts["queue"] = facts["queue"].replace(f"{{{name}}}", value)
    text = json.dumps(facts)
    for depth in (900, 3_000):
        text = text.replace(json.dumps(DEEP.format(depth=depth)), "[" * depth + "]" * depth)
    return text.encode()


@pytest.mark.parametrize("hostile", LINES, ids=shown)
def test_a_line_that_cannot_be_imported_is_named_and_nothing_is_imported(shared_desk, place, tmp_path, hostile):
    file = tmp_path / "letters"
    file.write_bytes(b"\n".join([line(place), line(place, hostile), line(place)]))

    refused = shared_desk.dlx("import", str(file), "--yes", code=1)

    (told,) = (it for it in refused.stderr.splitlines() if not it.startswith("Note: "))
    assert told.startswith("Error: Line 2 is not an exported dead letter: ")
    assert told.endswith(". Nothing was imported.")
    assert told.isprintable()
    assert len(told) < 600
    assert shared_desk.project.depth(place["dead"]) == 0


@pytest.mark.parametrize(
    ("hostile", "problem"),
    [
        ({"headers": {"amount": 2**70}}, "the header 'amount' "),
        ({"headers": {"note": "x" * 140_000}}, "the table of headers has 140"),
    ],
    ids=shown,
)
def test_the_header_that_cannot_be_imported_is_named(shared_desk, place, tmp_path, hostile, problem):
    file = tmp_path / "letters"
    file.write_bytes(line(place, hostile))

    refused = shared_desk.dlx("import", str(file), "--yes", code=1)

    assert f"Line 1 is not an exported dead letter: {problem}" in refused.stderr


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=300) | st.sampled_from(HEADERS[:-7]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.text(max_size=5) | st.sampled_from(["$bytes", "$time", "$decimal", "$table"]), inner, max_size=3
        )
    ),
    max_leaves=6,
)
names = st.sampled_from(
    ["id", "task", "retries", "x-death", "dlx-history", "dlx-dead-queue", "dlx-original", "dlx-replays"]
)
changes = (
    st.dictionaries(st.sampled_from([*GOOD]), values, max_size=2)
    | st.dictionaries(names | st.text(max_size=5), values, max_size=3).map(lambda it: {"headers": it})
    | st.dictionaries(st.sampled_from(["priority", "timestamp", "reply_to", "type"]), values).map(
        lambda it: properties(**it)
    )
)


@settings(
    max_examples=100,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.lists(changes, min_size=1, max_size=3))
def test_whatever_the_lines_are_all_are_imported_or_none(shared_desk, place, tmp_path, lines):
    file = tmp_path / "letters"
    file.write_bytes(b"\n".join(line(place, it) for it in lines))

    done = shared_desk.dlx("import", str(file), "--yes", code=None)

    lying = len(shared_desk.take(place["dead"]))
    assert (done.exit_code, lying) in {(0, len(lines)), (1, 0)}, done.output


@pytest.mark.parametrize("length", [17 * 2**20])
def test_a_body_that_the_broker_does_not_take_is_found_before_anything_is_imported(
    shared_desk, place, tmp_path, length
):
    """RabbitMQ 4 takes 16 MiB, an older one 128."""
    file = tmp_path / "letters"
    file.write_bytes(b"\n".join([line(place), line(place, {"body": "x" * length})]))

    done = shared_desk.dlx("import", str(file), "--yes", code=None)

    lying = shared_desk.take(place["dead"])
    assert (done.exit_code, len(lying)) in {(0, 2), (1, 0)}
    assert (f"Line 2 is not an exported dead letter: the broker takes no body of {length} bytes" in done.stderr) == (
        not lying
    )


def test_a_file_that_changes_after_the_question_is_told_and_no_bad_line_is_imported(desk, place, tmp_path, monkeypatch):
    file = tmp_path / "letters"
    file.write_bytes(b"\n".join([line(place)] * 2))

    def agreed(text, **_):
        assert text == f"Import 2 dead letters into {place['dead']}?"
        file.write_bytes(b"\n".join([line(place), line(place, {"queue": place["victim"]})]))
        return True

    monkeypatch.setattr("click.confirm", agreed)
    done = desk.dlx("import", str(file), code=1)

    assert "1 imported; go on with --skip 1" in done.stderr
    assert "Error: The file has changed since it was checked: " in done.stderr
    desk.lying(1)


@pytest.mark.parametrize("name", ["nowhere", LONG, "\udcff", f"{RED}"], ids=shown)
def test_the_queue_that_an_operator_names_has_to_exist(desk, place, tmp_path, name):
    file = tmp_path / "letters"
    file.write_bytes(line(place))

    done = desk.dlx("import", str(file), "--yes", "--to-queue", name, code=None)

    assert done.exit_code in {1, 2}
    assert RED not in done.output
    desk.lying(0)


def test_what_was_edited_in_the_file_or_in_the_queue_is_not_already_there_and_comes_in_only_if_asked_for(
    desk, tmp_path
):
    file = tmp_path / "letters"
    for name in ("same", "edited here", "edited there", "gone"):
        desk.bury(name, args=["old"], died_at_ms=1_700_000_000_000)
    desk.lying(4)
    lines = [json.loads(it) for it in desk.dlx("export").stdout.splitlines()]
    for facts in lines:
        if facts["headers"]["id"] == "edited here":
            facts["headers"]["task"] = "project.fail"
    file.write_text("\n".join(map(json.dumps, lines)))
    desk.dlx("edit", "edited there", "--set", '0="new"', "--no-check", "--yes")
    desk.dlx("purge", "gone", "--yes")
    desk.lying(3)

    first = desk.json("import", str(file), "--yes", code=1)
    desk.lying(4)
    told = desk.dlx("import", str(file), "--yes", code=1)
    again = desk.json("import", str(file), "--yes", "--again")
    desk.lying(6)
    once_more = desk.json("import", str(file), "--yes", "--again")

    assert first == [{"imported": 1, "already_there": 1, "edited": 2}]
    assert told.stdout == "0 imported, 2 already there, 2 there in an edited version (--again imports them, too)\n"
    assert again == [{"imported": 2, "already_there": 2, "edited": 0}]
    assert once_more == [{"imported": 0, "already_there": 4, "edited": 0}]
    desk.lying(6)


def test_an_empty_file_is_imported_without_a_question(desk, tmp_path):
    file = tmp_path / "letters.jsonl"
    file.touch()

    assert desk.dlx("import", str(file)).stdout == "0 imported\n"
