"""A running gang follows the bounds that its owner changed: it comes below a lower max, and up to a higher min."""

from __future__ import annotations

from collections.abc import Sequence

from moorage.core.attempts import Damage, damage_of, hold_of_gang, made
from moorage.core.decision import Retarget, Warn
from moorage.core.explain import names
from moorage.core.extend import replacement
from moorage.core.gang import kind_of
from moorage.core.job import JobKind
from moorage.core.lease import Allocation, Lease, Why
from moorage.core.order import quota_left
from moorage.core.place import Spot
from moorage.core.round import Round


def bounds(round_: Round) -> None:
    """Each gang that is outside its bounds. Its owner asked for it, so a freeze does not stop it."""
    for lease in round_.leases():
        if not lease.state.active or kind_of(lease.job) is not JobKind.RAY:
            continue
        damage = damage_of(round_, lease)
        if damage.kept + damage.going > lease.request.counts[-1]:
            _shrink(round_, lease, damage)
        elif damage.wants_more(lease):
            _grow(round_, lease, damage)


def _shrink(round_: Round, lease: Lease, damage: Damage) -> None:
    """Let go of workers; where whole allocations do not allow it, others take over from them."""
    keep = _within(damage.keep, lease.request.counts[-1])
    kept = sum(a.workers for a in keep)
    for count in reversed(lease.request.counts):
        spots = replacement(round_.fleet, lease, count - kept, keep) if count > kept else ()
        if spots or count == kept:
            round_.add(_fewer(lease, damage, keep, spots, count))
            return
    round_.wake_in(round_.policy.rebalance_every_s)
    _say_stuck(round_, lease, damage, kept)


def _within(allocations: Sequence[Allocation], most: int) -> tuple[Allocation, ...]:
    """What fits into so many workers: the largest first, then the oldest."""
    keep: list[Allocation] = []
    for allocation in sorted(allocations, key=lambda a: -a.workers):
        if allocation.workers <= most - sum(a.workers for a in keep):
            keep.append(allocation)
    return tuple(keep)


def _fewer(lease: Lease, damage: Damage, keep: Sequence[Allocation], spots: Sequence[Spot], count: int) -> Retarget:
    add = made(lease, spots, gang=max(0, lease.request.workers[0] - sum(a.workers for a in keep)))
    moved = f"; workers move to {names(spot.node for spot in spots)}" if spots else ""
    reason = f"shrink {damage.kept + damage.going} -> {count}: the max is {lease.request.counts[-1]} now{moved}"
    hold = hold_of_gang(lease, keep, add)
    return Retarget(lease=lease.id, hold=hold, add=add, why=Why.SHRINK, reason=reason, by=damage.by)


def _say_stuck(round_: Round, lease: Lease, damage: Damage, kept: int) -> None:
    high = lease.request.counts[-1]
    key = f"max {high}"
    if key not in lease.warnings:
        reason = (
            f"cannot shrink {damage.kept + damage.going} -> {high} yet: an allocation goes as a whole, "
            f"which leaves {kept} workers, and nothing else is free for the min of {lease.request.workers[0]}"
        )
        round_.add(Warn(lease=lease.id, key=key, reason=reason))


def _grow(round_: Round, lease: Lease, damage: Damage) -> None:
    """More than was granted is a claim like others: within the quota, and after those who wait with no weaker one."""
    low = lease.request.workers[0]
    more = low - damage.kept
    left = quota_left(lease, round_.state, round_.policy)
    waits = any(other.request.priority >= lease.request.priority for other in round_.waiting)
    allowed = not waits and (left is None or more * lease.request.gpus_per_worker <= left)
    spots = replacement(round_.fleet, lease, more, damage.keep) if allowed else ()
    if not spots:
        round_.wake_in(round_.policy.rebalance_every_s)
        return
    add = made(lease, spots, gang=more)
    reason = f"grow {damage.kept} -> {low} on {names(spot.node for spot in spots)}: the min is {low} now"
    hold = hold_of_gang(lease, damage.keep, add)
    round_.add(Retarget(lease=lease.id, hold=hold, add=add, why=Why.GROW, reason=reason))
