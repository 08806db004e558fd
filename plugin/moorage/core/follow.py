"""What the world did, values to values: an attempt was heard, a process started, a process went."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime

from moorage.core.job import JobKind, Observation, Phase, Progress
from moorage.core.lease import (
    Allocation,
    AllocationEvent,
    AllocationState,
    Lease,
    LeaseEvent,
    LeaseState,
    Outcome,
    next_allocation_state,
    next_lease_state,
)
from moorage.core.policy import Policy


def heard(lease: Lease, progress: Progress | None, policy: Policy, now: datetime, heard: float) -> Lease:
    """The attempt was heard: the trainer with its progress, or (None) its agent, which saw it run.

    Raises:
        IllegalTransition: the lease is queued or ended, so nothing may speak for it.
    """
    state = next_lease_state(lease.id, lease.state, LeaseEvent.HEARD)
    lease = replace(lease, state=state, attempt_heard=heard)
    return settled(_progressed(lease, progress, policy, now) if progress else lease, now)


def _progressed(lease: Lease, progress: Progress, policy: Policy, now: datetime) -> Lease:
    return replace(
        lease,
        progress=progress,
        best_step=max(lease.best_step, progress.step or 0),
        observations=observed(lease.observations, progress, now, policy.observations),
    )


def observed(history: tuple[Observation, ...], progress: Progress, now: datetime, most: int) -> tuple[Observation, ...]:
    """The history with this heartbeat, if it trains and tells something new, thinned to `most`."""
    if progress.phase is not Phase.TRAINING or progress.step is None or progress.samples_done is None:
        return history
    if progress.workers is None or (history and history[-1].step == progress.step):
        return history
    point = Observation(
        at=now,
        step=progress.step,
        samples=progress.samples_done,
        workers=progress.workers,
        loss=progress.loss,
        throughput=progress.throughput,
    )
    return thinned((*history, point), most)


def thinned(history: tuple[Observation, ...], most: int) -> tuple[Observation, ...]:
    """At most `most` points: every second one of the older half goes, so that the beginning is kept."""
    if len(history) <= most:
        return history
    half = len(history) // 2
    return (*history[:half:2], *history[half:])[-most:]


def started(lease: Lease, allocation_id: str, now: datetime | None = None) -> Lease:
    """The allocation's agent reported it running. Unknown ids change nothing: they were forgotten.

    A lease that no trainer will ever speak for (no job, or raylets of the autoscaler) runs from here on.
    """
    lease = _each(lease, allocation_id, lambda a: moved(a, AllocationEvent.STARTED))
    mute = lease.job is None or lease.job.kind is JobKind.RAYLET
    held = any(a.id == allocation_id and a.epoch == lease.epoch for a in lease.live)
    if lease.state is LeaseState.GRANTED and mute and held:
        lease = replace(lease, state=next_lease_state(lease.id, lease.state, LeaseEvent.HEARD))
    return settled(lease, now)


def gone(lease: Lease, allocation_id: str, now: datetime) -> Lease:
    """Its processes are gone: the GPUs are free. A stopping lease ends with its last allocation.

    A lease of raylets whose last allocation was given back (it was draining) ends too: nothing of it is left to run.
    """
    given_back = any(a.id == allocation_id and a.state is AllocationState.DRAINING for a in lease.allocations)
    lease = _each(lease, allocation_id, lambda a: moved(a, AllocationEvent.GONE))
    if lease.state.active and given_back and not lease.live and lease.job and lease.job.kind is JobKind.RAYLET:
        lease = stopping(lease, Outcome.SUCCEEDED, "its last allocation was given back", now)
    return settled(ended_if_empty(lease, now), now)


def stopping(lease: Lease, outcome: Outcome, reason: str, by: datetime) -> Lease:
    """Told to stop. A second word changes nothing, unless the job turns out to have finished."""
    state = next_lease_state(lease.id, lease.state, LeaseEvent.STOP)
    if lease.state is LeaseState.STOPPING and outcome is not Outcome.SUCCEEDED:
        outcome, reason, by = lease.outcome or outcome, lease.reason, min(by, lease.stop_by or by)
    allocations = tuple(drained(a, by) for a in lease.allocations)
    return replace(
        lease, state=state, outcome=outcome, reason=reason, stop_by=by, short_since=None, allocations=allocations
    )


def ended_if_empty(lease: Lease, now: datetime) -> Lease:
    """Ended, if it is stopping and holds nothing any more."""
    if lease.state is not LeaseState.STOPPING or lease.live:
        return lease
    return replace(lease, state=next_lease_state(lease.id, lease.state, LeaseEvent.FREED), ended_at=now)


def moved(allocation: Allocation, event: AllocationEvent) -> Allocation:
    """The allocation after the event. Raises `IllegalTransition` for a pair that the table does not have."""
    return replace(allocation, state=next_allocation_state(allocation.id, allocation.state, event))


def drained(allocation: Allocation, by: datetime) -> Allocation:
    """Told to go by then; one that drains already keeps the earlier time, and a freed one stays freed."""
    if not allocation.live:
        return allocation
    at = by if allocation.drain_by is None else min(by, allocation.drain_by)
    return replace(moved(allocation, AllocationEvent.DRAIN), drain_by=at)


def settled(lease: Lease, now: datetime | None) -> Lease:
    """With `short_since` as its allocations have it."""
    if not is_short(lease):
        return lease if lease.short_since is None else replace(lease, short_since=None)
    return replace(lease, short_since=now) if lease.short_since is None and now else lease


def is_short(lease: Lease) -> bool:
    """Whether a running gang has fewer workers up than its min. Raylets of the autoscaler may fall below."""
    ray = lease.job is not None and lease.job.kind is JobKind.RAY
    return lease.state is LeaseState.RUNNING and ray and workers_up(lease) < lease.request.workers[0]


def workers_up(lease: Lease) -> int:
    """Workers whose allocations are reported running and are to be kept."""
    return sum(
        a.workers
        for a in lease.allocations
        if a.state is AllocationState.HELD and a.epoch == lease.epoch and a.id in lease.target.hold
    )


def _each(lease: Lease, allocation_id: str, change: Callable[[Allocation], Allocation]) -> Lease:
    allocations = tuple(change(a) if a.id == allocation_id else a for a in lease.allocations)
    return replace(lease, allocations=allocations)
