"""Plays the outside world, on two ports: ``python -m example_project.webshop.world``.

The bank is busy (429) when it is first asked for an order, the partner's webhook is down for a while, and the mail
server hangs up in the middle of each letter that it has not seen before. What got through is in ``seen``.
"""

import socketserver
import sys
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

DOWN_SECONDS = 6


class World:
    def __init__(self, down_seconds):
        self.seen = {kind: set() for kind in ("payments", "mails", "webhook", "thumbnails", "books")}
        self.put_off = set()
        self.up_at = time.monotonic() + down_seconds

    def is_put_off(self, what):
        """Once each."""
        is_new = what not in self.put_off
        self.put_off.add(what)
        return is_new

    def answer(self, kind, text):
        """The status of the answer, and after how many seconds to ask again."""
        if kind == "payments" and self.is_put_off((kind, text)):
            return 429, "4"
        if kind == "webhook" and time.monotonic() < self.up_at:
            return 503, None
        self.seen[kind].add(text.split()[0])  # the order
        return 201, None


@contextmanager
def running(port, host="127.0.0.1", *, down_seconds=DOWN_SECONDS):
    """Serve on this port and the next one until the block ends."""
    world = World(down_seconds)
    web = _WebServer((host, port), type("Web", (_Web,), {"world": world}))
    mail = _MailServer((host, port + 1), type("Mail", (_Mail,), {"world": world}))
    with web, mail:
        for server in (web, mail):
            threading.Thread(target=server.serve_forever, daemon=True).start()
        yield world
        for server in (web, mail):
            server.shutdown()


class _Patient:
    """With a worker that is killed in the middle of a request."""

    daemon_threads = True

    def handle_error(self, request, client_address):
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


class _WebServer(_Patient, ThreadingHTTPServer):
    pass


class _MailServer(_Patient, socketserver.ThreadingTCPServer):
    pass


class _Web(BaseHTTPRequestHandler):
    def do_POST(self):
        length = int(self.headers["Content-Length"])
        text = self.rfile.read(length).decode()
        if len(text) < length:
            raise ConnectionAbortedError
        status, wait = self.world.answer(self.path.strip("/"), text)
        self.send_response(status)
        if wait:
            self.send_header("Retry-After", wait)
        self.end_headers()

    def log_message(self, *_):
        pass


class _Mail(socketserver.StreamRequestHandler):
    def handle(self):
        self.say("220 at your service")
        for line in self.rfile:
            word = line.split()[0].upper() if line.split() else b""
            if word == b"DATA":
                self.say("354 go on")
                letter = b""
                while not letter.endswith(b"\r\n.\r\n"):
                    if not (line := self.rfile.readline()):
                        raise ConnectionAbortedError
                    letter += line
                order = letter.decode().partition("Subject: ")[2].split()[0]
                if self.world.is_put_off(("mails", order)):
                    return
                self.world.seen["mails"].add(order)
            self.say("221 bye" if word == b"QUIT" else "250 fine")
            if word == b"QUIT":
                return

    def say(self, line):
        self.wfile.write(f"{line}\r\n".encode())


if __name__ == "__main__":
    with running(8025, *sys.argv[1:]):
        threading.Event().wait()
