"""What `decide` answers: values, never executed where they are made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from moorage.core.lease import Allocation, Outcome, Why


class Code(StrEnum):
    """Why a node, or a whole request, was excluded. Counted, and made a sentence only by `explain`."""

    # A node:
    CORDONED = "cordoned"
    DRAINING = "draining"
    NOTICE = "notice"
    LOST = "lost"
    STALE = "stale"
    NO_GPU = "no-gpu"
    UNHEALTHY = "unhealthy"
    MODEL = "model"
    GPU_MEMORY = "gpu-memory"
    CAPACITY = "capacity"
    LABELS = "labels"
    BUSY = "busy"
    CPU = "cpu"
    MEMORY = "memory"
    TOPOLOGY = "topology"
    # A request:
    NEVER = "never"
    QUOTA = "quota"
    BACK_OFF = "back-off"
    BEHIND = "behind"
    NO_NODES = "no-nodes"
    TOO_SMALL = "too-small"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """One typed, counted "no". `facts` are what its sentence needs, for example {"largest": "4"}."""

    code: Code
    #: Nodes that it excluded; 0 where it is about the request.
    nodes: int = 0
    facts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """A queued lease gets all its allocations, the head first for a ray job; its epoch rises to `epoch`."""

    lease: str
    epoch: int
    allocations: tuple[Allocation, ...]
    #: The narrowest level whose one domain holds the gang, for example ``rack``; "" if none does.
    level: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Retarget:
    """A running lease should hold other allocations: `hold` lists kept and new ids, `add` the new ones."""

    lease: str
    hold: tuple[str, ...]
    add: tuple[Allocation, ...]
    why: Why
    reason: str
    #: When what is outside `hold` is taken in any case.
    by: datetime | None = None
    #: The loss at which training was judged flat, if that is why. None: it is not.
    flat_loss: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """The attempt is over; the lease is queued again. `fault`: it counts against the job's retries."""

    lease: str
    reason: str
    not_before: datetime | None = None
    fault: bool = False
    interruption: bool = False
    #: Taken for a better claim: counts for nothing, and the attempt may checkpoint until `by`.
    preempted: bool = False
    #: When its allocations are taken in any case. None: now, or after the stop's grace where it was preempted.
    by: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """The lease ends; its allocations drain until `by`. None: now."""

    lease: str
    outcome: Outcome
    reason: str
    by: datetime | None = None
    #: The completion marker's text, where there is one.
    result: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """`lease` needs `victims` (leases, shrunk or stopped by other decisions of the same plan) to let go first."""

    lease: str
    victims: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Lose:
    """A node is lost: what it held is freed."""

    node: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Drop:
    """A lease's allocation is not needed or not usable any more: drain it."""

    lease: str
    allocation: str
    reason: str
    by: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Warn:
    """Tell the attempt and its owner, once per `key`; only the lease's `warnings` remember it."""

    lease: str
    reason: str
    key: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """The lease waits, and why. Issued each time; the broker stores it only if its sentence changed."""

    lease: str
    reasons: tuple[Reason, ...]
    reason: str


Decision = Grant | Retarget | Retry | Stop | Claim | Lose | Drop | Warn | Hold


@dataclass(frozen=True, slots=True, kw_only=True)
class Decisions:
    """In the order in which they are to be applied; `wake_at`: when to decide again if nothing changes. None: never."""

    decisions: tuple[Decision, ...]
    wake_at: datetime | None
