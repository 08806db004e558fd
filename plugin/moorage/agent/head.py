"""The head of a lease's own Ray cluster, and the job's driver beside it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from moorage.agent import environment
from moorage.agent.host import Host
from moorage.agent.keeper import seconds_until
from moorage.agent.process_keeper import evidence_of
from moorage.agent.ray_daemons import GCS, RAYLET
from moorage.agent.ray_keeper import RayKeeper
from moorage.agent.record import Record
from moorage.agent.supervised import Supervised
from moorage.api.values import Order, Want
from moorage.core.job import Evidence
from moorage.ray import cluster


class HeadKeeper(RayKeeper):
    """The driver's end is the attempt's end: then the head goes too."""

    names = (GCS, RAYLET)

    def __init__(self, host: Host, folder: Path, known: Record) -> None:
        super().__init__(host, folder, known)
        self._driver = Supervised(folder, host.home, known.allocation, host.config.log_bytes)

    def _advance(self, order: Order | None) -> None:
        if self.record.driver and self._driver.exited():
            self._end("the driver exited")
        elif order is not None and order.want is Want.DRAIN and not seconds_until(order.drain_by):
            self._end("drained", seconds=self._stop_grace(), ask=True)
        elif not self.record.up:
            if order is not None and order.want is Want.RUN and self._unpacked(order) is not None:
                self._bring_up(order)
        else:
            self._up(order)

    def _up(self, order: Order | None) -> None:
        dead = self._daemons.dead()
        if dead is not None:
            self._fail(f"Ray's head is gone: {dead} died")
        elif order is not None and order.driver and order.want is Want.RUN and not self.record.driver:
            self._start_driver(order)

    def _start_driver(self, order: Order) -> None:
        work = self._unpacked(order)
        if work is None or order.job is None:
            return
        env = {**self._env(order), "RAY_ADDRESS": self.record.address or ""}
        self._save(driver=True)
        self._driver.start(environment.command(order.job.entrypoint), env, work)

    def _facts(self, order: Order) -> dict[str, str | None]:
        return {
            "ray_folder": str(cluster.cluster_folder(order.lease, order.epoch)),
            "token_file": self._token(order),
        }

    def _command(self, order: Order) -> list[str]:
        port, client_port = cluster.free_ports(self.host.ip, 2)
        self._save(address=f"{self.host.ip}:{port}")
        folder = Path(self.record.ray_folder or "")
        return cluster.head_command(self._described(order), port=port, client_port=client_port, folder=folder)

    def _env(self, order: Order) -> Mapping[str, str]:
        # Ray's head has no GPUs, whatever the host has.
        return {**super()._env(order), "CUDA_VISIBLE_DEVICES": ""}

    def _address(self) -> str | None:
        return self.record.address if self.record.up else None

    def _has_driver(self) -> bool:
        return True

    def _stop_grace(self) -> float:
        return self.host.config.stop_grace_s if self.record.driver else 0.0

    def _ask(self) -> None:
        self._driver.terminate()

    def _supervisor(self) -> int | None:
        pids = self._driver.pids
        return pids.supervisor if pids else None

    def _evidence(self) -> Evidence:
        return evidence_of(self._driver, started=self.record.driver, error=self._error)

    def _stop(self) -> None:
        super()._stop()
        if self.record.driver and self._driver.exited() and self._ending is not None:
            # Nothing else of the head deserves the rest of the grace.
            self._ending.hurry(0)
