"""An app served by uvicorn on a free port, in a thread; and what tests show it as tokens."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import uvicorn
from fastapi import FastAPI

from moorage.api.auth import Principal, Role
from moorage.api.errors import Denied


@contextmanager
def served(app: FastAPI) -> Iterator[str]:
    """The address, once requests are answered."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(512)
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="on", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    until = time.monotonic() + 10
    while not server.started and time.monotonic() < until:
        time.sleep(0.005)
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(timeout=10)
        listener.close()


PEOPLE: Mapping[str, Principal] = {
    "viewer-token": Principal(name="vera", role=Role.VIEWER),
    "submitter-token": Principal(name="sam", role=Role.SUBMITTER, team="red"),
    "operator-token": Principal(name="olga", role=Role.OPERATOR),
    "agent-token": Principal(name="agent-n1", role=Role.AGENT, node="n1"),
    "trainer-token": Principal(name="trainer", role=Role.TRAINER, lease="l", epoch=1),
}


def who(secret: str) -> Principal:
    """Tests know their people by these tokens."""
    try:
        return PEOPLE[secret]
    except KeyError:
        raise Denied("this token is not known, or was revoked") from None
