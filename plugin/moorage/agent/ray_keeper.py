"""What the keepers of a head and of a raylet share: starting Ray, bounded, and leaving nothing of it."""

from __future__ import annotations

import logging
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from moorage.agent import processes, record
from moorage.agent.host import Host
from moorage.agent.keeper import Keeper
from moorage.agent.names import RAY_LOG, TOKEN
from moorage.agent.processes import Ending, Seen
from moorage.agent.ray_daemons import Daemons, RayStart, Start
from moorage.agent.record import Record
from moorage.api.values import Order
from moorage.ray import cluster

log = logging.getLogger(__name__)

#: `ray start` is tried so often.
TRIES = 2
#: Seconds between SIGTERM to a raylet and SIGKILL to everything of it.
RAY_GRACE_S = 2.0


class RayKeeper(Keeper):
    """A head or a raylet."""

    #: Daemons that must live.
    names: Sequence[str] = ()

    def __init__(self, host: Host, folder: Path, known: Record) -> None:
        super().__init__(host, folder, known)
        self._start: RayStart | None = None
        self._daemons = Daemons(self.names, self._family)
        # An agent that died while Ray was starting left an unknown half: it goes first.
        half = known.tries > 0 and not known.up and known.evidence is None
        self._rest: Ending | None = Ending(self._family, kill_at=0) if half else None

    def _bring_up(self, order: Order) -> None:
        """One step of starting Ray."""
        if self._rest is not None:
            if not self._rest.tick(0):
                return
            self._rest = None
        if self._start is None:
            self._save(tries=self.record.tries + 1, session=None, **self._facts(order))
            self._start = self._ray_start(order)
        match self._start.tick():
            case Start.UP:
                self._start = None
                self._save(up=True)
            case Start.FAILED:
                self._again(self._start.error)
            case Start.WAITING:
                pass

    def _again(self, error: str) -> None:
        self._start = None
        if self.record.tries >= TRIES:
            self._fail(error)
            return
        log.warning("%s: %s; trying once more", self.record.allocation, error)
        self._rest = Ending(self._family, kill_at=0)

    def _ray_start(self, order: Order) -> RayStart:
        return RayStart(
            self.host.lock,
            lambda: (self._command(order), self._env(order)),
            lambda session: self._save(session=session),
            self.folder,
            self.folder / RAY_LOG,
            self.host.config.ray_start_s,
        )

    def _facts(self, order: Order) -> dict[str, str | None]:
        """What goes into the record before Ray starts."""
        raise NotImplementedError

    def _command(self, order: Order) -> list[str]:
        raise NotImplementedError

    def _env(self, order: Order) -> Mapping[str, str]:
        """Of Ray's daemons, and so of every worker: the job's, with Ray's settings and the job's code in reach."""
        known = self.record
        made = self.host.env(order, self.folder)
        if self._code is not None and self._code.done() and self._code.exception() is None:
            made["PYTHONPATH"] = ":".join(filter(None, [str(self._code.result()), made.get("PYTHONPATH")]))
        return cluster.cluster_env(made, _path(known.token_file), _path(known.ray_folder))

    def _described(self, order: Order) -> cluster.Daemons:
        """What the commands of head and raylet share."""
        config = self.host.config
        own = {
            cluster.LEASE_LABEL: order.lease,
            cluster.ALLOCATION_LABEL: order.allocation,
            cluster.NODE_LABEL: config.node,
            cluster.EPOCH_LABEL: str(order.epoch),
        }
        asked = dict(order.job.ray_labels) if order.job is not None else {}
        labels, refused = cluster.usable_labels({**config.labels, **asked, **own})
        if refused:
            log.warning("%s: labels that Ray cannot have are left out: %s", order.allocation, ", ".join(refused))
        return cluster.Daemons(
            python=sys.executable,
            ip=self.host.ip,
            labels=labels,
            agent_port=cluster.free_ports(self.host.ip, 1)[0],
            log_monitor=self._first_here(),
            object_store_bytes=config.object_store_bytes,
        )

    def _first_here(self) -> bool:
        """Whether no other process of this cluster is on this host: one ships what workers print for all."""
        folder = self.record.ray_folder
        return folder is None or not processes.users_of(processes.scan(), folder)

    def _token(self, order: Order) -> str | None:
        """The lease's token in a file of this allocation."""
        if order.ray_token is None:
            return None
        path = self.folder / TOKEN
        record.write_atomic(path, order.ray_token.encode())
        return str(path)

    def _runs(self) -> bool:
        return self.record.up

    def _ask(self) -> None:
        self._daemons.terminate()

    def _stop_grace(self) -> float:
        return RAY_GRACE_S

    def _clean(self, seen: list[Seen]) -> None:
        """The last one of the cluster on this host removes the cluster's folder."""
        folder = self.record.ray_folder
        if folder is not None and not processes.users_of(seen, folder):
            shutil.rmtree(folder, onerror=_left)


def _left(_function: object, path: str, problem: tuple[type[BaseException], BaseException, object]) -> None:
    if not isinstance(problem[1], FileNotFoundError):
        log.warning("left behind %s: %s", path, problem[1])


def _path(name: str | None) -> Path | None:
    return None if name is None else Path(name)
