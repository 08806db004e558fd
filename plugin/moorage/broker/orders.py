"""What each node should have, derived from memory alone: an agent that missed everything needs only the newest."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime

from moorage import settings
from moorage.api.values import Order, Want
from moorage.broker.memo import Memo
from moorage.broker.memory import Memory
from moorage.core.fleet import Node
from moorage.core.job import JobKind
from moorage.core.lease import Allocation, AllocationRole, AllocationState, Lease, LeaseState

MLFLOW_RUN = "mlflow.run_id"


@dataclass(frozen=True, slots=True)
class Terms:
    """What orders carry besides the state. `secret` signs the tokens of attempts, so none is stored."""

    secret: bytes
    public_url: str | None = None
    mlflow_uri: str | None = None

    def sign(self, purpose: str, lease: str, epoch: int) -> str:
        """A token that only this server can have made, for one purpose, lease and epoch."""
        return hmac.new(self.secret, f"{purpose}|{lease}|{epoch}".encode(), hashlib.sha256).hexdigest()

    def trainer_token(self, lease: str, epoch: int) -> str:
        return f"mtr_{lease}.{epoch}.{self.sign('trainer', lease, epoch)}"


def orders_for(node_id: str, memory: Memory, terms: Terms, now: datetime) -> tuple[Order, ...]:
    """Every order of a node. A lost node gets none: what it held is freed, so its agent ends it."""
    node = memory.state.nodes.get(node_id)
    if node is None or node.lost:
        return ()
    return tuple(
        _order(a, lease, node, memory, terms, now)
        for lease in memory.leases_on(node_id)
        for a in lease.live
        if a.node == node_id
    )


def due(memory: Memory, node_id: str) -> Iterator[datetime]:
    """When orders of a node change by time alone."""
    for lease in memory.leases_on(node_id):
        for a in lease.live:
            if a.node == node_id and a.drain_by is not None:
                yield a.drain_by


def _order(a: Allocation, lease: Lease, node: Node, memory: Memory, terms: Terms, now: datetime) -> Order:
    memo = memory.entries[lease.id].memo
    want, drain_by = _want(a, lease, node, memo, now)
    ours = lease.job is not None and lease.job.kind is JobKind.RAY
    return Order(
        allocation=a.id,
        lease=lease.id,
        epoch=a.epoch,
        role=a.role,
        team=lease.team,
        gpus=a.gpus,
        want=want,
        job=lease.job,
        env=_env(a, lease, memory, terms),
        head=_head(a, lease, memo),
        ray_token=terms.sign("ray", lease.id, a.epoch) if ours else None,
        driver=_driver(a, lease, memo),
        drain_by=drain_by,
    )


def _want(a: Allocation, lease: Lease, node: Node, memo: Memo, now: datetime) -> tuple[Want, datetime | None]:
    if a.state is not AllocationState.DRAINING:
        if node.notice_deadline is not None and a.role is AllocationRole.WORKER:
            # The trainer learns of the notice through Ray, whatever the broker decides.
            return Want.DRAIN, node.notice_deadline
        return Want.RUN, None
    if a.drain_by is not None and a.drain_by > now and _may_go_on(a, lease, memo):
        return Want.DRAIN, a.drain_by
    return Want.STOP, a.drain_by


def _may_go_on(a: Allocation, lease: Lease, memo: Memo) -> bool:
    """Whether the allocation's attempt may still be there to write a checkpoint."""
    if a.epoch != lease.epoch or memo.over_epoch >= a.epoch:
        return False
    # A queued lease with live allocations was preempted: its attempt has until `drain_by`.
    return lease.state.active or lease.state in (LeaseState.STOPPING, LeaseState.QUEUED)


def _head(a: Allocation, lease: Lease, memo: Memo) -> str | None:
    if a.role is not AllocationRole.WORKER:
        return None
    if lease.job is not None and lease.job.kind is JobKind.RAYLET:
        return lease.job.head
    return memo.head if memo.head_epoch == a.epoch else None


def _driver(a: Allocation, lease: Lease, memo: Memo) -> bool:
    """Start the driver once enough workers for the gang's min are up; what was started stays started."""
    if a.role is not AllocationRole.HEAD:
        return False
    if memo.driver_epoch == a.epoch:
        return True
    up = sum(w.workers for w in lease.live if w.epoch == a.epoch and w.state is AllocationState.HELD)
    return up >= lease.request.workers[0]


def _env(a: Allocation, lease: Lease, memory: Memory, terms: Terms) -> Mapping[str, str]:
    said = {
        settings.URL: terms.public_url,
        settings.LEASE: lease.id,
        settings.EPOCH: str(a.epoch),
        settings.TOKEN: terms.trainer_token(lease.id, a.epoch),
        settings.STORAGE: storage(lease, memory, lease.id),
        "MOORAGE_RESUME_FROM": storage(lease, memory, lease.resume_from) if lease.resume_from else None,
        "MLFLOW_RUN_ID": lease.notes.get(MLFLOW_RUN),
        "MLFLOW_TRACKING_URI": terms.mlflow_uri,
    }
    own = lease.job.env if lease.job else {}
    return {**{name: value for name, value in said.items() if value is not None}, **own}


def storage(lease: Lease, memory: Memory, of: str) -> str | None:
    """fsspec URL of the checkpoints of a lease of the same team and job."""
    base = (lease.job.storage if lease.job else None) or memory.policy.storage
    return f"{base.rstrip('/')}/{lease.team}/{of}" if base else None
