"""A broker's side of `NodeApi` that says what a test tells it: orders by hand, outages by hand, reports remembered."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.managers import BaseManager
from pathlib import Path
from typing import Any

from moorage.api.errors import NotFound, Unavailable
from moorage.api.values import NodeReport, Order, Orders, Task


class ScriptedBroker:
    """Orders by node, a revision for all, logs by lease and epoch. May be used by several threads."""

    def __init__(self) -> None:
        self._lock = threading.Condition()
        self._orders: dict[str, tuple[Order, ...]] = {}
        self._revision = 1
        self._codes: dict[str, bytes] = {}
        self._logs: dict[tuple[str, int], bytearray] = {}
        self._away = False
        self.reports: dict[str, NodeReport] = {}
        #: Every report in order, without repeats.
        self.history: list[NodeReport] = []

    # What a test says.

    def say(self, node: str, *orders: Order) -> None:
        """From now on these are all orders of the node."""
        with self._lock:
            self._orders[node] = orders
            self._revision += 1
            self._lock.notify_all()

    def put_code(self, code: bytes) -> str:
        digest = hashlib.sha256(code).hexdigest()
        with self._lock:
            self._codes[digest] = code
        return digest

    def go_away(self) -> None:
        """Every call fails until `come_back`."""
        with self._lock:
            self._away = True
            self._lock.notify_all()

    def come_back(self) -> None:
        with self._lock:
            self._away = False

    def wait(self, node: str, done: Callable[[NodeReport], bool], timeout: float = 30.0) -> NodeReport:
        """The first report of the node for which `done` holds. Raises TimeoutError with the last one."""
        with self._lock:
            if not self._lock.wait_for(lambda: node in self.reports and done(self.reports[node]), timeout):
                raise TimeoutError(f"{node} did not report it in {timeout} s; last: {self.reports.get(node)}")
            return self.reports[node]

    def wait_task(self, node: str, allocation: str, done: Callable[[Task], bool], timeout: float = 30.0) -> Task:
        """The task, once it is reported and `done` holds for it."""
        report = self.wait(node, lambda r: any(t.allocation == allocation and done(t) for t in r.tasks), timeout)
        return next(task for task in report.tasks if task.allocation == allocation)

    def wait_gone(self, node: str, allocation: str, timeout: float = 30.0) -> None:
        self.wait(node, lambda r: all(t.allocation != allocation for t in r.tasks), timeout)

    def log(self, lease: str, epoch: int) -> str:
        with self._lock:
            return bytes(self._logs.get((lease, epoch), b"")).decode()

    # What an agent says.

    def report(self, report: NodeReport) -> Orders:
        with self._lock:
            self._here()
            if self.reports.get(report.node) != report:
                self.history.append(report)
            self.reports[report.node] = report
            self._lock.notify_all()
            return self._now(report.node)

    def orders(self, node: str, since: int, timeout: float) -> Orders:
        with self._lock:
            self._here()
            # Short, so that an agent that stops is not waited for.
            self._lock.wait_for(lambda: self._revision > since or self._away, min(timeout, 0.1))
            self._here()
            return self._now(node)

    def put_logs(self, node: str, lease: str, epoch: int, offset: int, text: bytes) -> int:  # noqa: ARG002
        with self._lock:
            self._here()
            kept = self._logs.setdefault((lease, epoch), bytearray())
            if offset <= len(kept):
                kept += text[len(kept) - offset :]
            return len(kept)

    def get_code(self, digest: str) -> bytes:
        with self._lock:
            self._here()
            if digest not in self._codes:
                raise NotFound(f"no code {digest[:12]}")
            return self._codes[digest]

    def _here(self) -> None:
        if self._away:
            raise Unavailable("the scripted broker is away")

    def _now(self, node: str) -> Orders:
        return Orders(revision=self._revision, orders=self._orders.get(node, ()))


class _Server(BaseManager):
    pass


class _Client(BaseManager):
    pass


_Client.register("broker")


class ScriptedServer:
    """Lets agents in other processes speak with a `ScriptedBroker` of this one."""

    def __init__(self, broker: ScriptedBroker) -> None:
        self._key = secrets.token_bytes(16)
        _Server.register("broker", callable=lambda: broker)
        self._server = _Server(("127.0.0.1", 0), self._key).get_server()
        address = self._server.address
        if not isinstance(address, tuple):
            raise TypeError(f"the manager listens at {address!r}, not on a port")
        self._port = address[1]
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def start(self, log: Path, **config: Any) -> subprocess.Popen[bytes]:
        """An agent process; `config`: the fields of `AgentConfig` as JSON has them. SIGTERM ends it, not its jobs."""
        said = {"port": self._port, "key": self._key.hex(), "config": config}
        with log.open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "moorage.testing.scripted"],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
            )
        if process.stdin is not None:
            process.stdin.write(json.dumps(said).encode())
            process.stdin.close()
        return process


def main() -> int:
    """One agent against the scripted broker that standard input names."""
    import logging

    from moorage.agent.config import AgentConfig
    from moorage.agent.run import serve

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    said = json.load(sys.stdin)
    manager = _Client(("127.0.0.1", said["port"]), bytes.fromhex(said["key"]))
    manager.connect()
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    threading.Thread(target=_stop_without, args=(os.getppid(), stop), daemon=True).start()
    config = said["config"] | {"state_dir": Path(said["config"]["state_dir"])}
    serve(AgentConfig(**config), manager.broker(), stop)  # type: ignore[attr-defined]
    return 0


def _stop_without(parent: int, stop: threading.Event) -> None:
    """A test that was killed leaves no agent behind."""
    while not stop.wait(1.0):
        if os.getppid() != parent:
            stop.set()


def wait_until(done: Callable[[], bool], timeout: float = 30.0, what: str = "it") -> None:
    """Poll until `done`. Raises TimeoutError that says `what` did not happen."""
    limit = time.monotonic() + timeout
    while not done():
        if time.monotonic() > limit:
            raise TimeoutError(f"{what} did not happen in {timeout} s")
        time.sleep(0.02)


if __name__ == "__main__":
    raise SystemExit(main())
