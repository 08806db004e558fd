"""What an agent needs to know. Nothing here says what the node costs or which pool it is in: that is policy."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from moorage.api.errors import Invalid
from moorage.ray.cluster import OBJECT_STORE_BYTES

_NODE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentConfig:
    """One node's agent.

    Raises:
        Invalid: a value that can never be right.
    """

    #: The broker's address and this node's token.
    url: str
    token: str | None = field(default=None, repr=False)
    node: str
    #: Where the agent remembers what it started; one agent at a time uses it.
    state_dir: Path
    labels: Mapping[str, str] = field(default_factory=dict)
    #: Stand in for hardware with so many fake GPUs. None: ask NVML.
    fake_gpus: int | None = None
    fake_model: str = "FAKE-GPU"
    #: Device seconds that a fake GPU takes for one local sample. None: no waiting.
    fake_sample_seconds: float | None = None
    #: CPU cores and bytes of memory to offer. None: what the host has.
    cpus: float | None = None
    memory: int | None = None
    #: Address by which other nodes reach this one. None: that of the way to the broker.
    address: str | None = None
    #: Metadata servers to watch for notices: base URLs. None: not watched.
    imds_url: str | None = None
    gcp_url: str | None = None
    azure_url: str | None = None
    #: Serve Prometheus metrics here. None: do not.
    metrics_port: int | None = None
    metrics_address: str = "127.0.0.1"
    #: Seconds between reports when nothing changes.
    report_every_s: float = 1.0
    #: Seconds between SIGTERM and SIGKILL when a job is stopped.
    stop_grace_s: float = 5.0
    #: Seconds that `ray start` may take.
    ray_start_s: float = 120.0
    #: Bytes of a job's log kept on the node.
    log_bytes: int = 64 << 20
    object_store_bytes: int = OBJECT_STORE_BYTES

    def __post_init__(self) -> None:
        if not _NODE.fullmatch(self.node):
            raise Invalid("node", self.node, "use 1 to 63 letters, digits, dots, dashes; the ends alphanumeric")
        if self.fake_gpus is not None and not 0 <= self.fake_gpus <= 1024:
            raise Invalid("fake_gpus", self.fake_gpus, "give a number from 0 to 1024")
        if self.fake_sample_seconds is not None and self.fake_sample_seconds < 0:
            raise Invalid("fake_sample_seconds", self.fake_sample_seconds, "must not be negative")
        if self.report_every_s <= 0:
            raise Invalid("report_every_s", self.report_every_s, "must be positive")
