"""A TCP proxy that carries requests to the broker, and loses the first few replies."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit


class LosingProxy:
    """`lose` replies are thrown away after the broker has carried the request out; `seen` counts requests."""

    def __init__(self, target: str, lose: int) -> None:
        parts = urlsplit(target)
        self._target = (str(parts.hostname), int(parts.port or 80))
        self.lose = lose
        self.seen = 0
        self._listener = socket.socket()
        self._listener.bind(("127.0.0.1", 0))
        self._listener.listen()
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def close(self) -> None:
        # A shutdown wakes the accept; a close alone does not.
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(timeout=5)

    def _accept(self) -> None:
        while True:
            try:
                caller, _ = self._listener.accept()
            except OSError:
                return
            with caller:
                self._carry(caller)

    def _carry(self, caller: socket.socket) -> None:
        """One request and its reply on a connection of their own."""
        caller.settimeout(5)
        request = _whole(caller)
        self.seen += 1
        with socket.create_connection(self._target, timeout=5) as broker:
            broker.sendall(request.replace(b"onnection: keep-alive", b"onnection: close", 1))
            reply = b""
            while piece := broker.recv(65536):
                reply += piece
        if self.lose > 0:
            self.lose -= 1
            return
        caller.sendall(reply)


def _whole(caller: socket.socket) -> bytes:
    """A request's head and body."""
    found = b""
    while b"\r\n\r\n" not in found:
        found += caller.recv(65536)
    head, _, body = found.partition(b"\r\n\r\n")
    lines = (line.split(b":", 1) for line in head.lower().split(b"\r\n")[1:])
    length = next((int(value) for name, value in lines if name == b"content-length"), 0)
    while len(body) < length:
        body += caller.recv(65536)
    return head + b"\r\n\r\n" + body


@contextmanager
def losing(target: str, lose: int) -> Iterator[LosingProxy]:
    proxy = LosingProxy(target, lose)
    try:
        yield proxy
    finally:
        proxy.close()
