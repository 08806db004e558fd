"""A real broker behind its real web app on a free port, in this process: for tests."""

from __future__ import annotations

import socket
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from moorage.client import Client
from moorage.core.policy import Policy

#: Seconds for the server to start and to stop.
START_S = 20.0
STOP_S = 10.0


class ServedBroker:
    """``with ServedBroker(folder) as broker: broker.client.fleet()``.

    Args:
        folder: where its SQLite database is.
        policy: of a new database. None: the default.
    """

    def __init__(self, folder: Path, policy: Policy | None = None) -> None:
        self.folder = folder
        self._policy = policy
        self.url = ""
        #: An operator's.
        self.token = ""

    def __enter__(self) -> Self:
        from moorage.broker import Broker

        listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        database = f"sqlite:///{self.folder / 'moorage.db'}"
        self.broker = Broker.open(database, policy=self._policy, public_url=self.url)
        self.token = self.broker.first_token() or ""
        self.broker.start()
        self._serve(listener)
        self.client = Client(self.url, self.token)
        return self

    def _serve(self, listener: socket.socket) -> None:
        import uvicorn

        from moorage.web import bearer, create_app

        self._app = create_app(self.broker.acting, bearer(self.broker.authenticate), self.broker)
        config = uvicorn.Config(
            self._app, log_level="warning", access_log=False, timeout_graceful_shutdown=2, lifespan="on"
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [listener]}, daemon=True)
        self._thread.start()
        limit = time.monotonic() + START_S
        while not self._server.started:
            if time.monotonic() > limit or not self._thread.is_alive():
                raise TimeoutError(f"the web app did not start in {START_S} s")
            time.sleep(0.02)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.client.close()
        # Else it would wait for long polls until its patience ends.
        for server in self._server.servers:
            server.get_loop().call_soon_threadsafe(self._app.state.end_polls)
        self._server.should_exit = True
        self._thread.join(STOP_S)
        self.broker.close()
