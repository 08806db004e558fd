"""A heartbeat of an attempt and its answer."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from moorage.api.errors import Conflict
from moorage.api.values import EventKind, Held, Renewal
from moorage.broker.draft import Draft
from moorage.broker.journal import Facts, Said
from moorage.broker.memo import Memo, Unlogged
from moorage.core import follow
from moorage.core.job import Phase, Progress
from moorage.core.lease import Allocation, AllocationRole, AllocationState, Lease, LeaseState

#: Phases in which training goes on or stops only for a checkpoint.
_AT_IT = (Phase.TRAINING, Phase.CHECKPOINTING)


def check_epoch(lease: Lease, epoch: int) -> None:
    """Refuse an attempt that is not the lease's. Raises `Conflict`."""
    if epoch != lease.epoch:
        raise Conflict(f"attempt {epoch} of lease {lease.id} is over, attempt {lease.epoch} owns it: stop at once")
    if lease.state in (LeaseState.QUEUED, LeaseState.ENDED):
        raise Conflict(f"attempt {epoch} of lease {lease.id} is over, the lease is {lease.state}: stop at once")


def preempted(lease: Lease, epoch: int, memo: Memo, now: datetime) -> bool:
    """Whether the attempt was told to go for a better claim, and may still write its checkpoint."""
    return (
        lease.state is LeaseState.QUEUED
        and epoch == lease.epoch
        and memo.over_epoch < epoch
        and any(a.epoch == epoch and a.drain_by is not None and a.drain_by > now for a in lease.live)
    )


def take(draft: Draft, old: Lease, progress: Progress) -> bool:
    """Change the draft by a heartbeat; returns whether decisions depend on what is new."""
    new = follow.heard(old, progress, draft.policy, draft.now, draft.state.heard)
    draft.put(new)
    _training(draft, old, progress)
    _unlogged(draft, old.id, progress)
    return _stirs(old.progress, progress)


def _training(draft: Draft, old: Lease, progress: Progress) -> None:
    memo = draft.memo(old.id)
    if progress.phase is Phase.TRAINING:
        again = memo.trained_at is not None and (memo.paused or memo.trained_epoch != old.epoch)
        if again:
            draft.say(_resumed(old, progress, memo, draft.now), lease=old.id)
        draft.remember(old.id, trained_at=draft.now, trained_epoch=old.epoch, paused=False)
    elif progress.phase not in _AT_IT and not memo.paused:
        draft.remember(old.id, paused=True)


def _resumed(old: Lease, progress: Progress, memo: Memo, now: datetime) -> Said:
    lost = None if progress.step is None else max(0, old.best_step - progress.step)
    stopped = None if memo.trained_at is None else (now - memo.trained_at).total_seconds()
    facts: Facts = {
        "step": progress.step,
        "best_step": old.best_step,
        "steps_lost": lost,
        "seconds_stopped": stopped,
        "workers": progress.workers,
    }
    return Said(EventKind.RESUMED, f"trains again at step {progress.step}", facts)


def _unlogged(draft: Draft, lease: str, progress: Progress) -> None:
    entry = draft.entry(lease)
    earlier = entry.unlogged.metrics if entry.unlogged else {}
    draft.entries[lease] = entry.with_unlogged(Unlogged(draft.now, {**earlier, **progress.metrics}))


def _stirs(old: Progress | None, new: Progress) -> bool:
    """Whether the attempt let go of something, acted on a target, saved, or changed its phase."""
    if old is None:
        return True
    return (old.using, old.target_revision, old.checkpoint_step, old.phase) != (
        new.using,
        new.target_revision,
        new.checkpoint_step,
        new.phase,
    )


def answer(lease: Lease) -> Renewal:
    """Absolute: what to hold now."""
    wanted = [a for a in lease.live if a.id in lease.target.hold and a.role is not AllocationRole.HEAD]
    stop = lease.reason if lease.state in (LeaseState.STOPPING, LeaseState.QUEUED) else None
    return Renewal(
        hold=tuple(_held(a) for a in in_rank_order(wanted)),
        target_revision=lease.target.revision,
        by=lease.target.by if stop is None else lease.stop_by,
        why=str(lease.target.why or ""),
        reason=lease.target.reason,
        warnings=tuple(lease.warnings.values()),
        stop=None if stop is None else stop or "told to stop",
        notes=dict(lease.notes),
    )


def in_rank_order(allocations: Sequence[Allocation]) -> list[Allocation]:
    """Oldest first, by the number in their ids: a kept allocation never changes its place before newer ones."""
    return sorted(allocations, key=lambda a: int(a.id.rpartition(".")[2]))


def _held(a: Allocation) -> Held:
    ready = a.state is AllocationState.HELD
    return Held(allocation=a.id, node=a.node, workers=a.workers, gpus=a.gpus, ready=ready)
