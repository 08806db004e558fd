"""A broker with a large fleet under renewals: latency, and what a kill -9 and minutes of absence cost.

The real server process over HTTP on SQLite. Beside it, in the same run and folder: `bare_commit`, one-row commits to
SQLite with the broker's settings, and `bare_http`, the server's health page: neither can be beaten.
"""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Self

import httpx
from rich.console import Console

from moorage.api.auth import Principal, Role
from moorage.api.errors import MoorageError
from moorage.api.ids import new_id
from moorage.api.values import EventKind, NodeReport, Submission, Task, TaskPhase
from moorage.bench.result import Row, percentile
from moorage.broker import Broker
from moorage.client import Client
from moorage.core.fleet import Gpu
from moorage.core.job import Job, Phase, Progress
from moorage.core.lease import LeaseState
from moorage.core.policy import Policy
from moorage.core.request import Request

OPERATOR = Principal(name="bench", role=Role.OPERATOR)
GPUS = 8
#: Model of the nodes that the queue waits for: all of them are held.
WANTED = "H200"


@dataclass(frozen=True)
class Size:
    """How large, how fast, how long."""

    nodes: int
    queued: int
    #: Running leases; each renews once a second.
    running: int
    steady_s: float
    away_s: float

    @property
    def work(self) -> str:
        return f"{self.nodes} nodes, {self.queued} queued, {self.running} renews/s"


FULL = Size(nodes=10_000, queued=1_000, running=200, steady_s=60, away_s=300)
QUICK = Size(nodes=200, queued=50, running=20, steady_s=5, away_s=5)


@dataclass(frozen=True)
class Attempt:
    """A running lease, and the token that may renew it."""

    lease: str
    epoch: int
    token: str


@dataclass
class Load:
    """What the renewing threads saw. Seconds."""

    latencies: list[float] = field(default_factory=list)
    refused: int = 0


def run(size: Size, console: Console) -> list[Row]:
    """Seed, serve, load, kill, wait, serve again, count what was lost."""
    with tempfile.TemporaryDirectory(prefix="moorage-bench-") as folder:
        work = Path(folder)
        database = f"sqlite:///{work / 'moorage.db'}"
        console.print(f"seeding {size.work}")
        attempts, token = seed(size, database)
        with Server(database, work) as server:
            console.print(f"{size.steady_s:.0f} s of renewals")
            steady = load(server.url, attempts, size.steady_s)
            rows = [*latency_rows(size, "renew", steady.latencies), *bound_rows(size, server.url, work)]
            before = epochs(server.url, token)
            console.print(f"kill -9, away for {size.away_s:.0f} s")
            server.kill()
            time.sleep(size.away_s)
            back_s = server.start()
            after = load(server.url, attempts, size.steady_s)
            rows += outage_rows(size, server.url, token, before, after, back_s)
        return rows


def policy() -> Policy:
    """Nobody reports for 10,000 nodes here, so silence of nodes must not end the bench."""
    return Policy(node_stale_s=86_400, node_lost_s=86_400, owner_grace_s=86_400, start_s=86_400)


def seed(size: Size, database: str) -> tuple[list[Attempt], str]:
    """Fill a database through the broker itself. Returns the running attempts and an operator's token."""
    broker = Broker.open(database, policy=policy(), public_url="http://127.0.0.1:9")
    broker.start()
    try:
        token = broker.first_token() or ""
        for number in range(size.nodes):
            report(broker, number, size)
        ops = broker.acting(OPERATOR)
        wanted = [ops.submit(submission(i, GPUS, WANTED if i % 2 == 0 else None)).lease.id for i in range(size.running)]
        wait_until(lambda: all(ops.get(lease).lease.state.active for lease in wanted), 120)
        for i in range(size.queued):
            ops.submit(submission(size.running + i, GPUS, WANTED))
        return [attempt(broker, ops.get(lease).lease.id, size) for lease in wanted], token
    finally:
        broker.close()


def report(broker: Broker, number: int, size: Size, tasks: tuple[Task, ...] = ()) -> None:
    """One agent's report. Half of the running leases hold all the nodes of the wanted model."""
    model = WANTED if number < (size.running + 1) // 2 else "A100"
    name = f"n{number:05d}"
    broker.acting(Principal(name=name, role=Role.AGENT, node=name)).report(
        NodeReport(
            node=name,
            incarnation="1",
            version="bench",
            gpus=tuple(Gpu(index=i, uuid=f"{name}-{i}", model=model, healthy=True) for i in range(GPUS)),
            cpus=64,
            memory=1 << 39,
            labels={"moorage.io/rack": f"r{number // 16:04d}"},
            tasks=tasks,
        )
    )


def submission(number: int, gpus: int, model: str | None) -> Submission:
    """One whole node for a process job."""
    return Submission(
        owner={"bench": str(number)},
        request=Request(gpus_per_worker=gpus, models=(model,) if model else ("A100",)),
        job=Job(entrypoint=("true",)),
        client_id=new_id(),
    )


def attempt(broker: Broker, lease_id: str, size: Size) -> Attempt:
    """Play the agent: report the allocation running, and take the trainer's token from its order."""
    lease = broker.acting(OPERATOR).get(lease_id).lease
    held = lease.live[0]
    task = Task(allocation=held.id, lease=lease.id, epoch=lease.epoch, phase=TaskPhase.RUNNING)
    report(broker, int(held.node[1:]), size, (task,))
    agent = broker.acting(Principal(name=held.node, role=Role.AGENT, node=held.node))
    (order,) = agent.orders(held.node, 0, 0).orders
    return Attempt(lease.id, lease.epoch, order.env["MOORAGE_TOKEN"])


class Server:
    """``moorage serve`` as its own process."""

    def __init__(self, database: str, work: Path) -> None:
        self._database = database
        self._work = work
        self._process: subprocess.Popen[bytes] | None = None
        self.url = ""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> float:
        """Seconds until requests are answered."""
        began = time.monotonic()
        url_file = self._work / "url"
        url_file.unlink(missing_ok=True)
        argv = [
            sys.executable,
            "-m",
            "moorage.cli",
            "serve",
            f"--database={self._database}",
            "--port=0",
            f"--url-file={url_file}",
        ]
        with (self._work / "serve.log").open("ab") as log:
            self._process = subprocess.Popen(argv, stdout=log, stderr=log)
        wait_until(url_file.is_file, 120)
        self.url = url_file.read_text().strip()
        return time.monotonic() - began

    def kill(self) -> None:
        """kill -9."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(timeout=30)


def load(url: str, attempts: Sequence[Attempt], seconds: float, threads: int = 4) -> Load:
    """Every attempt renews once a second, from a few threads."""
    seen = Load()
    shares = [attempts[i::threads] for i in range(threads)]
    until = time.monotonic() + seconds
    workers = [threading.Thread(target=_renew, args=(url, share, until, seen)) for share in shares if share]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(timeout=seconds + 60)
    return seen


def _renew(url: str, share: Sequence[Attempt], until: float, seen: Load) -> None:
    clients = [Client(url, attempt.token, timeout=10, retry_for=0) for attempt in share]
    step, due = 0, time.monotonic()
    while time.monotonic() < until:
        step += 1
        for attempt, client in zip(share, clients, strict=True):
            due += 1 / len(share)
            time.sleep(max(0.0, due - time.monotonic()))
            _once(client, attempt, step, seen)
    for client in clients:
        client.close()


def _once(client: Client, attempt: Attempt, step: int, seen: Load) -> None:
    progress = Progress(
        phase=Phase.TRAINING, step=step, samples_done=64 * step, samples_total=10**9, loss=1.0, workers=1
    )
    began = time.monotonic()
    try:
        client.renew(attempt.lease, attempt.epoch, progress)
    except MoorageError:
        seen.refused += 1
    else:
        seen.latencies.append(time.monotonic() - began)


def latency_rows(size: Size, what: str, seconds: Sequence[float]) -> list[Row]:
    """p50, p99 and the largest, in ms."""
    marks = {"p50": 0.5, "p99": 0.99, "max": 1.0}
    return [
        Row(
            work=size.work,
            system="moorage",
            metric=f"{what}_{name}",
            value=1000 * percentile(seconds, share),
            unit="ms",
            n=len(seconds),
        )
        for name, share in marks.items()
    ]


def bound_rows(size: Size, url: str, work: Path, n: int = 500) -> list[Row]:
    """What the database and the server cost without Moorage between them."""
    rows = []
    with httpx.Client(base_url=url) as http:
        samples = {"bare_http": timed(lambda: http.get("/healthz"), n)}
    with sqlite3.connect(work / "bare.db", isolation_level=None) as bare:
        bare.execute("PRAGMA journal_mode=WAL")
        bare.execute("CREATE TABLE row (id INTEGER PRIMARY KEY, body TEXT)")
        samples["bare_commit"] = timed(lambda: bare.execute("INSERT INTO row (body) VALUES (?)", ("x" * 1000,)), n)
    for system, seconds in samples.items():
        for name, share in (("p50", 0.5), ("p99", 0.99)):
            value = 1000 * percentile(seconds, share)
            rows.append(Row(work=size.work, system=system, metric=name, value=value, unit="ms", n=n))
    return rows


def timed(call: Callable[[], object], n: int) -> list[float]:
    """Seconds of each of `n` calls."""
    seconds = []
    for _ in range(n):
        began = time.monotonic()
        call()
        seconds.append(time.monotonic() - began)
    return seconds


def epochs(url: str, token: str) -> dict[str, int]:
    """Epoch of every live lease."""
    with Client(url, token, timeout=60) as client:
        return {view.lease.id: view.lease.epoch for view in client.find({}, live=True, limit=100_000)}


def outage_rows(size: Size, url: str, token: str, before: dict[str, int], after: Load, back_s: float) -> list[Row]:
    """Leases that were retried, lost or ended by the outage: 0 is right; and how long the way back took."""
    with Client(url, token, timeout=60) as client:
        now = {view.lease.id: view.lease for view in client.find({}, live=True, limit=100_000)}
        retried = [event for event in client.events(0, limit=100_000) if event.kind is EventKind.RETRIED]
    changed = [lease for lease, epoch in before.items() if lease not in now or now[lease].epoch != epoch]
    queued = sum(lease.state is LeaseState.QUEUED for lease in now.values())
    figures = {
        "leases_changed_by_outage": (len(changed), "leases"),
        "retries": (len(retried), "retries"),
        "queued_after": (queued, "leases"),
        "renews_refused_after": (after.refused, "renews"),
        "restart": (back_s, "s"),
    }
    rows = [
        Row(work=size.work, system="moorage", metric=name, value=value, unit=unit)
        for name, (value, unit) in figures.items()
    ]
    return [*rows, *latency_rows(size, "renew_after", after.latencies)]


def wait_until(true: Callable[[], bool], limit_s: float) -> None:
    """Poll until it holds. Raises `TimeoutError`."""
    until = datetime.now(UTC) + timedelta(seconds=limit_s)
    while not true():
        if datetime.now(UTC) > until:
            raise TimeoutError(f"not within {limit_s:.0f} s")
        time.sleep(0.1)
