"""Allocations outside a lease's target: drained as soon as the attempt lets go, or at the target's time."""

from __future__ import annotations

from moorage.core.decision import Drop
from moorage.core.lease import Allocation, AllocationState, Lease
from moorage.core.round import Round


def drops(round_: Round) -> None:
    """Drop what is let go; wake up for what is not."""
    for lease in round_.leases():
        if not lease.state.active:
            continue
        for allocation in outside(lease):
            why = _why(round_, lease, allocation)
            if why:
                round_.add(Drop(lease=lease.id, allocation=allocation.id, reason=why))
            else:
                round_.wake(lease.target.by)
                round_.wake_in(round_.policy.rebalance_every_s)


def outside(lease: Lease) -> tuple[Allocation, ...]:
    """Live allocations that the lease should not hold and that do not drain yet."""
    return tuple(a for a in lease.live if a.state is not AllocationState.DRAINING and a.id not in lease.target.hold)


def _why(round_: Round, lease: Lease, allocation: Allocation) -> str:
    by, progress = lease.target.by, lease.progress
    if by is not None and round_.now >= by:
        return f"{allocation.id} was to be let go by now"
    if progress and progress.target_revision >= lease.target.revision and allocation.id not in progress.using:
        return f"the attempt let {allocation.id} go"
    return ""
