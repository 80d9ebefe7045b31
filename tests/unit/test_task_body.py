"""Bodies are decoded only where that is safe, and can be changed and brought back."""

import bz2
import json
import lzma
import pickle
import zlib

import pytest

from celery_dlx_retry.errors import Unreadable
from celery_dlx_retry.wire.headers import ORIGINAL
from celery_dlx_retry.wire.task_body import MOST_BYTES, Payload, detached, edited, links_of, payload_of, restored
from tests.unit.letters import a_message

LINK = {"task": "shop.next"}
BODY = json.dumps([["ä"], {"n": 1}, {"callbacks": [LINK], "errbacks": None, "chain": None, "chord": LINK}]).encode()


@pytest.mark.parametrize(
    ("compress", "name"),
    [(zlib.compress, "application/x-gzip"), (bz2.compress, "application/x-bz2"), (lzma.compress, "application/x-lzma")],
)
def test_arguments_and_links_are_read_from_compressed_json(compress, name):
    message = a_message(compress(BODY), headers={"compression": name})

    payload = payload_of(message)

    assert (payload.args, payload.kwargs) == (["ä"], {"n": 1})
    assert links_of(message) == ("callbacks", "chord")


@pytest.mark.parametrize(
    "message",
    [
        a_message(pickle.dumps([[], {}, {}]), content_type="application/x-python-serialize"),
        a_message(b"[[], {}, {}]", content_type=None),
        a_message(b"\xff"),
        a_message(b"[[], {}]"),
        a_message(b"[{}, {}, {}]"),
        a_message(b'{"task": "protocol.one", "args": [], "kwargs": {}}'),
        a_message(b"[" * 100_000),
        a_message(b""),
        a_message(b"[[], {}, {}]", headers={"compression": "application/x-gzip"}),
        a_message(zlib.compress(BODY)[:-5], headers={"compression": "application/x-gzip"}),
        a_message(zlib.compress(BODY), headers={"compression": "application/x-brotli"}),
        a_message(zlib.compress(b" " * (MOST_BYTES + 1)), headers={"compression": "application/x-gzip"}),
    ],
)
def test_what_is_not_safe_or_not_celerys_is_unreadable(message):
    for read in (payload_of, links_of):
        with pytest.raises(Unreadable):
            read(message)


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b'[["%s"], {}, {}]' % (b"x" * MOST_BYTES), "no more than 16777216 are parsed"),
        (b"[[%s], {}, {}]" % (b"[" * 300 + b"]" * 300), "nested deeper than 200 levels"),
    ],
)
def test_a_body_that_is_too_long_or_too_deep_is_not_parsed(body, problem):
    with pytest.raises(Unreadable, match=problem):
        payload_of(a_message(body))


def test_brackets_in_texts_are_not_levels():
    assert payload_of(a_message(json.dumps([['[\\"[' * 300], {}, {}]).encode())).args == ['[\\"[' * 300]


@pytest.mark.parametrize("length", [0, 100, 2 * 2**20, MOST_BYTES])
@pytest.mark.parametrize("separators", [(", ", ": "), (",", ":")])
def test_links_are_found_behind_arguments_of_any_length(length, separators):
    embed = {"callbacks": None, "errbacks": [LINK], "chain": None, "chord": LINK}
    body = json.dumps([["x" * length], {"{": "]"}, embed], separators=separators).encode()

    assert links_of(a_message(body)) == ("errbacks", "chord")


def test_links_that_are_not_where_celery_writes_them_are_not_known():
    for embed in ({}, 5, {"chord": "x" * 2 * 2**20}, {"callbacks": {"callbacks": 1}}):
        with pytest.raises(Unreadable):
            links_of(a_message(json.dumps([["x" * 2 * 2**20], {}, embed]).encode()))


def test_a_detached_task_has_nobody_to_answer_to():
    message = a_message(BODY, headers={"id": "1", "group": "g"}, properties={"reply_to": "q", "priority": 3})

    alone = detached(message)

    assert payload_of(alone) == Payload(
        args=["ä"], kwargs={"n": 1}, embed={"callbacks": None, "errbacks": None, "chain": None, "chord": None}
    )
    assert alone.headers == {"id": "1", "group": None, "ignore_result": True}
    assert alone.properties == {"priority": 3}


def test_an_edit_keeps_the_very_first_original_and_undo_brings_it_back():
    body = zlib.compress(BODY)
    message = a_message(body, headers={"compression": "application/x-gzip", "argsrepr": "old", "id": "1"})
    payload = payload_of(message)

    once = edited(message, Payload(args=[1], kwargs={}, embed=payload.embed), argsrepr="[1]", kwargsrepr="{}")
    twice = edited(once, Payload(args=[2], kwargs={}, embed=payload.embed), argsrepr="[2]", kwargsrepr="{}")
    back = restored(twice)

    assert payload_of(twice).args == [2]
    assert links_of(twice) == ("callbacks", "chord")
    assert (once.compression, twice.headers["argsrepr"]) == ("application/x-gzip", "[2]")
    assert (back.body, back.headers) == (body, message.headers)


def test_an_original_that_fits_no_header_is_not_edited():
    message = a_message(json.dumps([["x" * 70_000], {}, {}]).encode())

    with pytest.raises(Unreadable, match="70"):
        edited(message, payload_of(message), argsrepr="", kwargsrepr="")


@pytest.mark.parametrize("original", [None, "text", {}, {"body": 1}])
def test_what_was_never_edited_cannot_be_restored(original):
    with pytest.raises(Unreadable, match="never edited"):
        restored(a_message(headers={} if original is None else {ORIGINAL: original}))
