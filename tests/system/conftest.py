"""Broker and agents as real processes, for tests that kill them."""

from __future__ import annotations

import contextlib
import io
import json
import signal
import sqlite3
import time
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import pytest
from rich.console import Console

from moorage.agent import NODE_MARK
from moorage.agent.names import ALLOCATION_MARK, HOME_MARK
from moorage.api.ids import new_id
from moorage.api.values import Event, EventKind, LeaseView, Submission
from moorage.cli.demo import services
from moorage.cli.demo.guard import carries, sweep
from moorage.cli.demo.parts import Part, Parts
from moorage.cli.demo.screen import Screen
from moorage.client import Client
from moorage.core.job import DoneWhen, Job, JobKind
from moorage.core.lease import AllocationRole, LeaseState
from moorage.core.request import CapacityType, Request, Topology

ROOT = Path(__file__).parents[2]
JOBS = ROOT / "ray_jobs"


def eventually(true: Callable[[], Any], limit_s: float, what: str) -> Any:
    """The first true answer. Fails the test after `limit_s` seconds."""
    until = time.monotonic() + limit_s
    while not (answer := true()):
        assert time.monotonic() < until, f"not within {limit_s:.0f} s: {what}"
        time.sleep(0.2)
    return answer


@dataclass
class Fleet:
    """Four agents of four fake GPUs each, and their broker."""

    parts: Parts
    work: Path
    broker_part: Part
    broker: services.Broker
    client: Client

    #: Waits for a true answer, with a limit in seconds and words for the failure.
    eventually = staticmethod(eventually)

    def part(self, name: str) -> Part:
        return [part for part in self.parts.parts if part.name == name][-1]

    def kill(self, part: Part) -> None:
        """kill -9 of the part's own process: what it started lives on."""
        assert part.process is not None
        part.expendable = True
        part.process.kill()
        part.process.wait(timeout=10)

    def restart(self, part: Part) -> Part:
        """The same command again."""
        return self.parts.start(Part(part.name, part.argv, part.log, part.healthy, part.env, part.limit_s))

    def train(
        self,
        *args: str,
        workers: tuple[int, int] = (1, 4),
        name: str = "train",
        script: str = "train_digits.py",
        more: Mapping[str, str] | None = None,
    ) -> LeaseView:
        """Submit the example training job; or another `script`, whose text is in `more` (file name -> text)."""
        code = self.client.put_code(zipped(JOBS, more or {}))
        job = Job(
            kind=JobKind.RAY,
            entrypoint=("python", script, *args),
            code=code,
            done_when=DoneWhen.MARKER,
            max_retries=0,
        )
        request = Request(workers=workers, capacity=CapacityType.SPOT, topology=Topology(preferred="rack"))
        return self.client.submit(Submission(owner={"test": name}, request=request, job=job, client_id=new_id()))

    def get(self, lease: str) -> LeaseView:
        return self.client.get(lease)

    def wait_for_step(self, lease: str, step: int, limit_s: float = 180) -> LeaseView:
        def reached() -> LeaseView | None:
            view = self.get(lease)
            assert view.lease.state is not LeaseState.ENDED, view.lease.reason
            progress = view.lease.progress
            return view if progress and (progress.step or 0) >= step else None

        found: LeaseView = eventually(reached, limit_s, f"step {step}: {self.get(lease).lease.reason}")
        return found

    def wait_until_ended(self, lease: str, limit_s: float = 300) -> LeaseView:
        def over() -> LeaseView | None:
            view = self.get(lease)
            return view if view.lease.state is LeaseState.ENDED else None

        found: LeaseView = eventually(over, limit_s, f"the end: {self.get(lease).lease}")
        return found

    def node_of(self, view: LeaseView, role: AllocationRole) -> str:
        return next(a.node for a in view.lease.live if a.role is role)

    def processes(self, node: str, words: str) -> list[psutil.Process]:
        """Processes that the node's agent started whose command line contains `words`."""
        return [
            process
            for process in psutil.process_iter(["cmdline"])
            if words in " ".join(process.info["cmdline"] or ()) and carries(process, NODE_MARK, node)
        ]

    def processes_of(self, lease: str, words: str) -> list[psutil.Process]:
        """Processes of one lease, on whatever node, whose command line contains `words`."""
        return [
            process
            for process in psutil.process_iter(["cmdline"])
            if words in " ".join(process.info["cmdline"] or ())
            and mark_of(process, ALLOCATION_MARK).rpartition(".")[0] == lease
        ]

    def journal(self, lease: str, *kinds: EventKind) -> list[Event]:
        """All rows of these kinds about a lease, oldest first."""
        told: list[Event] = []
        while page := self.client.events(told[-1].seq if told else 0, lease=lease):
            told.extend(page)
        return [event for event in told if event.kind in kinds]

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        with sqlite3.connect(f"file:{self.broker.database}?mode=ro", uri=True, timeout=10) as connection:
            return connection.execute(query).fetchall()

    def assert_nothing_leaked(self, limit_s: float = 60) -> None:
        """No allocation holds a GPU, no process of a lease runs, and no GPU was ever held twice."""
        eventually(lambda: not self.rows("SELECT * FROM gpu_hold"), limit_s, "all GPUs free")
        assert self.rows("SELECT id FROM allocation WHERE state <> 'freed'") == []
        eventually(lambda: not [*left_over(self.work)], limit_s, f"none left of {shown(left_over(self.work))}")
        self.assert_never_granted_twice()

    def assert_never_granted_twice(self) -> None:
        held: dict[tuple[str, int], list[tuple[str, str]]] = {}
        for (body,) in self.rows("SELECT body FROM segment"):
            segment = json.loads(body)
            for gpu in segment["gpus"]:
                held.setdefault((segment["node"], gpu), []).append((segment["start"], segment["end"] or "9999"))
        for intervals in held.values():
            ordered = sorted(intervals)
            assert all(one[1] <= two[0] for one, two in pairwise(ordered)), ordered


def left_over(work: Path) -> Iterator[psutil.Process]:
    """Living processes that some agent of this fleet started."""
    for process in psutil.process_iter(["status"]):
        if process.info["status"] != psutil.STATUS_ZOMBIE and mark_of(process, HOME_MARK).startswith(f"{work}/"):
            yield process


def shown(processes: Iterable[psutil.Process]) -> list[str]:
    """Their command lines, shortened."""
    found = []
    for process in processes:
        with contextlib.suppress(psutil.Error):
            found.append(" ".join(process.cmdline())[:120])
    return found


def mark_of(process: psutil.Process, name: str) -> str:
    """What an agent marked the process with; "" if nothing, or if that cannot be read."""
    try:
        return str(process.environ().get(name, ""))
    except (psutil.Error, OSError):
        return ""


def zipped(folder: Path, more: Mapping[str, str] | None = None) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for path in sorted(folder.glob("*.py")):
            archive.write(path, path.name)
        for name, text in (more or {}).items():
            archive.writestr(name, text)
    return buffer.getvalue()


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    mark = new_id()
    parts = Parts(mark, Screen(Console(stderr=True)))
    try:
        part, broker = services.start_broker(parts, tmp_path)
        parts.wait_healthy(part)
        parts.wait_healthy(*services.start_agents(parts, tmp_path, broker, None))
        with broker.client(retry_for=60) as client:
            yield Fleet(parts, tmp_path, part, broker, client)
    finally:
        for part in parts.parts:
            if part.process is not None and part.process.poll() is None:
                part.process.send_signal(signal.SIGKILL)
        sweep(mark, below=False)
        # What agents started has their mark, not the test's: a test that failed leaves it.
        for process in left_over(tmp_path):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
