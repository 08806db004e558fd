"""Keeps one allocation as its order says. Driven by `tick`; never blocks; can be continued by the next agent."""

from __future__ import annotations

import logging
import math
import time
from abc import ABC, abstractmethod
from concurrent.futures import Future
from dataclasses import replace
from datetime import UTC, datetime
from enum import Enum, auto
from pathlib import Path
from typing import Any

from moorage.agent import processes, record
from moorage.agent.bundle import BadCode, unpack
from moorage.agent.environment import BadSecret
from moorage.agent.host import Host
from moorage.agent.names import WORK
from moorage.agent.processes import Ending, Seen
from moorage.agent.record import Record
from moorage.api.errors import Invalid, MoorageError, Unavailable
from moorage.api.values import Order, Task, TaskPhase, Want
from moorage.core.job import Evidence

log = logging.getLogger(__name__)

#: Seconds between two tries to fetch code from a broker that is away.
FETCH_AGAIN_S = 1.0


class Word(Enum):
    """What stands where there is no order."""

    #: The broker was not heard yet: go on, start nothing.
    UNHEARD = auto()
    #: The broker has no order for it: end it.
    GONE = auto()


Wanted = Order | Word


class Keeper(ABC):
    """One allocation on this node."""

    def __init__(self, host: Host, folder: Path, known: Record) -> None:
        self.host, self.folder, self.record = host, folder, known
        self._ending: Ending | None = None
        #: Why it ended, and whether that was this node's own failure.
        self._why = ""
        self._error = ""
        self._stop_at: float | None = None
        #: When the cloud takes the node. None: no firm notice.
        self._node_goes: datetime | None = None
        self._code: Future[Path] | None = None
        self._code_after = 0.0

    @property
    def over(self) -> bool:
        """Whether none of its processes is left, and how it ended is known."""
        return self.record.evidence is not None

    def task(self) -> Task:
        """As it is reported."""
        known = self.record
        phase = TaskPhase.RUNNING if self._runs() else TaskPhase.STARTING
        return Task(
            allocation=known.allocation,
            lease=known.lease,
            epoch=known.epoch,
            phase=TaskPhase.EXITED if self.over else phase,
            address=self._address(),
            driver=known.driver and self._has_driver(),
            evidence=known.evidence,
        )

    def tick(self, wanted: Wanted, notice: datetime | None) -> None:
        """One step towards what is wanted. `notice`: when the cloud takes the node."""
        if self.over:
            return
        self._node_goes = notice
        order = wanted if isinstance(wanted, Order) else None
        if _stopped(wanted):
            self._stop()
        elif self._ending is None:
            self._guarded(order)
        elif order is not None and order.want is Want.DRAIN:
            self._ending.hurry(time.monotonic() + seconds_until(order.drain_by))
        if self._ending is not None and self._ending.tick(time.monotonic()):
            self._settle()

    def _guarded(self, order: Order | None) -> None:
        """What this node cannot do is said as the agent's own error: another node may do better."""
        try:
            self._advance(order)
        except (BadCode, BadSecret, Invalid, MoorageError, OSError) as error:
            self._fail(str(error))

    @abstractmethod
    def _advance(self, order: Order | None) -> None:
        """Start, watch, drain. `order` None: none was heard yet."""

    @abstractmethod
    def _runs(self) -> bool:
        """Whether what was ordered is up."""

    @abstractmethod
    def _evidence(self) -> Evidence:
        """How it ended; asked once, when no process is left."""

    def _address(self) -> str | None:
        return None

    def _has_driver(self) -> bool:
        return False

    def _stop_grace(self) -> float:
        return self.host.config.stop_grace_s

    def _ask(self) -> None:  # noqa: B027 - nothing to ask is a good answer.
        """Ask its processes to end."""

    def _supervisor(self) -> int | None:
        return None

    def _clean(self, seen: list[Seen]) -> None:  # noqa: B027 - nothing is outside, unless said.
        """Remove what is outside the folder; `seen`: every process of the host."""

    def _family(self) -> list[Seen]:
        sessions = frozenset() if self.record.session is None else frozenset({self.record.session})
        return processes.family(processes.scan(), str(self.host.home), self.record.allocation, sessions)

    def _fail(self, error: str) -> None:
        log.error("%s: %s", self.record.allocation, error)
        self._error = error
        self._end(error)

    def _stop(self) -> None:
        """Its grace starts with the first word of it, however often that is repeated."""
        if self._stop_at is None:
            self._stop_at = time.monotonic() + self._stop_grace()
        self._end("stopped", seconds=self._stop_grace(), ask=True).hurry(self._stop_at)

    def _end(self, why: str, *, seconds: float = 0, ask: bool = False) -> Ending:
        """End its processes, killed after so many seconds (may be infinite). What began as another end stays that."""
        if self._ending is None:
            self._why = why
            self._ending = Ending(
                self._family,
                kill_at=time.monotonic() + seconds,
                ask=self._ask if ask else None,
                supervisor=self._supervisor,
            )
        return self._ending

    def _settle(self) -> None:
        self._clean(processes.scan())
        self._save(evidence=self._evidence())
        log.info("%s is over: %s", self.record.allocation, self._why)

    def _save(self, **changes: Any) -> None:
        self.record = replace(self.record, **changes)
        record.save(self.folder, self.record)

    def _unpacked(self, order: Order) -> Path | None:
        """The folder to run in, once the job's code is there. Raises `BadCode`, `MoorageError`, OSError."""
        if time.monotonic() < self._code_after:
            return None
        if self._code is None:
            digest = order.job.code if order.job is not None else None
            self._code = self.host.threads.submit(self._unpack, digest)
        if not self._code.done():
            return None
        try:
            return self._code.result()
        except Unavailable:
            self._code, self._code_after = None, time.monotonic() + FETCH_AGAIN_S
            return None

    def _unpack(self, digest: str | None) -> Path:
        work = self.folder / WORK
        if digest is not None:
            unpack(self.host.code.path(digest), work)
        work.mkdir(parents=True, exist_ok=True)
        return work


def seconds_until(at: datetime | None) -> float:
    """Never negative; infinite for None."""
    return math.inf if at is None else max(0.0, (at - datetime.now(UTC)).total_seconds())


def _stopped(wanted: Wanted) -> bool:
    return wanted is Word.GONE or (isinstance(wanted, Order) and wanted.want is Want.STOP)
