"""The demo's cloud: it serves a spot notice for one node, and takes the node at the notice's deadline."""

from __future__ import annotations

import contextlib
import time

import httpx
import psutil

from moorage.agent import NODE_MARK
from moorage.api.values import LeaseView
from moorage.cli.demo.guard import carries
from moorage.cli.demo.parts import Parts
from moorage.cli.demo.screen import Screen
from moorage.core.job import Phase
from moorage.core.lease import AllocationRole

#: Seconds from the notice to the end of the node. AWS gives 120, GCP and Azure 30.
NOTICE_S = 30.0
#: Steps that the grown gang trains before the notice comes.
STEPS_BEFORE = 120


class Cloud:
    """Interrupts one lease once, in mid-training, on a node that holds its workers but not its head."""

    def __init__(self, parts: Parts, screen: Screen, metadata_url: str) -> None:
        self._parts = parts
        self._screen = screen
        self._url = metadata_url
        self._grown_at: int | None = None
        self._due: float | None = None
        self.node: str | None = None
        self.done = False

    def tick(self, view: LeaseView) -> None:
        """Look at the lease, and act if it is time. Never blocks for long."""
        if self._due is None:
            self._wait_for_mid_training(view)
        elif not self.done and time.monotonic() >= self._due:
            self._take()

    def _wait_for_mid_training(self, view: LeaseView) -> None:
        progress = view.lease.progress
        grown = (
            progress and progress.phase is Phase.TRAINING and (progress.workers or 0) > view.lease.request.workers[0]
        )
        if not (grown and progress and progress.step is not None):
            return
        if self._grown_at is None:
            self._grown_at = progress.step
        if progress.step - self._grown_at >= STEPS_BEFORE:
            self._notice(victim(view))

    def _notice(self, node: str) -> None:
        httpx.post(
            f"{self._url}/_control/notice", json={"node": node, "seconds": NOTICE_S}, timeout=10
        ).raise_for_status()
        self.node = node
        self._due = time.monotonic() + NOTICE_S
        self._screen.show("cloud", "running", f"spot notice: {node} goes in {NOTICE_S:.0f} s")

    def _take(self) -> None:
        self.done = True
        for part in self._parts.parts:
            if part.name == self.node and part.process is not None:
                part.expendable = True
                part.process.kill()
        killed = kill_marked(NODE_MARK, self.node or "")
        self._screen.show(self.node or "", "killed", f"SIGKILL to its agent and to {killed} processes")
        self._screen.show("cloud", "done", f"took {self.node}")


def victim(view: LeaseView) -> str:
    """The node that holds most of the lease's GPUs and not its head."""
    heads = {a.node for a in view.lease.live if a.role is AllocationRole.HEAD}
    gpus: dict[str, int] = {}
    for allocation in view.lease.live:
        if allocation.gpus and allocation.node not in heads:
            gpus[allocation.node] = gpus.get(allocation.node, 0) + len(allocation.gpus)
    return max(sorted(gpus), key=lambda node: gpus[node])


def kill_marked(name: str, value: str) -> int:
    """SIGKILL every process with this environment variable; how many there were."""
    found = [process for process in psutil.process_iter() if carries(process, name, value)]
    for process in found:
        with contextlib.suppress(psutil.Error):
            process.kill()
    return len(found)
