"""URLs with passwords, right and slightly wrong, and an HTTP API that answers anything: no password is ever shown."""

from __future__ import annotations

import json
import logging
import socket
import subprocess
import sys
import threading
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import pytest
from celery import Celery
from click.testing import CliRunner

from celery_dlx_retry.cli import dlx
from tests.fuzz import values
from tests.fuzz.values import SECRET
from tests.fuzz.verdict import check_ended, check_json, check_text

COMMANDS = (
    ("status",), ("doctor",), ("plan",), ("check",), ("declare",), ("policy",), ("permissions",), ("dead", "list"),
    ("dead", "groups"), ("dead", "show", "x"), ("dead", "replay", "--all", "--yes"),
    ("dead", "purge", "--all", "--yes"),
    ("dead", "edit", "x", "--undo", "--yes"), ("waiting", "list"), ("waiting", "run", "x"), ("prune", "--dry-run"),
)  # fmt: skip
PROCESSES = 4
#: No name that a resolver would look for, and no port at which anything answers.
HOSTS = ("127.0.0.1:1", "127.0.0.1:1", "[::1]:1", "127.0.0.1:99999", "127.0.0.1:x", "127.0.0.1:", ":1", "[::1", "")
PASSWORDS = (
    SECRET, f"{SECRET}/x", f"x/{SECRET}", f"{SECRET}@x", f"{SECRET}#x", f"{SECRET}?x", f"{SECRET}:x", f"%{SECRET}",
    f"%zz{SECRET}", f"{SECRET} x", f"{SECRET}[", f"{SECRET}]", f"{SECRET};x", f"{SECRET}\\", f"ä{SECRET}", f"{SECRET}%",
)  # fmt: skip
SCHEMES = (
    "amqp://", "amqps://", "pyamqp://", "amqp:/", "amqp:", "//", "", "AMQP://", "amq://", "http://", "redis://",
    "amqp+ssl://", "amqp:///", " amqp://", "amqp ://", "qpid://", "sqs://", "://", "confluentkafka://",
)  # fmt: skip
VHOSTS = ("", "/", "//", "/shop", "/%2F", "/a/b", "?ssl=1", "/?heartbeat=x", "/#x")


def url(it):
    """A broker's URL with the secret in it."""
    scheme = it.choice(SCHEMES) if it.is_one_in(2) else "amqp://"
    return f"{scheme}{it.choice(['shop', '', 'ä', 'a:b'])}:{it.choice(PASSWORDS)}@{it.choice(HOSTS)}{it.choice(VHOSTS)}"


def failover(it):
    good = "amqp://shop:x@127.0.0.1:1//"
    both = [good, url(it)] if it.is_one_in(2) else [url(it), url(it)]
    it.shuffle(both)
    return it.choice([";".join(both), both])


@contextmanager
def heard():
    """All that is logged meanwhile, whoever logs it."""
    lines = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(handler.format(record))
    logging.getLogger().addHandler(handler)
    try:
        yield lines
    finally:
        logging.getLogger().removeHandler(handler)


def run(app, words, **environment):
    with heard() as logged:
        done = CliRunner().invoke(
            dlx, list(words), obj=SimpleNamespace(app=app), env={"DLX_MANAGEMENT_URL": None, **environment}
        )
    check_ended(done)
    check_text("\n".join(logged))
    return done


def test_no_command_shows_a_password_of_a_broker_url(fuzz):
    def attempt(it):
        where = failover(it) if it.is_one_in(4) else url(it)
        words = it.choice(COMMANDS)
        setting = it.choice(["broker_url", "broker_url", "broker_read_url", "broker_write_url"])
        it.note(f"{setting} = {where!r}; celery dlx {' '.join(words)}")
        conf = {"broker_url": "amqp://shop:x@127.0.0.1:1//", setting: where}
        conf |= {"broker_connection_timeout": 0.5, "broker_transport_options": {"max_retries": 1}}
        app = Celery("fuzz", config_source=conf, set_as_current=False)
        try:
            run(app, words)
        finally:
            app.close()

    fuzz.each("urls", attempt)


@pytest.mark.parametrize("number", range(PROCESSES))
def test_no_process_shows_a_password_of_a_broker_url(fuzz, number, tmp_path):
    """As an operator starts it: Celery's own command line prints and logs as well."""
    (it,) = (one for one in fuzz.inputs("urls") if one.number == number + 1) if not fuzz.only else (None,)
    if it is None:
        return
    where, words = url(it), it.choice(COMMANDS[:5])
    it.note(f"celery -b {where!r} dlx {words}")
    with fuzz.judging(it, seconds=60):
        done = subprocess.run(
            [sys.executable, "-m", "celery", "-b", where, "dlx", *words],
            capture_output=True, text=True, check=False, timeout=60, cwd=tmp_path,
        )  # fmt: skip
        assert "Traceback (most recent" not in done.stderr, done.stderr[-800:]
        assert done.returncode in {0, 1, 2}
        check_text(done.stdout + done.stderr)
    fuzz.report()


class Answers:
    """An HTTP API that answers what an input makes of it."""

    def __init__(self):
        self.it = None
        self.asked = 0
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                outer.asked += 1
                with suppress(OSError):
                    outer.answer(self)

            def log_message(self, *_):
                """Nothing: a test is not its log."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def answer(self, handler):
        it = self.it
        if it.is_one_in(12):
            raw = it.choice(
                [b"", b"HTTP", b"HTTP/1.1 abc\r\n\r\n", b"\x00\x01\x02",
                 b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n{}",
                 b"HTTP/1.1 200 " + b"x" * 70_000,
                 b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"]
            )  # fmt: skip
            handler.wfile.write(raw)
            handler.close_connection = True
            handler.connection.shutdown(socket.SHUT_RDWR)
            return
        code = it.choice([200] * 8 + [204, 301, 302, 307, 401, 403, 404, 500, 503])
        body = self._body(handler.path).encode("utf-8", "surrogatepass")
        handler.send_response(code, it.choice(["OK", "\x1b[31m", "x" * 500]))
        if code in {301, 302, 307}:
            handler.send_header("Location", f"http://127.0.0.1:{self.port}/elsewhere")
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        if code != 204:  # it has no body
            handler.wfile.write(body)

    def _body(self, path):
        it = self.it
        if path.startswith("/api/overview") and not it.is_one_in(6):
            return json.dumps({"rabbitmq_version": "4.0.0"})
        sound = {
            "/api/queues": {"name": "orders", "type": "classic", "durable": True, "arguments": {}, "messages": 1,
                            "messages_ready": 1, "messages_unacknowledged": 0, "consumers": 0, "policy": "x"},
            "/api/bindings": {"source": "dlx.v1.dead", "destination": "orders.dead", "destination_type": "queue",
                              "routing_key": "orders", "arguments": {}},
            "/api/policies": {"name": "p", "pattern": ".*", "definition": {}, "priority": 0, "apply-to": "all"},
        }  # fmt: skip
        row = dict(next((it for start, it in sound.items() if path.startswith(start)), {"name": "x"}))
        for _ in range(it.randrange(3)):
            key = it.choice(sorted(row) or ["name"])
            if it.is_one_in(4):
                row.pop(key, None)
            else:
                row[key] = json_value(it)
        answer = it.one(
            lambda _: [row], lambda _: [row, json_value(it)], lambda _: row, json_value, lambda _: [row] * 50
        )
        text = json.dumps(answer)
        return it.one(*[text] * 8, text[:-1], "", "[" * 100_000, "NaN", "\ud800")

    def close(self):
        self._server.shutdown()
        self._server.server_close()


def json_value(it):
    return it.one(lambda it: it.choice([None, True, False]),
        values.number, lambda it: values.text(it, surrogates=True), lambda it: it.choice(values.HUGE),
        lambda it: [values.text(it)], lambda it: {values.text(it): values.text(it)}, {}, [], [[]],
    )  # fmt: skip


@pytest.fixture
def answers():
    it = Answers()
    yield it
    it.close()


def test_no_answer_of_an_http_api_ends_in_a_traceback_or_shows_a_password(fuzz, house, answers):
    def attempt(it):
        answers.it = it
        address = f"127.0.0.1:{answers.port}"
        named = it.one(
            *[lambda _: f"http://monitor:{SECRET}@{address}"] * 5,
            lambda it: f"http://monitor:{it.choice(PASSWORDS)}@{address}",
            lambda it: f"{it.choice(SCHEMES)}monitor:{it.choice(PASSWORDS)}@{it.choice(HOSTS)}",
        )
        words = [*it.choice([each for each in COMMANDS if each not in (("plan",), ("declare",), ("permissions",))])]
        words += ["--json"] if it.is_one_in(2) else []
        it.note(f"celery dlx {words}, DLX_MANAGEMENT_URL={named!r}")
        done = house.checked(*words, DLX_MANAGEMENT_URL=named)
        if "--json" in words and done.exit_code == 0:
            check_json(done.stdout)

    fuzz.each("management", attempt)
