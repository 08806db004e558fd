"""What happened, told from the difference of two values: so every way to change a lease is told alike."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from moorage.api.values import EventKind
from moorage.broker.memo import Memo
from moorage.core.fleet import Node
from moorage.core.job import Progress
from moorage.core.lease import Allocation, Lease, LeaseState

Facts = Mapping[str, str | int | float | None]


@dataclass(frozen=True, slots=True)
class Said:
    """A journal row before it has a number."""

    kind: EventKind
    sentence: str
    facts: Facts = field(default_factory=dict)


def gpus_of(lease: Lease) -> int:
    """GPUs that the lease has taken."""
    return sum(len(a.gpus) for a in lease.live)


def lease_story(old: Lease | None, new: Lease, memo: Memo) -> Iterator[Said]:
    """Rows for what changed in a lease, in the order in which a reader wants them."""
    if old is None:
        yield _submitted(new)
        old = new
    yield from _state_story(old, new, memo)
    yield from _target_story(old, new)
    yield from _allocation_story(old, new)
    yield from _warnings(old, new)


def _submitted(new: Lease) -> Said:
    low, high = new.request.workers
    workers = f"{low}" if low == high else f"{low} to {high}"
    return Said(EventKind.SUBMITTED, f"submitted: {workers} workers with {new.request.gpus_per_worker} GPUs each")


def _state_story(old: Lease, new: Lease, memo: Memo) -> Iterator[Said]:
    if new.state is old.state:
        if new.state is LeaseState.QUEUED and new.reason != old.reason:
            yield Said(EventKind.HELD, new.reason)
        return
    match new.state:
        case LeaseState.QUEUED:
            facts = {"fault": new.failures - old.failures, "interruption": new.interruptions - old.interruptions}
            yield Said(EventKind.RETRIED, new.reason, facts)
        case LeaseState.GRANTED:
            yield _granted(new, memo)
        case LeaseState.RUNNING:
            yield Said(EventKind.STARTED, f"attempt {new.epoch} was heard")
        case LeaseState.STOPPING:
            yield Said(EventKind.STOPPING, new.reason)
        case LeaseState.ENDED:
            yield Said(EventKind.ENDED, new.reason, {"outcome": str(new.outcome)})


def _granted(new: Lease, memo: Memo) -> Said:
    nodes = ",".join(dict.fromkeys(a.node for a in new.live if a.epoch == new.epoch))
    facts: Facts = {"workers": new.workers, "gpus": gpus_of(new), "level": memo.level, "nodes": nodes}
    return Said(EventKind.GRANTED, new.reason, facts)


def _target_story(old: Lease, new: Lease) -> Iterator[Said]:
    if new.target.revision == old.target.revision or new.epoch != old.epoch:
        return
    facts: Facts = {
        "from": old.workers,
        "to": new.workers,
        "why": str(new.target.why) if new.target.why else None,
        "revision": new.target.revision,
        "gpus": gpus_of(new),
    }
    yield Said(EventKind.RESIZED, new.target.reason, facts)


def _allocation_story(old: Lease, new: Lease) -> Iterator[Said]:
    before = {a.id: a for a in old.allocations}
    for a in new.allocations:
        known = before.get(a.id)
        if known is None or known.state is not a.state:
            yield Said(EventKind.ALLOCATION, _sentence(a), _facts(a))


def _sentence(a: Allocation) -> str:
    devices = f"GPUs {','.join(map(str, a.gpus))} of " if a.gpus else ""
    return f"{a.role} on {devices}{a.node} is {a.state}"


def _facts(a: Allocation) -> Facts:
    return {
        "allocation": a.id,
        "state": str(a.state),
        "node": a.node,
        "role": str(a.role),
        "gpus": len(a.gpus),
        "workers": a.workers,
    }


def _warnings(old: Lease, new: Lease) -> Iterator[Said]:
    for key, sentence in new.warnings.items():
        if old.warnings.get(key) != sentence:
            yield Said(EventKind.WARNED, sentence, {"key": key})


def progress_row(lease: Lease, progress: Progress, metrics: Mapping[str, float]) -> Said:
    """The heartbeats of the last second as one row; `metrics` are the newest of each name among them."""
    facts: Facts = {
        "phase": str(progress.phase),
        "step": progress.step,
        "samples": progress.samples_done,
        "samples_total": progress.samples_total,
        "loss": progress.loss,
        "throughput": progress.throughput,
        "workers": progress.workers,
        "checkpoint_step": progress.checkpoint_step,
        "gpus": gpus_of(lease),
        **{f"metric.{name}": value for name, value in metrics.items()},
    }
    return Said(EventKind.PROGRESS, progress.message or str(progress.phase), facts)


def node_story(old: Node | None, new: Node) -> Iterator[Said]:
    """Rows for what changed in a node; losses and notices are told by those who know their cause."""
    if old is None:
        yield Said(EventKind.NODE, f"{new.id} joined with {len(new.gpus)} GPUs", {"gpus": len(new.gpus)})
        return
    if old.lost and not new.lost:
        yield Said(EventKind.NODE, f"{new.id} is back: its report is clean")
    if old.draining != new.draining:
        yield Said(EventKind.NODE, f"{new.id} {'drains' if new.draining else 'drains no more'}")
    elif old.cordoned != new.cordoned:
        yield Said(EventKind.NODE, f"{new.id} is {'cordoned' if new.cordoned else 'open to grants again'}")


def lost_rows(node: Node, reason: str, losers: list[Lease]) -> Iterator[tuple[Lease | None, Said]]:
    """One row for a lost node, and one for each lease (as it was before) that held something there."""
    notice = int(node.notice_deadline is not None)
    yield None, Said(EventKind.LOST, reason, {"notice": notice})
    for lease in losers:
        workers = sum(a.workers for a in lease.live if a.node == node.id)
        yield lease, Said(EventKind.LOST, reason, {"workers": workers, "notice": notice})
