"""Carry out one decision on values. `decide` uses it to see what it decided; the broker, to make it so."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import assert_never

from moorage.core.decision import Claim, Decision, Drop, Grant, Hold, Lose, Retarget, Retry, Stop, Warn
from moorage.core.follow import drained, ended_if_empty, moved, settled, stopping
from moorage.core.lease import Allocation, AllocationEvent, Lease, LeaseEvent, Target, next_lease_state
from moorage.core.policy import Policy
from moorage.core.state import State


def apply(state: State, decision: Decision, policy: Policy, now: datetime) -> State:
    """The state after the decision.

    Raises:
        KeyError: the decision names a lease or node that is not there.
        IllegalTransition: the state tables do not have it.
    """
    match decision:
        case Lose():
            return _lose(state, decision, now)
        case Claim():
            return state
        case Grant() | Retarget() | Retry() | Stop() | Drop() | Warn() | Hold():
            before = state.leases[decision.lease]
            after = _on_lease(before, decision, state.heard, policy, now)
            return state if after is before else state.with_leases(after)
        case _:
            assert_never(decision)


def _on_lease(
    lease: Lease,
    decision: Grant | Retarget | Retry | Stop | Drop | Warn | Hold,
    heard: float,
    policy: Policy,
    now: datetime,
) -> Lease:
    match decision:
        case Grant():
            return _grant(lease, decision, heard, now)
        case Retarget():
            return _retarget(lease, decision, now)
        case Retry():
            return _retry(lease, decision, policy, now)
        case Stop():
            return _stop(lease, decision, now)
        case Drop():
            return _drop(lease, decision, now)
        case Warn():
            return replace(lease, warnings={**lease.warnings, decision.key: decision.reason})
        case Hold():
            return lease if lease.reason == decision.reason else replace(lease, reason=decision.reason)
        case _:
            assert_never(decision)


def _grant(lease: Lease, decision: Grant, heard: float, now: datetime) -> Lease:
    """A new attempt: what the last one said of itself is forgotten, what the lease achieved is not."""
    return replace(
        lease,
        state=next_lease_state(lease.id, lease.state, LeaseEvent.GRANT),
        reason=decision.reason,
        epoch=decision.epoch,
        granted_at=now,
        granted_heard=heard,
        granted_step=lease.best_step,
        allocations=(*lease.live, *decision.allocations),
        allocations_made=lease.allocations_made + len(decision.allocations),
        target=Target(
            revision=lease.target.revision + 1,
            hold=tuple(a.id for a in decision.allocations),
            reason=decision.reason,
            at=now,
        ),
        progress=None,
        attempt_heard=None,
        not_before=None,
        short_since=None,
        resized_at=None,
    )


def _retarget(lease: Lease, decision: Retarget, now: datetime) -> Lease:
    target = Target(
        revision=lease.target.revision + 1,
        hold=decision.hold,
        by=decision.by,
        why=decision.why,
        reason=decision.reason,
        at=now,
    )
    lease = replace(
        lease,
        allocations=(*lease.live, *decision.add),
        allocations_made=lease.allocations_made + len(decision.add),
        target=target,
        resized_at=now,
        flat_loss=lease.flat_loss if decision.flat_loss is None else decision.flat_loss,
    )
    return settled(lease, now)


def _retry(lease: Lease, decision: Retry, policy: Policy, now: datetime) -> Lease:
    """Queued again, with its identity and place; its old GPUs stay taken until they are reported free."""
    grace = timedelta(seconds=policy.stop_grace_s if decision.preempted else 0)
    by = decision.by or now + grace
    fruitless = 0 if lease.best_step > lease.granted_step else lease.fruitless + (not decision.preempted)
    return replace(
        lease,
        state=next_lease_state(lease.id, lease.state, LeaseEvent.RETRY),
        reason=decision.reason,
        allocations=tuple(drained(a, by) for a in lease.allocations),
        failures=lease.failures + decision.fault,
        interruptions=lease.interruptions + decision.interruption,
        fruitless=fruitless,
        not_before=decision.not_before,
        short_since=None,
    )


def _stop(lease: Lease, decision: Stop, now: datetime) -> Lease:
    lease = stopping(lease, decision.outcome, decision.reason, decision.by or now)
    if decision.result is not None:
        lease = replace(lease, result=decision.result)
    return ended_if_empty(lease, now)


def _drop(lease: Lease, decision: Drop, now: datetime) -> Lease:
    by = decision.by or now
    allocations = tuple(drained(a, by) if a.id == decision.allocation else a for a in lease.allocations)
    return settled(replace(lease, allocations=allocations), now)


def _lose(state: State, decision: Lose, now: datetime) -> State:
    node = replace(state.nodes[decision.node], lost=True)
    losers = [lease for lease in state.leases.values() if any(a.node == node.id for a in lease.live)]
    return state.with_nodes(node).with_leases(*(_bereaved(lease, node.id, now) for lease in losers))


def _bereaved(lease: Lease, node: str, now: datetime) -> Lease:
    allocations = tuple(_freed_on(a, node) for a in lease.allocations)
    return settled(ended_if_empty(replace(lease, allocations=allocations), now), now)


def _freed_on(allocation: Allocation, node: str) -> Allocation:
    return moved(allocation, AllocationEvent.GONE) if allocation.node == node and allocation.live else allocation
