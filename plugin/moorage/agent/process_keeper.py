"""A process job: one supervised process with the leased devices."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from moorage.agent import environment
from moorage.agent.host import Host
from moorage.agent.keeper import Keeper, seconds_until
from moorage.agent.record import Record
from moorage.agent.supervised import Supervised
from moorage.api.values import Order, Want
from moorage.core.job import Evidence


class ProcessKeeper(Keeper):
    """Never starts its process twice: what it did is known, or it is tried again under another epoch."""

    def __init__(self, host: Host, folder: Path, known: Record) -> None:
        super().__init__(host, folder, known)
        self._job = Supervised(folder, host.home, known.allocation, host.config.log_bytes)
        self._jobless = False

    def _advance(self, order: Order | None) -> None:
        if order is not None and order.want is Want.DRAIN:
            self._end("drained", seconds=seconds_until(order.drain_by), ask=True)
        elif not self.record.driver:
            if order is not None:
                self._start(order)
        elif self._job.exited():
            self._end("exited")

    def _start(self, order: Order) -> None:
        self._jobless = order.job is None
        work = self._unpacked(order)
        if work is None or order.job is None:
            return
        env = self.host.env(order, self.folder)
        self._save(driver=True)
        self._job.start(environment.command(order.job.entrypoint), env, work)

    def _runs(self) -> bool:
        # A lease without a job holds its GPUs; there is nothing to start.
        return self.record.driver or self._jobless

    def _ask(self) -> None:
        self._job.terminate()

    def _supervisor(self) -> int | None:
        pids = self._job.pids
        return pids.supervisor if pids else None

    def _evidence(self) -> Evidence:
        return evidence_of(self._job, started=self.record.driver, error=self._error)


def evidence_of(job: Supervised, *, started: bool, error: str) -> Evidence:
    """How a supervised job ended, or why it never began."""
    if not started:
        return Evidence(exit_code=None, agent_error=error or "stopped before it was started")
    known = job.evidence()
    return replace(known, agent_error=error) if error else known
