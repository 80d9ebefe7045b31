"""The client of RabbitMQ's HTTP API against the real plugin, and against servers that mean harm."""

from __future__ import annotations

import json
import socket
import threading
import time
from contextlib import contextmanager, suppress

import pytest
from kombu.connection import Connection

from celery_dlx_retry.broker import management as management_module
from celery_dlx_retry.broker.management import Management, management_of
from celery_dlx_retry.errors import BadManagementURL, ClearTextManagementURL, NoManagement

ESCAPE = "\x1b[31mhacked\x1b[0m"
SECRET = "geheim"  # noqa: S105 - nobody has it


class Attacker:
    """An HTTP server on loopback that answers each request with what ``answer(sock)`` sends."""

    def __init__(self, answer):
        self._answer = answer
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.requests = []
        self.is_over = threading.Event()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self):
        with suppress(OSError):
            while True:
                sock, _ = self._listener.accept()
                with sock, suppress(OSError):
                    self.requests.append(sock.recv(65536).decode())
                    self._answer(self, sock)

    def close(self):
        self.is_over.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def api(self):
        return Management(url=self.url, user="shop", password=SECRET, vhost="/")


@contextmanager
def attacking(answer):
    attacker = Attacker(answer)
    try:
        yield attacker
    finally:
        attacker.close()


def saying(text):
    """An answer of these bytes."""
    return lambda _, sock: sock.sendall(text if isinstance(text, bytes) else text.encode())


def with_body(body, status="200 OK", *headers):
    return saying("\r\n".join([f"HTTP/1.1 {status}", f"Content-Length: {len(body.encode())}", *headers, "", body]))


def dripping(start):
    """Send the start at once, and then one byte every 50 ms, for ever."""

    def answer(attacker, sock):
        sock.sendall(start)
        while not attacker.is_over.wait(0.05):
            sock.sendall(b" ")

    return answer


def endless(start, more):
    def answer(attacker, sock):
        sock.sendall(start)
        while not attacker.is_over.is_set():
            sock.sendall(more)

    return answer


@pytest.fixture
def hurried(monkeypatch):
    monkeypatch.setattr(management_module, "_SECONDS", 0.6)
    monkeypatch.setattr(management_module, "_FIRST_SECONDS", 0.6)


def problem_of(attacker, question="queues"):
    with pytest.raises(NoManagement) as caught:
        getattr(attacker.api(), question)()
    told = str(caught.value)
    assert SECRET not in told
    assert told.isprintable()
    assert len(told) < 500
    return caught.value.problem


@pytest.mark.parametrize("status", ["301 Moved", "302 Found", "307 Temporary", "308 Permanent"])
def test_a_redirect_is_not_followed(status):
    with attacking(with_body("{}")) as thief, attacking(with_body("", status, f"Location: {thief.url}/")) as attacker:
        problem = problem_of(attacker)

        assert problem.startswith(f"it answers {status[:3]}, and no redirect is followed")
        assert "Authorization" in attacker.requests[0]
        assert thief.requests == []


@pytest.mark.parametrize(
    "start",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nX-Long:",
        b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n[",
        b"HTTP/1.1 200 OK\r\n\r\n[",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nfffff\r\n[",
    ],
    ids=["status", "headers", "body", "body without length", "chunk"],
)
@pytest.mark.parametrize("question", ["version", "queues"])
@pytest.mark.usefixtures("hurried")
def test_a_server_that_drips_bytes_meets_the_deadline(start, question):
    with attacking(dripping(start)) as attacker:
        begun = time.monotonic()

        assert problem_of(attacker, question) == "it did not answer within 0.6 s"
        assert time.monotonic() - begun < 5


@pytest.mark.usefixtures("hurried")
def test_a_server_that_says_continue_for_ever_meets_the_deadline():
    with attacking(endless(b"", b"HTTP/1.1 100 Continue\r\n\r\n")) as attacker:
        assert problem_of(attacker) == "it did not answer within 0.6 s"


@pytest.mark.parametrize(
    ("start", "more"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\n[", b"0," * 50_000),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n", b" " * 50_000),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"c350\r\n" + b" " * 50_000 + b"\r\n"),
    ],
    ids=["no length", "a length", "chunks"],
)
def test_an_endless_answer_is_cut(monkeypatch, start, more):
    monkeypatch.setattr(management_module, "LARGEST_ANSWER", 2**20)
    with attacking(endless(start, more)) as attacker:
        assert problem_of(attacker).startswith("its answer is longer than ")


@pytest.mark.parametrize(
    "answer",
    [
        f"{ESCAPE}\r\n\r\n",
        f"HTTP/1.1 {ESCAPE}\r\n\r\n",
        "HTTP/9.9 200 OK\r\n\r\n{}",
        "HTTP/1.1 99999 \r\n\r\n",
        "HTTP/1.1 200 OK\r\n" + "X: y\r\n" * 200 + "\r\n",
        "HTTP/1.1 200 OK\r\nX: " + "y" * 70_000 + "\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n[",
    ],
)
def test_what_is_not_http_is_said_in_our_own_words(answer):
    with attacking(saying(answer)) as attacker:
        assert "hacked" not in problem_of(attacker)


@pytest.mark.parametrize("status", [f"500 {ESCAPE}", f"401 {ESCAPE}", f"404 {ESCAPE}"])
def test_the_words_of_a_status_are_not_repeated(status):
    with attacking(with_body(ESCAPE, status)) as attacker:
        assert "hacked" not in problem_of(attacker)


@pytest.mark.parametrize("question", ["version", "queues", "bindings", "policies"])
@pytest.mark.parametrize(
    "body",
    [
        "", "null", "7", '"text"', "{", "[" * 100_000, "[NaN]", "[[1]]", "[null]", '[{"name": 5}]',
        f'["{ESCAPE}"]', '["\\ud800"]', "9" * 5_000, '{"rabbitmq_version": [1]}', '{"error": "x"}',
    ],
    ids=lambda body: repr(body[:20]),
)  # fmt: skip
def test_a_wrong_shape_is_one_sentence(question, body):
    with attacking(with_body(body)) as attacker:
        if question == "version" and body == '{"error": "x"}':
            assert attacker.api().version() == ""
            return

        assert problem_of(attacker, question).startswith("its answer to /api/")


def test_an_operator_policy_that_cannot_be_read_is_a_problem_and_one_that_is_hidden_is_none():
    answers = {"/api/policies": ("200 OK", "[]"), "/api/operator-policies": ("403 Forbidden", "")}

    def answer(attacker, sock):
        path = attacker.requests[-1].split()[1].removesuffix("/%2F")
        with_body(answers[path][1], answers[path][0])(attacker, sock)

    with attacking(answer) as attacker:
        assert attacker.api().policies().operator == ()
        answers["/api/operator-policies"] = ("500 Broken", "")
        assert problem_of(attacker, "policies") == "it answers 500"


def test_the_real_api_has_the_shapes_that_we_check(bench, kind, broker, management):
    if management is None:
        pytest.skip("no HTTP API")
    name = bench.queue("work", kind, x_max_length=5)
    exchange = f"{bench.prefix}.work.in"
    with bench.connect() as connection:
        channel = connection.default_channel
        channel.exchange_declare(exchange, "headers", durable=True, auto_delete=False)
        channel.queue_bind(name, exchange, "key", arguments={"x-match": "all", "n": 2**62, "deep": {"a": [1]}})
    management.call(
        "PUT",
        f"/policies/{management._vhost}/{bench.prefix}",
        {"pattern": f"^{bench.prefix}", "definition": {"max-length": 9}, "apply-to": "queues", "priority": 3},
    )
    api = management_of(bench.connection, broker.management_url)

    try:
        assert api.version()[0].isdigit()
        assert (api.queues()[name]["type"], api.queues()[name]["arguments"]["x-max-length"]) == (kind, 5)
        (binding,) = [it for it in api.bindings() if it.exchange == exchange]
        assert dict(binding.arguments) == {"x-match": "all", "n": 2**62, "deep": json.dumps({"a": [1]})}
        assert api.policies().of(name, kind)["definition"] == {"max-length": 9}
    finally:
        management.call("DELETE", f"/policies/{management._vhost}/{bench.prefix}")
        with bench.connect() as connection:
            connection.default_channel.exchange_delete(exchange)


# --- where the broker's credentials go ---


@pytest.mark.parametrize(
    ("broker_url", "named", "expected"),
    [
        ("amqp://u:p@rabbit:5673/shop", None, ("http://rabbit:15672", "u")),
        ("amqps://u:p@rabbit//", None, ("https://rabbit:15671", "u")),
        ("amqp://u:p@[::1]:5672//", None, ("http://[::1]:15672", "u")),
        ("amqps://u:p@rabbit//", "https://api", ("https://api", "u")),
        ("amqps://u:p@rabbit//", "http://m:w@api:1/x/", ("http://api:1/x", "m")),
        ("amqps://u:p@rabbit//", "http://localhost:15672", ("http://localhost:15672", "u")),
        ("amqp://u:p@rabbit//", "http://api", ("http://api", "u")),
    ],
)
def test_the_credentials_go_where_the_rule_says(broker_url, named, expected):
    found = management_of(Connection(broker_url), named)

    assert (found.url, found.user) == expected


@pytest.mark.parametrize("options", [{}, {"ssl": True}, {"ssl": {"cert_reqs": 0}}], ids=["amqps", "True", "options"])
def test_the_password_of_an_encrypted_broker_is_not_sent_in_clear_text(options):
    scheme = "amqp" if options else "amqps"
    connection = Connection(f"{scheme}://u:{SECRET}@rabbit//", **options)

    assert management_of(connection, None).url == "https://rabbit:15671"
    with pytest.raises(ClearTextManagementURL, match="http://rabbit:15672 is not encrypted") as caught:
        management_of(connection, "http://rabbit:15672")
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "u:{pw}@h", "http:/u:{pw}@h", "//u:{pw}@h", "http:///u:{pw}@h", "http://u:{pw}/x@h", "http://u:12/{pw}@h",
        "http://u:12#{pw}@h", "http://u:12?{pw}@h", "http://u:[{pw}@h", "http://u:{pw}", "ftp://u:{pw}@h",
        "http://u:{pw}@h:port", "http://u:{pw}@h ost", "http://:{pw}@h",
    ],
)  # fmt: skip
def test_of_a_management_url_that_cannot_be_read_nothing_is_shown(url):
    with pytest.raises(BadManagementURL) as caught:
        management_of(Connection("amqp://h"), url.format(pw=SECRET))

    assert SECRET not in repr(caught.value)
    assert caught.value.__context__ is None
