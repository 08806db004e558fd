"""``moorage ray-autoscaler``: leases GPUs for a long-lived Ray head, gang by gang.

::

    Ray head --demand--> Autoscaling.read --> plan --> Hook --submit, release, give_back--> broker --> agents
       ^                                                |                                               |
       +-- adopt, drain what is idle <-- Autoscaling.step <-- live allocations of our leases            |
       +------------------------------------------ raylets join ----------------------------------------+

Keeps no state of its own: leases are found again by their owner labels, raylets by their allocation's id. So it may be
killed at any time, and so may the broker.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
import threading
import time
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

from moorage.api.protocols import LeaseApi
from moorage.client import Client
from moorage.core.request import CapacityType, Topology
from moorage.ray.cluster import Daemons, auth_env, cluster_env, free_ports, head_command
from moorage.ray.demand import HEAD, RACK, Cluster
from moorage.ray.hook import LIMITS, Hook, Limits, release_all
from moorage.ray.internals import HEAD_TYPE, Autoscaling, RayGone
from moorage.settings import DEFAULT_URL

log = logging.getLogger(__name__)

#: A head that is silent for so long is over, and its leases with it: its raylets end themselves after a minute too.
HEAD_GONE_S = 60.0
_RETRY_MAX_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoscalerConfig:
    """One Ray head, the broker, and what all leases of the head have in common. One team per head."""

    #: ``host:port`` of the Ray head, as the raylets reach it.
    address: str
    #: RAY_CLOUD_INSTANCE_ID of the head.
    head_id: str = "head"
    url: str = DEFAULT_URL
    token: str | None = None
    #: Only an operator's token may name one.
    team: str | None = None
    #: Ray's cluster token (0600), at the same path here and on every node; None: Ray's authentication is off.
    token_file: Path | None = None
    #: Seconds without work after which a raylet is given back.
    idle_timeout_s: float = 60.0
    #: Seconds between two looks at Ray.
    interval_s: float = 1.0
    #: Of leases whose demand says nothing else.
    priority: int = 0
    capacity: CapacityType = CapacityType.ON_DEMAND
    topology: Topology = RACK
    #: Dollars that one lease may spend; None: no limit.
    budget_usd: Decimal | None = None
    limits: Limits = LIMITS


def run(config: AutoscalerConfig, stop: threading.Event, api: LeaseApi | None = None) -> None:
    """Serve the head until `stop` is set; neither a broker nor a head that is away ends it.

    Leases stay as they are when it stops: the next run finds them.

    Args:
        api: the broker; None: over HTTP as `config` says.
    """
    os.environ.update(auth_env(config.token_file), RAY_enable_autoscaler_v2="1")
    # Ray tells each decision about each node, and of each field of its own configuration.
    logging.getLogger("ray.autoscaler.v2").setLevel(logging.WARNING)
    logging.getLogger("ray.autoscaler._private.util").setLevel(logging.ERROR)
    broker = api or Client(config.url, config.token, timeout=5, retry_for=1)
    away = _Away(config, broker)
    while not stop.is_set():
        try:
            _serve(config, broker, stop, away)
        except RayGone as error:
            stop.wait(away.wait(error))


def _serve(config: AutoscalerConfig, broker: LeaseApi, stop: threading.Event, away: _Away) -> None:
    """Serve one session of the head. Raises `RayGone` when it is over."""
    wake = threading.Event()
    given: set[str] = set()

    def give_back(allocation: str) -> None:
        given.add(allocation)
        wake.set()

    ray = Autoscaling(config.address, config.head_id, config.idle_timeout_s, give_back)
    hook = Hook(broker, _cluster(config, ray.session), config.limits, given, ray.say)
    log.info("serving the Ray head %s at %s, session %s", config.head_id, config.address, ray.session)
    while not stop.is_set():
        hook.step(ray.read())
        away.back()
        if hook.instances is not None:
            ray.step(hook.instances, hook.protected, hook.denied)
        wake.wait(config.interval_s)
        wake.clear()


def _cluster(config: AutoscalerConfig, session: str) -> Cluster:
    return Cluster(
        address=config.address,
        head=config.head_id,
        session=session,
        token_file=None if config.token_file is None else str(config.token_file),
        team=config.team,
        priority=config.priority,
        budget_usd=config.budget_usd,
        capacity=config.capacity,
        topology=config.topology,
    )


class _Away:
    """A head that does not answer: one line when it goes and one when it is back; its leases end after a minute."""

    def __init__(self, config: AutoscalerConfig, broker: LeaseApi) -> None:
        self._config, self._broker = config, broker
        self._since: float | None = None
        self._tries = 0
        self._abandoned = False

    def wait(self, error: RayGone) -> float:
        """Seconds to wait before the next try."""
        if self._since is None:
            self._since = time.monotonic()
            log.warning("%s; trying again", error)
        self._tries += 1
        if not self._abandoned and time.monotonic() - self._since > HEAD_GONE_S:
            self._abandoned = self._abandon()
        return float(min(2.0 ** (self._tries - 1), _RETRY_MAX_S))

    def back(self) -> None:
        if self._since is not None:
            log.info(
                "the Ray head at %s answers again after %.0f s", self._config.address, time.monotonic() - self._since
            )
        self._since, self._tries, self._abandoned = None, 0, False

    def _abandon(self) -> bool:
        """Release what the head left behind. False: the broker did not answer; try again."""
        owner = {HEAD: _cluster(self._config, "").owner[HEAD]}
        return release_all(self._broker, owner, f"its Ray head at {self._config.address} is gone")


def long_lived_head(
    port: int, temp_dir: Path, head_id: str = "head", token_file: Path | None = None, *, ip: str | None = None
) -> tuple[list[str], dict[str, str]]:
    """argv and environment of a Ray head that the hook can serve.

    The command returns when the head is up; its daemons stay in the process group of whoever starts it.

    Args:
        port: of the head.
        temp_dir: Ray's folder; short, because sockets are below it.
        ip: address that raylets reach the head by; None: that of the default route (Ray refuses 127.0.0.1 for a head).
    """
    ip = ip or own_ip()
    client_port, agent_port = free_ports(ip, 2)
    daemons = Daemons(python=sys.executable, ip=ip, labels={"moorage.io/head": head_id}, agent_port=agent_port)
    env = cluster_env(os.environ, token_file, temp_dir)
    env |= {"RAY_CLOUD_INSTANCE_ID": head_id, "RAY_NODE_TYPE_NAME": HEAD_TYPE, "RAY_enable_autoscaler_v2": "1"}
    return head_command(daemons, port=port, client_port=client_port, folder=temp_dir), env


def own_ip() -> str:
    """Address of the interface of the default route; 127.0.0.1 without one. Sends nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])
