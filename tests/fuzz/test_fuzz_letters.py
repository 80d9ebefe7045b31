"""Forged dead letters and waiting tasks: every command goes past them, and each is in one place afterwards."""

from __future__ import annotations

from itertools import islice

import pytest
from amqp.exceptions import AMQPError

from tests.fuzz import forged

BATCH = 30
#: A batch has two dozen commands.
SECONDS = 90.0


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EDITOR", "true")
    return tmp_path


def lay(it, house):
    """Publish one forged letter, or one forged task that waits; None if the broker does not take it."""
    it.token = token = house.token()
    work = it.choice(house.WORK)
    waits = it.is_one_in(4)
    place = house.lanes[house.WORK.index(work)] if waits else house.names.dead_letters(work)
    reachable = (house.VICTIM, *house.WORK, *house.dead, "nowhere")
    headers = forged.forge(it, house.letter_headers(token, work), reachable, ours=True)
    headers["fuzz-token"] = token
    # The broker obeys these at the forger's own publish; what is asked here is what we do with them later.
    cc = {key: headers.pop(key) for key in ("CC", "BCC") if key in headers}
    sent = {**forged.content(it), **forged.properties(it)}
    it.note(f"{token} in {place}: {forged.shown(headers)}" + f", {sent!r}"[:300])
    try:
        house.send(place, token, {**headers, **{key: [] if waits else value for key, value in cc.items()}}, **sent)
    except AMQPError:
        return None
    return token


def sweep(tokens, folder):
    """Every reading command, and then every changing one."""
    for words in (
        ("dead", "list"), ("dead", "list", "--json", "--sort", "error"), ("dead", "groups"),
        ("dead", "groups", "--json"), ("status", "--json"), ("waiting", "list"), ("waiting", "list", "--json"),
        ("doctor", "--json"), ("dead", "list", "--text", "x"), ("dead", "replay", "--all", "--dry-run"),
    ):  # fmt: skip
        yield words, ""
    for token in tokens[:4]:
        yield ("dead", "show", token, "--args"), ""
        yield ("dead", "show", token, "--args", "--json"), ""
        yield ("dead", "edit", token, "--set", "0=1", "--no-check", "--yes", "--json"), ""
        yield ("dead", "edit", token, "--undo"), "y\n"
    yield ("dead", "export", "--output", str(folder / f"{tokens[0]}.jsonl")), ""
    yield ("dead", "import", str(folder / f"{tokens[0]}.jsonl")), "y\n"
    yield ("waiting", "run", *tokens[:5], "--json"), ""
    yield ("waiting", "cancel", *tokens[5:], "--yes"), ""
    yield ("dead", "replay", *tokens[:3], "--detach", "--yes", "--json"), ""
    yield ("dead", "replay", "--all"), "y\n"


def batches(inputs):
    while batch := list(islice(inputs, BATCH)):
        yield batch


def test_no_forged_letter_stops_a_command_or_reaches_another_apps_queue(fuzz, house, folder):
    for batch in batches(fuzz.inputs("letters")):
        house.empty()
        innocents = [house.bury(work) for work in house.WORK for _ in range(2)]
        sent = {token: it for it in batch if (token := lay(it, house))}
        # Copies that the broker itself made when the forger published.
        copies = {token: sorted(queues) for token, queues in house.census().items()}
        with fuzz.judging(*batch, seconds=SECONDS):
            assert set(copies) == {*sent, *innocents}
            victims = copies_in(house.VICTIM, copies)
        for words, answer in sweep(list(sent), folder):
            with fuzz.judging(*batch):
                try:
                    house.checked(*words, answer=answer)
                except AssertionError as exc:
                    exc.args = (f"celery dlx {' '.join(words)}: {exc}",)
                    raise
        with fuzz.judging(*batch, seconds=SECONDS):
            where = house.census()
            assert {token: len(queues) for token, queues in where.items()} == {
                token: len(queues) for token, queues in copies.items()
            }, changed(copies, where)
            assert copies_in(house.VICTIM, where) == victims
            assert {queue for token in innocents for queue in where[token]} == set(house.WORK)
        with fuzz.judging(*batch):
            done = house.checked("dead", "purge", *(word for work in house.WORK for word in ("-q", work)), "--yes")
            assert house.settled(sum(len(queues) for queues in where.values()) - purged(done))
    fuzz.report()


def purged(done):
    return int(done.stdout.split()[0])


def copies_in(queue, where):
    return sorted(token for token, queues in where.items() if queue in queues)


def changed(before, after):
    return {
        token: (before.get(token), after.get(token))
        for token in {*before, *after}
        if len(before.get(token, ())) != len(after.get(token, ()))
    }
