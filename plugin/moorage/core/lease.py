"""A request's life in the broker: the two state tables, and the values that move through them.

Everything that decides which transitions exist is in `LEASE_TABLE` and `ALLOCATION_TABLE`; docs/concepts.md is printed
from them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from enum import StrEnum

from moorage.core.job import Job, Observation, Progress
from moorage.core.request import Request


class LeaseState(StrEnum):
    #: Waits for GPUs; `Lease.reason` says why.
    QUEUED = "queued"
    #: Has allocations; the attempt has not been heard yet.
    GRANTED = "granted"
    #: The attempt was heard.
    RUNNING = "running"
    #: Told to stop; some allocation is not freed yet.
    STOPPING = "stopping"
    #: Over; `Lease.outcome` says how.
    ENDED = "ended"

    @property
    def active(self) -> bool:
        """Whether an attempt may be running."""
        return self in (LeaseState.GRANTED, LeaseState.RUNNING)


class Outcome(StrEnum):
    #: Its job ended well: exit code 0, and the completion marker where the job promised one.
    SUCCEEDED = "succeeded"
    #: Its job failed by its own fault, and has no retry left.
    FAILED = "failed"
    #: Its owner, an operator, `stop_at` or the budget ended it.
    STOPPED = "stopped"


class LeaseEvent(StrEnum):
    GRANT = "grant"
    HEARD = "heard"
    RETRY = "retry"
    STOP = "stop"
    FREED = "freed"


#: (state, event) -> next state. A pair that is absent is refused (`IllegalTransition`).
LEASE_TABLE: Mapping[tuple[LeaseState, LeaseEvent], LeaseState] = {
    (LeaseState.QUEUED, LeaseEvent.GRANT): LeaseState.GRANTED,
    # An attempt that was queued again (repair timed out) may still free old allocations.
    (LeaseState.QUEUED, LeaseEvent.STOP): LeaseState.STOPPING,
    (LeaseState.GRANTED, LeaseEvent.HEARD): LeaseState.RUNNING,
    (LeaseState.GRANTED, LeaseEvent.RETRY): LeaseState.QUEUED,
    (LeaseState.GRANTED, LeaseEvent.STOP): LeaseState.STOPPING,
    (LeaseState.RUNNING, LeaseEvent.HEARD): LeaseState.RUNNING,
    (LeaseState.RUNNING, LeaseEvent.RETRY): LeaseState.QUEUED,
    (LeaseState.RUNNING, LeaseEvent.STOP): LeaseState.STOPPING,
    # Idempotent: a second release changes nothing.
    (LeaseState.STOPPING, LeaseEvent.STOP): LeaseState.STOPPING,
    # The attempt may report once more while it checkpoints.
    (LeaseState.STOPPING, LeaseEvent.HEARD): LeaseState.STOPPING,
    # The last allocation is gone.
    (LeaseState.STOPPING, LeaseEvent.FREED): LeaseState.ENDED,
}


class AllocationState(StrEnum):
    #: Decided; its agent has not started it yet. Its GPUs are taken from now on.
    RESERVED = "reserved"
    #: Its agent reported it running.
    HELD = "held"
    #: To be stopped; its GPUs are still taken.
    DRAINING = "draining"
    #: Its agent reported its processes gone, or its node is lost.
    FREED = "freed"


class AllocationEvent(StrEnum):
    STARTED = "started"
    DRAIN = "drain"
    GONE = "gone"


ALLOCATION_TABLE: Mapping[tuple[AllocationState, AllocationEvent], AllocationState] = {
    (AllocationState.RESERVED, AllocationEvent.STARTED): AllocationState.HELD,
    (AllocationState.RESERVED, AllocationEvent.DRAIN): AllocationState.DRAINING,
    # The node was lost, or the process ended before the agent could report it running.
    (AllocationState.RESERVED, AllocationEvent.GONE): AllocationState.FREED,
    (AllocationState.HELD, AllocationEvent.STARTED): AllocationState.HELD,
    (AllocationState.HELD, AllocationEvent.DRAIN): AllocationState.DRAINING,
    (AllocationState.HELD, AllocationEvent.GONE): AllocationState.FREED,
    (AllocationState.DRAINING, AllocationEvent.STARTED): AllocationState.DRAINING,
    (AllocationState.DRAINING, AllocationEvent.DRAIN): AllocationState.DRAINING,
    (AllocationState.DRAINING, AllocationEvent.GONE): AllocationState.FREED,
    # A repeated report; nothing comes back from freed.
    (AllocationState.FREED, AllocationEvent.GONE): AllocationState.FREED,
}


class IllegalTransition(Exception):
    """An event that the table does not have for this state; says which events it has."""

    def __init__(self, what: str, state: StrEnum, event: StrEnum, allowed: tuple[str, ...]) -> None:
        super().__init__(f"{what} is {state}: {event} is not possible; possible: {', '.join(allowed) or 'nothing'}")
        self.what, self.state, self.event, self.allowed = what, state, event, allowed


def next_lease_state(lease: str, state: LeaseState, event: LeaseEvent) -> LeaseState:
    """The table's answer. Raises `IllegalTransition` for a pair that it does not have."""
    try:
        return LEASE_TABLE[state, event]
    except KeyError:
        raise IllegalTransition(
            f"lease {lease}", state, event, tuple(e for s, e in LEASE_TABLE if s is state)
        ) from None


def next_allocation_state(allocation: str, state: AllocationState, event: AllocationEvent) -> AllocationState:
    """The table's answer. Raises `IllegalTransition` for a pair that it does not have."""
    try:
        return ALLOCATION_TABLE[state, event]
    except KeyError:
        allowed = tuple(e for s, e in ALLOCATION_TABLE if s is state)
        raise IllegalTransition(f"allocation {allocation}", state, event, allowed) from None


class AllocationRole(StrEnum):
    #: The one process of a process job.
    PROCESS = "process"
    #: The Ray head and driver of a ray job: CPU only.
    HEAD = "head"
    #: A raylet with exactly these GPUs.
    WORKER = "worker"


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """An immutable set of GPUs on one node from one decision."""

    #: ``<lease>.<n>``: n counts the lease's allocations, so ids need no randomness.
    id: str
    lease: str
    #: Epoch of the attempt it was decided for.
    epoch: int
    node: str
    role: AllocationRole
    #: Device indices on the node, sorted; empty for a head.
    gpus: tuple[int, ...]
    #: Workers of the gang that run on it; 0 for a head.
    workers: int
    state: AllocationState = AllocationState.RESERVED
    #: When it must be gone at the latest, while draining. None: as soon as its processes end.
    drain_by: datetime | None = None

    @property
    def live(self) -> bool:
        """Whether its GPUs are taken."""
        return self.state is not AllocationState.FREED


class Why(StrEnum):
    """Why a target changed; a word for the timeline, not a sentence."""

    GROW = "grow"
    SHRINK = "shrink"
    #: A node is going: move before its deadline.
    NOTICE = "notice"
    #: A node went: replace what it held.
    REPAIR = "repair"
    PREEMPT = "preempt"
    OPERATOR = "operator"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The allocations that a running lease should hold: absolute, so grow, shrink and move are one thing."""

    revision: int = 0
    hold: tuple[str, ...] = ()
    #: Allocations outside `hold` are taken at this time even if the attempt has not let go. None: no hurry.
    by: datetime | None = None
    why: Why | None = None
    reason: str = ""
    at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """Everything the broker knows of one request. Immutable: the broker replaces it."""

    id: str
    #: Labels that name the owner, for example {"airflow.dag_id": ..., "airflow.run_id": ...}.
    owner: Mapping[str, str]
    #: 1 + how many leases of the same owner had ended when it was submitted.
    generation: int
    team: str
    request: Request
    job: Job | None
    submitted_at: datetime
    state: LeaseState = LeaseState.QUEUED
    outcome: Outcome | None = None
    #: One sentence: why it waits, what it does, or how it ended.
    reason: str = ""
    #: Attempt number; 0 before the first grant. Calls with another epoch are refused.
    epoch: int = 0
    granted_at: datetime | None = None
    ended_at: datetime | None = None
    #: All allocations of the current and earlier epochs that are not forgotten yet.
    allocations: tuple[Allocation, ...] = ()
    #: How many allocations the lease ever had: the next one's number.
    allocations_made: int = 0
    target: Target = Target()
    progress: Progress | None = None
    #: Bounded history, oldest first (`Policy.observations`).
    observations: tuple[Observation, ...] = ()
    #: Highest step that any attempt reported: steps below it are work done again.
    best_step: int = 0
    #: Attempts that failed by the job's own fault.
    failures: int = 0
    interruptions: int = 0
    #: Not granted before (retry back-off). None: at once.
    not_before: datetime | None = None
    #: When the gang fell below its min. None: it has not.
    short_since: datetime | None = None
    #: The same on the hearing clock, which patience with it is counted on; stamped as the lease enters a `State`.
    short_heard: float | None = None
    #: The loss at which training was last judged flat. None: it never was.
    flat_loss: float | None = None
    #: When the last resize was decided. None: never.
    resized_at: datetime | None = None
    #: Told to stop at the latest at this time, while stopping.
    stop_by: datetime | None = None
    #: Result of the completion marker (JSON text). None: none.
    result: str | None = None
    #: Dollars over all closed and open ledger segments, as of the last decision.
    spent_usd: Decimal = Decimal(0)
    #: Hearing clock when the owner was last heard. None: never.
    owner_heard: float | None = None
    #: Hearing clock when the attempt (trainer, or agent for it) was last heard. None: not since its grant.
    attempt_heard: float | None = None
    #: Hearing clock at its last grant. None: never granted.
    granted_heard: float | None = None
    #: `best_step` at its last grant: an attempt that ends at the same step got nowhere.
    granted_step: int = 0
    #: Attempts in a row that ended without a new step; bounded by `Policy.fruitless_attempts`.
    fruitless: int = 0
    #: Warnings given so far, key -> sentence; each is given once.
    warnings: Mapping[str, str] = field(default_factory=dict)
    #: Lease whose checkpoints this one continues.
    resume_from: str | None = None
    #: Facts others hang on it, for example {"mlflow.run_id": ...}.
    notes: Mapping[str, str] = field(default_factory=dict)

    @property
    def live(self) -> tuple[Allocation, ...]:
        """Allocations whose GPUs are taken."""
        return tuple(a for a in self.allocations if a.live)

    @property
    def workers(self) -> int:
        """Workers of live allocations of this epoch that are to be kept."""
        return sum(a.workers for a in self.live if a.epoch == self.epoch and a.id in self.target.hold)
