"""Lines of a file to import: all of them or none, into dead-letter queues of this app and nowhere else."""

from __future__ import annotations

import json

from celery_dlx_retry.deadletters.export import to_line
from celery_dlx_retry.deadletters.letter import dead_message
from celery_dlx_retry.wire.message import Message
from tests.fuzz import forged, values

FIELDS = ("format", "queue", "content_type", "content_encoding", "properties", "headers", "body")
PROPERTIES = ("delivery_mode", "priority", "timestamp", "expiration", "user_id", "correlation_id", "message_id", "type")
MARKS = ("$bytes", "$time", "$decimal", "$float", "$table", "$unheard")
RESET = 60


def line(it, house):
    """A line as an export writes it."""
    token, work = house.token(), it.choice(house.WORK)
    message = Message(
        body=json.dumps([[token], {}, {}]).encode(),
        content_type="application/json",
        content_encoding="utf-8",
        headers=house.letter_headers(token, work),
        properties={"delivery_mode": 2, "message_id": token},
    )
    queue = house.names.dead_letters(work)
    return json.loads(to_line(dead_message(message, queue=queue, exchange="", routing_key=queue)))


def packed(it):
    """What JSON can hold, marks and all."""
    return it.one(
        lambda it: {it.choice(MARKS): it.one(values.number, values.text, "", "AA==", [["a", 1]], [[{}, 1]], None, {})},
        lambda it: json_tree(it, 3),
        lambda it: it.choice(values.HUGE),
        values.number,
        lambda it: values.text(it, surrogates=True),
        lambda it: [it.choice([{}, "x"])] * 3000,
    )


def json_tree(it, depth):
    kind = it.randrange(3) if depth else 0
    if kind == 1:
        return [json_tree(it, depth - 1) for _ in range(it.randrange(3))]
    if kind == 2:
        return {values.text(it, surrogates=True): json_tree(it, depth - 1) for _ in range(it.randrange(3))}
    return it.one(values.number, values.text, lambda it: it.choice([None, True, False]))


def broken(it, house):
    """A line with one thing wrong, or two; or no line at all."""
    found = line(it, house)
    for _ in range(it.randrange(1, 3)):
        kind = it.randrange(6)
        if kind == 0:
            found.pop(it.choice(FIELDS), None)
        elif kind == 1:
            found[it.choice(FIELDS)] = packed(it)
        elif kind == 2 and isinstance(found.get("headers"), dict):
            key = it.choice([*forged.OURS, *forged.CELERYS, values.text(it)])
            found["headers"][key] = packed(it)
        elif kind == 3 and isinstance(found.get("properties"), dict):
            found["properties"][it.choice([*PROPERTIES, values.text(it)])] = packed(it)
        elif kind == 4:
            found["queue"] = it.choice([house.VICTIM, *house.WORK, *house.lanes, "nowhere", "", "q" * 300, "\x1b[31m"])
        elif isinstance(found.get("headers"), dict):
            found["headers"]["pad"] = it.choice(["x" * 140_000, values.nested(900), values.nested(3000)])
    return dumped(found)


def dumped(found):
    """Deeper than json.dumps() goes, without raising."""
    try:
        return json.dumps(found)
    except RecursionError:
        return '{"format": ' + "[" * 100_000


def written(it, house):
    lines = [json.dumps(line(it, house)) for _ in range(it.randrange(3))]
    if not it.is_one_in(8):
        wrong = it.one(
            *[lambda it: broken(it, house)] * 8, values.text, "[" * 50_000, "{}", "null", "\ud800", "1" * 5000, "NaN"
        )
        lines.insert(it.randrange(len(lines) + 1), wrong.replace("\n", " ").replace("\r", " "))
    it.shuffle(lines)
    return lines


def test_a_file_is_imported_whole_or_not_at_all(fuzz, house, tmp_path):
    file = tmp_path / "letters.jsonl"

    def attempt(it):
        if it.number % RESET == 0 or fuzz.only:
            house.empty()
        lines = written(it, house)
        it.note("\n".join(each[:1000] for each in lines))
        file.write_bytes("\n".join(lines).encode("utf-8", "surrogatepass") + b"\n")
        words = ["dead", "import", str(file), *(["--again"] if it.is_one_in(4) else [])]
        words += [] if it.is_one_in(4) else ["--yes"]
        before = house.total()

        done = house.checked(*words, answer="y\n")

        count = len([each for each in lines if each.strip()]) if done.exit_code == 0 else 0
        if not house.settled(before + count):
            raise AssertionError(
                f"exit {done.exit_code}: {house.total() - before} of {len(lines)} are there: {done.output}"
            )
        assert house.depth(house.VICTIM) == 0, "a line reached the queue of another app"
        assert not any(map(house.depth, house.WORK)), "a line reached a work queue"

    fuzz.each("imports", attempt)
    house.empty()
