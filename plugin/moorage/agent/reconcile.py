"""Level-triggered: compares what should be with what is, as often as it likes, and makes the difference smaller."""

from __future__ import annotations

import logging
import shutil
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import assert_never

from moorage.agent import processes, record
from moorage.agent.board import Answer, Board
from moorage.agent.head import HeadKeeper
from moorage.agent.host import Host
from moorage.agent.keeper import Keeper, Wanted, Word
from moorage.agent.logs import Shipper
from moorage.agent.names import RECORD
from moorage.agent.process_keeper import ProcessKeeper
from moorage.agent.record import Record
from moorage.agent.worker import WorkerKeeper
from moorage.api.errors import Invalid
from moorage.api.values import Order, Task, TaskPhase, Want
from moorage.core.job import JobKind
from moorage.core.lease import AllocationRole

log = logging.getLogger(__name__)

#: Seconds between two looks for processes that no allocation owns.
SWEEP_S = 10.0
#: Seconds in which such processes must be gone before the first report.
FIRST_SWEEP_S = 10.0
#: Seconds that the end of a job may wait for the last of its log: whoever learns of the end wants to read why.
LAST_WORDS_S = 3.0


class Reconciler:
    """Owns the keepers. Used by one thread."""

    def __init__(self, host: Host, board: Board, shipper: Shipper) -> None:
        self._host, self._board, self._shipper = host, board, shipper
        self._folder = host.home / "allocations"
        self._keepers: dict[str, Keeper] = {}
        self._swept = time.monotonic()
        self._over_since: dict[str, float] = {}

    def adopt(self) -> None:
        """Find again what an earlier agent started, and end what has no record. Before anything is reported."""
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for folder in sorted(path for path in self._folder.iterdir() if path.is_dir()):
            self._adopt(folder)
        limit = time.monotonic() + FIRST_SWEEP_S
        while self._sweep() and time.monotonic() < limit:
            time.sleep(0.05)
        self._publish(None)

    def _adopt(self, folder: Path) -> None:
        try:
            known = record.load(folder)
        except Invalid as error:
            log.error("%s cannot be read, its processes are ended: %s", folder / RECORD, error)
            known = None
        if known is None:
            shutil.rmtree(folder, ignore_errors=True)
            return
        log.info("adopted %s", known.allocation)
        self._keepers[known.allocation] = _keeper(self._host, folder, known)

    def step(self) -> bool:
        """One pass; whether something is in motion and the next should come soon."""
        answer = self._board.answer()
        notice = self._board.notice
        deadline = notice.deadline if notice is not None else None
        if answer is not None:
            self._begin(answer)
        wanted = dict(self._wanted(answer))
        for allocation, keeper in self._keepers.items():
            keeper.tick(wanted[allocation], deadline)
        self._forget(wanted)
        if time.monotonic() - self._swept > SWEEP_S:
            self._sweep()
        self._publish(answer.revision if answer is not None else None)
        return any(not keeper.over or self._has_last_words(keeper) for keeper in self._keepers.values())

    def _begin(self, answer: Answer) -> None:
        for order in answer.orders:
            if order.want is Want.RUN and order.allocation not in self._keepers and not self._blocked(order):
                self._keepers[order.allocation] = _keeper(self._host, self._folder / order.allocation, _fresh(order))

    def _blocked(self, order: Order) -> bool:
        """Whether something must be gone first: an older attempt of the lease, or anything on the same GPUs."""
        return any(
            (known.lease == order.lease and known.epoch != order.epoch) or bool(set(known.gpus) & set(order.gpus))
            for known in (keeper.record for keeper in self._keepers.values() if not keeper.over)
        )

    def _wanted(self, answer: Answer | None) -> Iterator[tuple[str, Wanted]]:
        orders = {order.allocation: order for order in answer.orders} if answer is not None else {}
        for allocation, keeper in self._keepers.items():
            order = orders.get(allocation)
            if answer is None:
                yield allocation, Word.UNHEARD
            elif order is None or order.epoch != keeper.record.epoch:
                yield allocation, Word.GONE
            else:
                yield allocation, order

    def _forget(self, wanted: dict[str, Wanted]) -> None:
        confirmed = self._board.confirmed()
        over = [(allocation, keeper) for allocation, keeper in self._keepers.items() if keeper.over]
        for allocation, keeper in over:
            if _forgettable(wanted[allocation], keeper, allocation in confirmed):
                del self._keepers[allocation]
                self._over_since.pop(allocation, None)
                self._put_away(keeper)

    def _put_away(self, keeper: Keeper) -> None:
        if _logs(keeper):
            self._shipper.retire(keeper.record.allocation)
        else:
            shutil.rmtree(keeper.folder, ignore_errors=True)

    def _publish(self, seen: int | None) -> None:
        for allocation, keeper in self._keepers.items():
            if _logs(keeper):
                self._shipper.track(allocation, keeper.folder, keeper.record.lease, keeper.record.epoch)
        self._board.publish(tuple(self._told(keeper) for keeper in self._keepers.values()), seen)

    def _told(self, keeper: Keeper) -> Task:
        task = keeper.task()
        return replace(task, phase=TaskPhase.RUNNING, evidence=None) if self._has_last_words(keeper) else task

    def _has_last_words(self, keeper: Keeper) -> bool:
        """Whether it is over and the end of its log is still on the way; for so long it is reported running."""
        if not keeper.over or not _logs(keeper) or self._shipper.shipped(keeper.record.allocation):
            return False
        since = self._over_since.setdefault(keeper.record.allocation, time.monotonic())
        return time.monotonic() - since < LAST_WORDS_S

    def _sweep(self) -> bool:
        """End what carries this agent's marks and no allocation owns; whether there was something."""
        self._swept = time.monotonic()
        seen = processes.scan()
        home = str(self._host.home)
        orphans = processes.allocations(seen, home) - set(self._keepers)
        for allocation in sorted(orphans):
            log.warning("ending processes of %s: no order owns them", allocation)
            processes.send(processes.family(seen, home, allocation), signal.SIGKILL)
        return bool(orphans)


def _fresh(order: Order) -> Record:
    return Record(
        allocation=order.allocation,
        lease=order.lease,
        epoch=order.epoch,
        role=order.role,
        kind=order.job.kind if order.job is not None else JobKind.PROCESS,
        gpus=order.gpus,
    )


def _keeper(host: Host, folder: Path, known: Record) -> Keeper:
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    match known.role:
        case AllocationRole.PROCESS:
            return ProcessKeeper(host, folder, known)
        case AllocationRole.HEAD:
            return HeadKeeper(host, folder, known)
        case AllocationRole.WORKER:
            return WorkerKeeper(host, folder, known)
        case _:
            assert_never(known.role)


def _logs(keeper: Keeper) -> bool:
    """Whether it has the job's log: of a ray job only the head has."""
    return keeper.record.role is not AllocationRole.WORKER


def _forgettable(wanted: Wanted, keeper: Keeper, confirmed: bool) -> bool:
    """Whether what is over need not be reported any more.

    The end of a job is evidence, and said once at least. Of a raylet that was told to stop, being gone says all.
    """
    match wanted:
        case Word.UNHEARD:
            return False
        case Word.GONE:
            return True
        case Order(want=Want.RUN):
            return False
        case Order(want=Want.STOP) if not _logs(keeper):
            return True
        case Order():
            return confirmed
        case _:
            assert_never(wanted)
