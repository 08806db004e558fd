"""What the controller, the gang and the workers say to each other. Plain values; no Ray, no clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from moorage.core.job import Phase


class Interrupted(BaseException):
    """Ends a training loop from inside `Job`; no Exception, so that a loop's own ``except Exception`` lets it by."""


class Stopped(Interrupted):
    """Asked to stop: the checkpoint is written, the loop is left on every rank at the same step."""


class GangLost(Interrupted):
    """The others are gone, or a newer group has taken over: this worker has nobody to train with."""


class Refusal(Exception):
    """The gang's "no" on its way to a worker, which makes it `GangLost`: actors can only raise Exceptions."""


class Overdue(Exception):
    """The run was asked to stop and ends without its workers' help: none are there, or they did not answer in time."""


class LoopFailed(Exception):
    """The user's loop raised. Its text is the user's whole traceback."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """What every rank should do at its next step boundary. Counters: a rank acts when one exceeds what it has done."""

    #: Write a checkpoint and go on.
    save: int = 0
    #: Write a checkpoint and wait; the group is about to be restarted.
    hold: int = 0
    #: Holds up to this one are off: go on training.
    release: int = 0
    #: Write a checkpoint and leave the loop; the reason.
    stop: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One allocation of a group, in rank order."""

    allocation: str
    node: str
    workers: int
    gpus: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Joiner:
    """What a fresh worker knows of itself."""

    ray_rank: int
    ray_size: int
    #: Label of its raylet; "" outside a lease.
    allocation: str
    host: str
    gpus: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """A worker's place in its group."""

    group: int
    rank: int
    size: int
    local_rank: int
    local_size: int
    #: Sorted union of the group's GPUs on this worker's node, as CUDA_VISIBLE_DEVICES counts. Empty: leave it alone.
    visible: tuple[int, ...]
    #: Commands up to here were for earlier groups.
    word: Word


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """What rank 0 posts: totals since its group started, so that a lost post costs nothing."""

    group: int
    phase: Phase
    step: int
    samples_done: int
    samples_total: int | None
    loss_sum: float
    loss_count: int
    #: Seconds of rank 0's monotonic clock.
    at: float
    metrics: Mapping[str, float] = field(default_factory=dict)
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """The gang as the controller sees it."""

    group: int
    size: int
    #: Ray's world rank -> allocation, of those that joined.
    joined: Mapping[int, str]
    #: Newest hold that every rank has acknowledged; 0: none of this group.
    held: int
    #: Newest save that rank 0 has finished.
    saved: int
    checkpoint_step: int | None
    #: Seconds that the last checkpoint took.
    save_s: float
    counters: Counters | None

    @property
    def full(self) -> bool:
        """Whether every worker of the group has joined."""
        return len(self.joined) == self.size > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How a run ended. Neither a result nor a reason to stop: it failed."""

    #: JSON of what rank 0's loop returned.
    result: str | None = None
    #: URL of the last checkpoint.
    checkpoint: str | None = None
    #: Why it was asked to stop.
    stopped: str | None = None
