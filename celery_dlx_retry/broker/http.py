"""One HTTP GET to a server that may be hostile: no redirects, a limited size, one deadline."""

from __future__ import annotations

import io
import socket
import time
from http.client import HTTPConnection, HTTPResponse
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    import ssl
    from collections.abc import Mapping

#: About the length of a list of 70,000 queues.
LARGEST_ANSWER = 32 * 2**20
OK = 200

_CONNECT_SECONDS = 5.0
_CHUNK = 2**16


class AnswerTooLong(Exception):
    """The body is longer than LARGEST_ANSWER."""


def get(  # noqa: PLR0913 - where, what, as whom, how long
    host: str, port: int, target: str, *, headers: Mapping[str, str], tls: ssl.SSLContext | None, seconds: float
) -> tuple[int, bytes]:
    """Return the status, and the body if the status is 200.

    Raise OSError, HTTPException, ValueError or AnswerTooLong. After ``seconds`` it raises TimeoutError, also if the
    server sends a byte now and then. Only the resolver of host names has its own limit.
    """
    connection = _Connection(host, port, tls=tls, deadline=_Deadline(seconds))
    try:
        connection.request("GET", target, headers=dict(headers))
        response = connection.getresponse()
        return response.status, _body(response) if response.status == OK else b""
    finally:
        connection.end()


def _body(response: HTTPResponse) -> bytes:
    body = bytearray()
    while chunk := response.read(_CHUNK):
        body += chunk
        if len(body) > LARGEST_ANSWER:
            raise AnswerTooLong
    return bytes(body)


class _Deadline:
    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    def left(self) -> float:
        if (left := self._end - time.monotonic()) <= 0:
            raise TimeoutError
        return left


class _Connection(HTTPConnection):
    """A connection of http.client whose reads and writes end at the deadline."""

    def __init__(self, host: str, port: int, *, tls: ssl.SSLContext | None, deadline: _Deadline) -> None:
        super().__init__(host, port)
        self._tls, self._deadline = tls, deadline
        self._open: socket.socket | None = None

    def connect(self) -> None:
        """Try each address of the host."""
        self._open = _connected(self.host, self.port, self._deadline)
        if self._tls is not None:
            self._open.settimeout(self._deadline.left())
            self._open = self._tls.wrap_socket(self._open, server_hostname=self.host)
        self.sock = cast("socket.socket", _TimedSocket(self._open, self._deadline))

    def end(self) -> None:
        """Close the socket; close() of the base class leaves it to the response."""
        self.close()
        if self._open is not None:
            self._open.close()


class _TimedSocket:
    """The part of a socket that http.client uses."""

    def __init__(self, sock: socket.socket, deadline: _Deadline) -> None:
        self._sock, self._deadline = sock, deadline

    def sendall(self, data: bytes) -> None:
        self._sock.settimeout(self._deadline.left())
        self._sock.sendall(data)

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(_TimedReader(self._sock, self._deadline))

    def close(self) -> None:
        """Do nothing: the response may still read."""


class _TimedReader(io.RawIOBase):
    def __init__(self, sock: socket.socket, deadline: _Deadline) -> None:
        super().__init__()
        self._sock, self._deadline = sock, deadline

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._sock.settimeout(self._deadline.left())
        return self._sock.recv_into(buffer)


def _connected(host: str, port: int, deadline: _Deadline) -> socket.socket:
    problem: OSError | None = None
    for family, kind, protocol, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        sock = socket.socket(family, kind, protocol)
        try:
            sock.settimeout(min(deadline.left(), _CONNECT_SECONDS))
            sock.connect(address)
        except OSError as exc:
            sock.close()
            problem = exc
        else:
            return sock
    raise problem or OSError("the host has no address")
