"""What `AirflowStandalone` does by itself, against a server of a few lines."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from moorage.testing.airflow import AirflowStandalone


class Server(ThreadingHTTPServer):
    """Gives out tokens, and knows only the newest of each user's."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.given: list[str] = []
        self.refuses = False

    def valid(self) -> set[str]:
        newest = {token.partition("-")[0]: token for token in self.given}
        return set() if self.refuses else {f"Bearer {token}" for token in newest.values()}


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self._answer(200 if self.headers["Authorization"] in self.server.valid() else 401, {})

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.given.append(f"{asked['username']}-{len(self.server.given)}")
        self._answer(201, {"access_token": self.server.given[-1]})

    def _answer(self, status: int, body: object) -> None:
        text = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield server
        server.shutdown()
        thread.join(10)


@pytest.fixture
def airflow(server: Server, tmp_path: Path) -> Iterator[AirflowStandalone]:
    airflow = AirflowStandalone(tmp_path / "home", tmp_path, port=server.server_port, users={"vi": "viewer"})
    yield airflow
    airflow.stop()


def test_one_token_per_user_until_it_is_refused(server: Server, airflow: AirflowStandalone) -> None:
    def ask(user: str | None) -> int:
        return airflow.call("GET", "/api/v2/dags", user=user).status_code

    assert [ask("admin"), ask("admin"), ask("vi"), ask("vi"), ask(None)] == [200, 200, 200, 200, 401]
    assert server.given == ["admin-0", "vi-1"]
    server.given.append("admin-elsewhere")
    assert [ask("vi"), ask("admin"), ask("admin")] == [200, 200, 200]
    assert server.given[3:] == ["admin-3"]


def test_a_new_token_that_is_refused_is_not_asked_for_again(server: Server, airflow: AirflowStandalone) -> None:
    server.refuses = True
    assert airflow.call("GET", "/api/v2/dags").status_code == 401
    assert len(server.given) == 1
