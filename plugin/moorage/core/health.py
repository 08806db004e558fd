"""How a node is, in one word, and for how long it has been silent."""

from __future__ import annotations

from datetime import datetime, timedelta

from moorage.core.fleet import Node
from moorage.core.lease import AllocationRole, Lease
from moorage.core.policy import Policy
from moorage.core.state import State


def silent(node: Node, heard: float) -> float | None:
    """Seconds of the hearing clock since the node's last report. None: never heard."""
    return None if node.heard is None else max(0.0, heard - node.heard)


def stale(node: Node, heard: float, policy: Policy) -> bool:
    """Whether the last report is too old for new grants; a node never heard is stale too."""
    since = silent(node, heard)
    return since is None or since >= policy.node_stale_s


def condition(node: Node, heard: float, policy: Policy) -> str:
    """One word, the worst first: lost, notice, stale, draining, cordoned, ready."""
    if node.lost:
        return "lost"
    if node.notice_deadline is not None:
        return "notice"
    if stale(node, heard, policy):
        return "stale"
    if node.draining:
        return "draining"
    return "cordoned" if node.cordoned else "ready"


def lost_because(node: Node, state: State, policy: Policy, now: datetime) -> str:
    """Why the node is to be declared lost; empty if it is not."""
    since = silent(node, state.heard)
    if node.lost or since is None:
        return ""
    passed = node.notice_deadline is not None and now >= node.notice_deadline
    if passed and since >= policy.notice_silent_s:
        return f"{node.id} is lost: silent for {since:.0f} s and the deadline of its notice has passed"
    if since >= policy.node_lost_s and not _progresses(node, state, policy):
        return f"{node.id} is lost: silent for {since:.0f} s without progress on it"
    return ""


def _progresses(node: Node, state: State, policy: Policy) -> bool:
    """Whether an attempt that was heard lately says that it uses the node."""
    return any(
        _heard_lately(lease, state.heard, policy) and _uses(lease, node.id)
        for lease in state.leases.values()
        if lease.state.active
    )


def _heard_lately(lease: Lease, heard: float, policy: Policy) -> bool:
    return lease.attempt_heard is not None and heard - lease.attempt_heard <= policy.attempt_silent_s


def _uses(lease: Lease, node: str) -> bool:
    """Workers that the attempt says it uses; and a head or process is where the attempt itself speaks from."""
    using = lease.progress.using if lease.progress else ()
    here = (a for a in lease.live if a.node == node and a.epoch == lease.epoch)
    return any(a.id in using or a.role is not AllocationRole.WORKER for a in here)


def lost_at(node: Node, state: State, policy: Policy, now: datetime) -> datetime | None:
    """The earliest time at which silence alone can make the node lost."""
    since = silent(node, state.heard)
    if node.lost or since is None:
        return None
    at = now + timedelta(seconds=max(policy.node_lost_s - since, policy.rebalance_every_s))
    if node.notice_deadline is None:
        return at
    quiet = now + timedelta(seconds=max(policy.notice_silent_s - since, 0.5))
    return min(at, max(node.notice_deadline, quiet))
