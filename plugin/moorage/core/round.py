"""One call of `decide` while it runs: the decisions so far, and the state as they leave it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from moorage.core.apply import apply
from moorage.core.columns import Columns, columns, hold_of
from moorage.core.decision import Decision, Grant, Lose, Retarget
from moorage.core.lease import Allocation, AllocationRole, Lease
from moorage.core.place import Spot
from moorage.core.policy import Policy
from moorage.core.state import State


@dataclass(slots=True)
class Round:
    """Local to one call; the state it was given is never changed, only replaced."""

    state: State
    policy: Policy
    now: datetime
    decisions: list[Decision] = field(default_factory=list)
    #: Times at which something time-based may change.
    times: list[datetime] = field(default_factory=list)
    #: Leases that wait for GPUs, in their order; what the elastic stage must not take from.
    waiting: list[Lease] = field(default_factory=list)
    _fleet: Columns | None = None

    @property
    def fleet(self) -> Columns:
        """The fleet after the decisions so far."""
        if self._fleet is None:
            self._fleet = columns(self.state, self.policy)
        return self._fleet

    def add(self, decision: Decision) -> None:
        """Decide it: later stages see it done."""
        self.decisions.append(decision)
        self.state = apply(self.state, decision, self.policy, self.now)
        match decision:
            case Lose():
                self._fleet = None
            case Grant():
                self._take(decision.lease, decision.allocations)
            case Retarget():
                self._take(decision.lease, decision.add)

    def reserve(self, lease: Lease, spots: Iterable[Spot]) -> None:
        """Keep GPUs from everyone who comes later in this round."""
        cores, size = lease.request.cpus_per_worker, lease.request.memory_per_worker
        self._fleet = self.fleet.taking((s.node, s.gpus, len(s.workers) * cores, len(s.workers) * size) for s in spots)

    def wake(self, at: datetime | None) -> None:
        """Decide again at this time, if it is still to come."""
        if at is not None and at > self.now:
            self.times.append(at)

    def wake_in(self, seconds: float) -> None:
        """Decide again after so many seconds; those that have passed do not count."""
        if seconds > 0:
            self.times.append(self.now + timedelta(seconds=seconds))

    def leases(self) -> tuple[Lease, ...]:
        """All leases as they are now, oldest first."""
        return tuple(sorted(self.state.leases.values(), key=lambda lease: (lease.submitted_at, lease.id)))

    def _take(self, lease_id: str, allocations: Iterable[Allocation]) -> None:
        fleet, lease = self.fleet, self.state.leases[lease_id]
        self._fleet = fleet.taking(hold_of(lease, allocation) for allocation in allocations)
        for allocation in allocations:
            if allocation.role is AllocationRole.HEAD:
                self._fleet = self._fleet.with_head(allocation.node)
