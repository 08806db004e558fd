"""A raylet with exactly the leased GPUs: of a lease's own cluster, or of a long-lived head elsewhere."""

from __future__ import annotations

import logging
import math
import subprocess
import sys
import time
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

from moorage.agent import joblog
from moorage.agent.host import Host
from moorage.agent.keeper import seconds_until
from moorage.agent.names import RAY_LOG
from moorage.agent.ray_daemons import RAYLET
from moorage.agent.ray_keeper import RayKeeper
from moorage.agent.record import Record
from moorage.api.values import Order, Want
from moorage.core.job import Evidence, JobKind
from moorage.ray import cluster
from moorage.ray.demand import CPUS_PER_WORKER

log = logging.getLogger(__name__)

#: A drain that failed is told again after so many seconds, so often.
DRAIN_AGAIN_S = 2.0
DRAIN_TRIES = 5


class Drain:
    """Tells Ray once that the raylet goes; again only for an earlier time, or if it failed."""

    def __init__(self, output: Path) -> None:
        self._output = output
        self._process: subprocess.Popen[bytes] | None = None
        self._told: datetime | None = None
        self._tries = 0
        self._next = 0.0

    def tell(self, argv: list[str], env: Mapping[str, str], by: datetime) -> None:
        """Cheap to repeat."""
        if self._process is not None and self._process.poll() is None:
            return
        failed = self._process is not None and self._process.returncode != 0
        earlier = self._told is None or (self._told - by).total_seconds() > 0.2
        if earlier:
            self._tries = 0
        elif not failed or self._tries >= DRAIN_TRIES or time.monotonic() < self._next:
            return
        self._tries += 1
        self._told, self._next = by, time.monotonic() + DRAIN_AGAIN_S
        with self._output.open("ab") as output:
            self._process = subprocess.Popen(
                argv, env=dict(env), stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
            )


class WorkerKeeper(RayKeeper):
    """Waits for its head, joins it, and is drained before it goes."""

    names = (RAYLET,)

    def __init__(self, host: Host, folder: Path, known: Record) -> None:
        super().__init__(host, folder, known)
        self._drain = Drain(folder / "drain.log")

    def _advance(self, order: Order | None) -> None:
        by = _earliest(order.drain_by if order is not None and order.want is Want.DRAIN else None, self._node_goes)
        if by is not None and not seconds_until(by):
            self._end("its node or its time was up", seconds=0)
        elif not self.record.up:
            if order is not None and order.want is Want.RUN:
                self._join(order)
        elif self._daemons.dead() is not None:
            self._left(drained=by is not None)
        elif by is not None:
            self._tell(by)
        elif self.record.drained and order is not None:
            # Ray has no way back from a drain: another raylet takes its place.
            self._fail("it was drained for a notice that was cancelled")

    def _left(self, *, drained: bool) -> None:
        """An idle raylet exits as soon as it is drained; any other that exits has died."""
        if drained:
            self._end("drained, and left by itself")
        else:
            self._fail("the raylet died")

    def _join(self, order: Order) -> None:
        if self._unpacked(order) is not None and _head(order) is not None:
            self._bring_up(order)

    def _tell(self, by: datetime) -> None:
        if not self.record.drained:
            self._save(drained=True)
        known = self.record
        env = {**self.host.own, **self._auth(), **self.host.marks(known.allocation)}
        env.pop("PYTHONDONTWRITEBYTECODE", None)
        argv = cluster.drain_command(sys.executable, known.address or "", known.allocation, int(by.timestamp() * 1000))
        self._drain.tell(argv, env, by)

    def _auth(self) -> dict[str, str]:
        token = self.record.token_file
        return cluster.auth_env(None if token is None else Path(token))

    def _facts(self, order: Order) -> dict[str, str | None]:
        if order.job is not None and order.job.kind is JobKind.RAYLET:
            return {"address": _head(order), "ray_folder": None, "token_file": order.job.head_token_file}
        return {
            "address": _head(order),
            "ray_folder": str(cluster.cluster_folder(order.lease, order.epoch)),
            "token_file": self._token(order),
        }

    def _command(self, order: Order) -> list[str]:
        workers = self._workers(order)
        return cluster.raylet_command(
            self._described(order), address=self.record.address or "", gpus=len(order.gpus), cpus=workers
        )

    def _workers(self, order: Order) -> int:
        """A CPU for each GPU, so that workers which ask for one CPU each have it, however many share the raylet.

        The autoscaler hook knows better: it says how many CPUs a placement group's bundle wants.
        """
        said = order.job.env.get(CPUS_PER_WORKER, "0") if order.job is not None else "0"
        return max(1, len(order.gpus), math.ceil(float(said)))

    def _env(self, order: Order) -> Mapping[str, str]:
        made = dict(super()._env(order))
        if order.job is not None and order.job.kind is JobKind.RAYLET:
            made["RAY_CLOUD_INSTANCE_ID"] = order.allocation
            made.setdefault("RAY_NODE_TYPE_NAME", "moorage")
        return made

    def _evidence(self) -> Evidence:
        tail = joblog.file_tail(self.folder / RAY_LOG) if self._error else f"moorage: {self._why}"
        return Evidence(exit_code=None, tail=tail, agent_error=self._error)


def _head(order: Order) -> str | None:
    """The head to join; None: it is not up yet."""
    if order.job is not None and order.job.kind is JobKind.RAYLET:
        return order.job.head
    return order.head


def _earliest(*times: datetime | None) -> datetime | None:
    return min((at for at in times if at is not None), default=None)
