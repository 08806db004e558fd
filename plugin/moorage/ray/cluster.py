"""A Ray cluster of its own for a lease: the commands and the environment that start its head and its raylets.

Pure: builds argv and environment, starts nothing. Without ``--block`` the daemons stay in the process group of the
caller of ``ray start``; each blocking one would cost 124 MB for nothing.
"""

from __future__ import annotations

import hashlib
import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

#: Ray refuses less than 75 MiB.
OBJECT_STORE_BYTES = 100_000_000
#: Environment variable that names the cluster's folder in every process of the cluster on a host.
FOLDER_VARIABLE = "MOORAGE_RAY_DIR"

LEASE_LABEL = "moorage.io/lease"
ALLOCATION_LABEL = "moorage.io/allocation"
NODE_LABEL = "moorage.io/node"
EPOCH_LABEL = "moorage.io/epoch"

_NAME = re.compile(r"[a-zA-Z0-9]([a-zA-Z0-9_.-]{0,61}[a-zA-Z0-9])?")
_PREFIX = re.compile(r"[a-zA-Z0-9]([a-zA-Z0-9.-]{0,251}[a-zA-Z0-9])?")

#: Ray's own settings, for every process of the cluster. A head must learn of a dead node in seconds, yet a host that
#: is starting many processes at once must not look dead. Raylets end after a drain of our own: SIGTERM needs none.
RAY_SETTINGS: Mapping[str, str] = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DISABLE_IMPORT_WARNING": "1",
    "RAY_health_check_initial_delay_ms": "5000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_failure_threshold": "5",
    "RAY_health_check_timeout_ms": "2000",
    "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",
    "RAY_ROTATION_MAX_BYTES": str(16 << 20),
    "RAY_ROTATION_BACKUP_COUNT": "1",
    "RAY_TRAIN_V2_ENABLED": "1",
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",
    "RAY_TRAIN_PREEMPTION_POLL_INTERVAL_S": "1",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Daemons:
    """What a head and a raylet have in common."""

    #: Interpreter that has Ray.
    python: str
    #: Address that other nodes of the cluster reach this one by.
    ip: str
    labels: Mapping[str, str]
    #: Port of Ray's agent on this node; several raylets on a host need several.
    agent_port: int
    #: Ship what workers print to the driver. Ray wants one such process per host and cluster.
    log_monitor: bool = True
    object_store_bytes: int = OBJECT_STORE_BYTES


def head_command(daemons: Daemons, *, port: int, client_port: int, folder: Path) -> list[str]:
    """argv of a head: no GPUs, one CPU for controllers, no dashboard, no autoscaler."""
    return [
        *_start(daemons),
        "--head",
        f"--port={port}",
        # The default collides with the next cluster on the host, and Ray refuses 0.
        f"--ray-client-server-port={client_port}",
        f"--temp-dir={folder}",
        "--num-gpus=0",
        "--num-cpus=1",
        "--include-dashboard=false",
        "--no-monitor",
    ]


def raylet_command(daemons: Daemons, *, address: str, gpus: int, cpus: int) -> list[str]:
    """argv of a raylet that joins the head at `address` with so many GPUs and CPUs."""
    return [*_start(daemons), f"--address={address}", f"--num-gpus={gpus}", f"--num-cpus={cpus}"]


def _start(daemons: Daemons) -> list[str]:
    labels = ",".join(f"{key}={value}" for key, value in sorted(daemons.labels.items()))
    return [
        daemons.python,
        "-m",
        "ray.scripts.scripts",
        "start",
        f"--node-ip-address={daemons.ip}",
        f"--object-store-memory={daemons.object_store_bytes}",
        f"--dashboard-agent-listen-port={daemons.agent_port}",
        f"--include-log-monitor={str(daemons.log_monitor).lower()}",
        "--min-worker-port=0",
        "--max-worker-port=0",
        "--disable-usage-stats",
        f"--labels={labels}",
    ]


def drain_command(python: str, address: str, allocation: str, deadline_ms: int) -> list[str]:
    """argv that tells Ray that the raylet of `allocation` goes at `deadline_ms` (Unix milliseconds)."""
    return [
        python,
        "-m",
        "moorage.ray.drain",
        f"--address={address}",
        f"--allocation={allocation}",
        f"--deadline-ms={deadline_ms}",
    ]


def auth_env(token_file: Path | None) -> dict[str, str]:
    """Ray's authentication: a token in a 0600 file, or none."""
    if token_file is None:
        return {"RAY_AUTH_MODE": "disabled"}
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token_file)}


def cluster_env(base: Mapping[str, str], token_file: Path | None, folder: Path | None) -> dict[str, str]:
    """`base` with Ray's settings (a value that `base` has wins), authentication, and the cluster's folder."""
    named = {} if folder is None else {FOLDER_VARIABLE: str(folder)}
    return {**RAY_SETTINGS, **base, **auth_env(token_file), **named}


def cluster_folder(lease: str, epoch: int) -> Path:
    """Ray's folder of one attempt; the same on every host, and short: socket paths below it end at about 100 bytes."""
    name = hashlib.sha256(f"{lease}/{epoch}".encode()).hexdigest()[:8]
    return Path("/tmp") / f"mrg-{name}"  # noqa: S108 - sockets need a short path; Ray makes it and the agent removes it.


def usable_labels(labels: Mapping[str, str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """Labels that Ray accepts, and the keys of those that it would refuse to start for."""
    good = {key: value for key, value in labels.items() if _label_fits(key, value)}
    return good, tuple(sorted(set(labels) - set(good)))


def _label_fits(key: str, value: str) -> bool:
    prefix, slash, name = key.rpartition("/")
    if prefix == "ray.io" or (slash and not _PREFIX.fullmatch(prefix)):
        return False
    return bool(_NAME.fullmatch(name) and _NAME.fullmatch(value))


def free_ports(ip: str, count: int) -> Sequence[int]:
    """TCP ports that were free just now on `ip`, all different."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind((ip, 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()
