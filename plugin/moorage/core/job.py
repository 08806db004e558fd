"""What runs on a lease, and what it says while it runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from moorage.core.invalid import Invalid


class JobKind(StrEnum):
    #: One node: the agent starts the entrypoint with the leased devices.
    PROCESS = "process"
    #: Any number of nodes: the lease gets its own Ray cluster, and the entrypoint is its driver.
    RAY = "ray"
    #: Raylets that join a long-lived head which Moorage did not start (the autoscaler hook): no entrypoint.
    RAYLET = "raylet"


class DoneWhen(StrEnum):
    EXIT = "exit"
    #: Exit code 0 is not enough: the job must also have written its completion marker.
    MARKER = "marker"


class OwnerSilent(StrEnum):
    CONTINUE = "continue"
    RELEASE = "release"


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """An entrypoint and what it needs. Secrets are references (``env:NAME`` on the node), never values."""

    kind: JobKind = JobKind.PROCESS
    #: argv; a first word ``python`` becomes the agent's own interpreter. Runs in the unpacked code folder.
    entrypoint: tuple[str, ...] = ()
    #: SHA-256 of a zip in the broker's store; None: nothing to unpack.
    code: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    #: Environment variable -> reference.
    secrets: Mapping[str, str] = field(default_factory=dict)
    done_when: DoneWhen = DoneWhen.EXIT
    #: Attempts that may fail by the job's own fault before the lease fails. Interruptions never count.
    max_retries: int = 0
    on_owner_silent: OwnerSilent = OwnerSilent.CONTINUE
    #: fsspec URL below which checkpoints go; None: the policy's.
    storage: str | None = None
    #: `RAYLET` only: address of the Ray head to join, and the name of a 0600 token file on the node (None: auth off).
    head: str | None = None
    head_token_file: str | None = None
    #: More labels for the lease's raylets, for example {"moorage.io/gang": key}.
    ray_labels: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.kind is JobKind.RAYLET:
            if not self.head:
                raise Invalid("job.head", self.head, "name the address of the Ray head to join")
        elif not (self.entrypoint and self.entrypoint[0].strip()):
            raise Invalid("job.entrypoint", self.entrypoint, "name a command, for example ('python', 'train.py')")
        if self.max_retries < 0:
            raise Invalid("job.max_retries", self.max_retries, "must not be negative")


class Activity(StrEnum):
    """What leased GPU time was, for the cost split; the words of `docs/concepts.md`."""

    BUSY = "busy"
    IDLE = "idle"
    LOST = "lost"
    OVERHEAD = "overhead"
    UNKNOWN = "unknown"


class Phase(StrEnum):
    """What an attempt says it is doing."""

    STARTING = "starting"
    RESTORING = "restoring"
    TRAINING = "training"
    CHECKPOINTING = "checkpointing"
    RESIZING = "resizing"
    DRAINING = "draining"
    DONE = "done"

    @property
    def activity(self) -> Activity:
        """Training is busy; everything around it is overhead."""
        return Activity.BUSY if self is Phase.TRAINING else Activity.OVERHEAD


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """One heartbeat of an attempt. A field that the job cannot tell is None."""

    phase: Phase
    #: Optimiser steps done by the lease so far, over all attempts.
    step: int | None = None
    samples_done: int | None = None
    samples_total: int | None = None
    #: Training loss, smoothed by the job over its last report interval.
    loss: float | None = None
    #: Samples per second of the whole gang since the last report.
    throughput: float | None = None
    #: Workers that train now.
    workers: int | None = None
    #: Step of the newest valid checkpoint.
    checkpoint_step: int | None = None
    #: Allocations that the attempt uses now: one that is neither used nor in the target is given back.
    using: tuple[str, ...] = ()
    #: The newest `Lease.target_revision` that the attempt has acted on.
    target_revision: int = 0
    #: What Moorage logs to MLflow for the job, for example {"accuracy": 0.97}; training step is `step`.
    metrics: Mapping[str, float] = field(default_factory=dict)
    #: One line for people, for example a warning about what a resize cannot keep.
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """One point of a lease's history that elastic decisions are made from."""

    at: datetime
    step: int
    samples: int
    workers: int
    loss: float | None
    throughput: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """How a process ended, as the agent that was its parent saw it."""

    #: None: it died by a signal, or the agent that adopted it could not learn the code.
    exit_code: int | None
    signal: int | None = None
    #: The completion marker that the job wrote (at most 64 KiB of JSON). None: none.
    marker: str | None = None
    #: Last lines of the log.
    tail: str = ""
    #: Why the agent itself gave up (code not found, port taken, raylet that died at start). Empty: it did not.
    agent_error: str = ""
