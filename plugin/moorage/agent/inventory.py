"""What the node has. What cannot be told is None, never guessed."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass

import psutil

from moorage.agent import nvml
from moorage.agent.config import AgentConfig
from moorage.core.fleet import Gpu

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """GPUs, CPU cores and bytes of memory."""

    gpus: tuple[Gpu, ...]
    cpus: float | None
    memory: int | None


def take(config: AgentConfig) -> Inventory:
    """Probe the host once. No NVIDIA driver: no GPUs, said in the log."""
    gpus = nvml.probe() if config.fake_gpus is None else fake(config.node, config.fake_gpus, config.fake_model)
    return Inventory(gpus=gpus, cpus=config.cpus or os.cpu_count(), memory=config.memory or _memory())


def fake(node: str, count: int, model: str) -> tuple[Gpu, ...]:
    """Stand-ins: one island, healthy, of unknown memory."""
    return tuple(
        Gpu(index=i, uuid=f"FAKE-{node}-{i}", model=model, memory=None, island=0, healthy=True) for i in range(count)
    )


def _memory() -> int | None:
    try:
        return int(psutil.virtual_memory().total)
    except (OSError, RuntimeError) as error:
        log.warning("memory of this host is not known: %s", error)
        return None
