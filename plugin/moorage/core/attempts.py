"""Attempts that are over without saying so, and gangs that must move or be made whole again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from moorage.core.decision import Retarget
from moorage.core.explain import names
from moorage.core.extend import replacement, workers_of
from moorage.core.failure import again
from moorage.core.gang import gang_workers, kind_of, numbered, single_workers
from moorage.core.job import JobKind
from moorage.core.lease import Allocation, AllocationRole, AllocationState, Lease, LeaseState, Why
from moorage.core.place import Spot
from moorage.core.round import Round


def attempts(round_: Round) -> None:
    """Each active lease: over, moved, repaired, or left alone."""
    for lease in round_.leases():
        if not lease.state.active:
            continue
        words = next((words for words in (rule(round_, lease) for rule in RULES) if words), None)
        if words is not None:
            round_.add(again(lease, words, round_.policy, round_.now, interruption=True))
        elif kind_of(lease.job) is JobKind.RAY:
            _keep_whole(round_, lease)
        elif kind_of(lease.job) is JobKind.RAYLET and lease.state is LeaseState.RUNNING:
            _replace_raylets(round_, lease)


def _never_started(round_: Round, lease: Lease) -> str | None:
    """Granted, and neither its trainer nor, for what has no trainer, its agent has spoken since."""
    if lease.attempt_heard is not None or lease.granted_heard is None or _lives_by_its_agent(lease):
        return None
    waited = round_.state.heard - lease.granted_heard
    round_.wake_in(round_.policy.start_s - waited)
    return (
        f"was not heard within {round_.policy.start_s:.0f} s of its grant" if waited >= round_.policy.start_s else None
    )


def _lives_by_its_agent(lease: Lease) -> bool:
    """Raylets of the autoscaler, and leases without a job: their node's word is all there is."""
    held = any(a.state is AllocationState.HELD for a in lease.live)
    return held and kind_of(lease.job) in (None, JobKind.RAYLET)


def _silent(round_: Round, lease: Lease) -> str | None:
    """Neither trainer nor agent spoke for the attempt. A stale node alone is no reason while its trainer renews."""
    if lease.attempt_heard is None or kind_of(lease.job) in (None, JobKind.RAYLET):
        return None
    quiet = round_.state.heard - lease.attempt_heard
    limit = round_.policy.attempt_silent_s
    round_.wake_in(limit - quiet)
    return f"was silent for {quiet:.0f} s" if quiet >= limit else None


def _beheaded(round_: Round, lease: Lease) -> str | None:  # noqa: ARG001 - every rule has the same shape
    """Nothing is left of what the attempt cannot live without."""
    needed = {JobKind.RAY: AllocationRole.HEAD, JobKind.RAYLET: AllocationRole.WORKER}
    kind = kind_of(lease.job)
    role = needed.get(kind, AllocationRole.PROCESS) if kind else AllocationRole.PROCESS
    mine = [a for a in lease.allocations if a.epoch == lease.epoch and a.role is role]
    if any(a.live for a in mine):
        return None
    what = {AllocationRole.HEAD: "its Ray head", AllocationRole.WORKER: "its raylets"}.get(role, "its process")
    return f"lost {what}" + (f" on {names(a.node for a in mine)}" if mine else "")


def _unrepaired(round_: Round, lease: Lease) -> str | None:
    """Below its min for too long, in time in which the broker could have heard better."""
    if lease.short_heard is None:
        return None
    left = lease.short_heard + round_.policy.repair_s - round_.state.heard
    if left > 0:
        round_.wake_in(left)
        return None
    return f"had fewer than {lease.request.workers[0]} workers for {round_.policy.repair_s:.0f} s"


RULES: tuple[Callable[[Round, Lease], str | None], ...] = (_beheaded, _never_started, _silent, _unrepaired)


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """What a gang holds, by what becomes of it."""

    keep: tuple[Allocation, ...]
    #: On nodes with a notice, or that an operator drains.
    leaving: tuple[Allocation, ...]
    #: In the target, but gone.
    dead: int
    why: Why
    by: datetime | None

    @property
    def kept(self) -> int:
        return sum(a.workers for a in self.keep)

    @property
    def going(self) -> int:
        return sum(a.workers for a in self.leaving)

    def wants_more(self, lease: Lease) -> bool:
        """Too small, though nothing of it is gone or going: its owner raised min above what it was granted."""
        whole = not (self.dead or self.leaving or _waits_for_repair(lease))
        return whole and self.kept < lease.request.workers[0]


def _waits_for_repair(lease: Lease) -> bool:
    """Whether its target already does without workers that were lost, and it is short of them since."""
    target, since = lease.target, lease.short_since
    if target.why is not Why.REPAIR or target.at is None:
        return False
    return lease.state is LeaseState.GRANTED or (since is not None and since <= target.at)


def _keep_whole(round_: Round, lease: Lease) -> None:
    """Replace workers that go or went; without a replacement shrink, if min holds; else keep what there is and wait."""
    damage = damage_of(round_, lease)
    low, high = lease.request.workers[0], lease.request.counts[-1]
    unhurt = not (damage.dead or damage.leaving) and damage.kept >= low
    if unhurt or damage.wants_more(lease) or damage.kept + damage.going > high:
        return  # Well, or its owner changed the bounds: that has its own stage.
    if damage.why is Why.NOTICE and _head_leaves(round_, lease):
        return  # The attempt ends with its head: a resize before that would only cost time.
    wanted = damage.going + max(0, low - damage.kept - damage.going)
    for count in range(wanted, max(0, low - damage.kept) - 1, -1):
        spots = replacement(round_.fleet, lease, count, damage.keep) if count else ()
        if (spots or not count) and damage.kept + count in lease.request.counts:
            round_.add(_moved(lease, damage, spots, count))
            return
    round_.wake_in(round_.policy.rebalance_every_s)
    if damage.dead:
        round_.add(_without_the_dead(lease, damage))


def _replace_raylets(round_: Round, lease: Lease) -> None:
    """Raylets that went without being given back (those drain first) are replaced near what is left of their gang.

    Ray places the lost bundles of a placement group again by itself, once there are nodes.
    """
    lost = [a for a in lease.allocations if a.id in lease.target.hold and not a.live and a.drain_by is None]
    if not lost:
        return
    since = lease.resized_at + timedelta(seconds=round_.policy.elastic.cooldown_s) if lease.resized_at else round_.now
    keep = workers_of(lease)
    count = sum(a.workers for a in lost)
    spots = replacement(round_.fleet, lease, count, keep) if since <= round_.now else ()
    if not spots:
        round_.wake(since)
        round_.wake_in(round_.policy.rebalance_every_s)
        return
    add = numbered(lease, tuple(single_workers(lease, spots)))
    reason = f"raylets were lost: {count} more on {names(spot.node for spot in spots)}"
    hold = tuple(a.id for a in (*keep, *add))
    round_.add(Retarget(lease=lease.id, hold=hold, add=add, why=Why.REPAIR, reason=reason))


def damage_of(round_: Round, lease: Lease) -> Damage:
    """What the gang holds now, judged by its target and its nodes."""
    nodes = round_.state.nodes
    holds = workers_of(lease)
    noticed = tuple(a for a in holds if a.node in nodes and nodes[a.node].notice_deadline is not None)
    drained = tuple(a for a in holds if a.node in nodes and nodes[a.node].draining and a not in noticed)
    leaving = (*noticed, *drained)
    live = {a.id for a in lease.live if a.state is not AllocationState.DRAINING}
    return Damage(
        keep=tuple(a for a in holds if a not in leaving),
        leaving=leaving,
        dead=sum(1 for id_ in lease.target.hold if id_ not in live),
        why=Why.NOTICE if noticed else Why.OPERATOR if drained else Why.REPAIR,
        by=min((at for a in noticed if (at := nodes[a.node].notice_deadline)), default=None),
    )


def _head_leaves(round_: Round, lease: Lease) -> bool:
    heads = (a for a in lease.live if a.role is AllocationRole.HEAD and a.epoch == lease.epoch)
    nodes = (round_.state.nodes.get(a.node) for a in heads)
    return any(node is not None and node.notice_deadline is not None for node in nodes)


def _moved(lease: Lease, damage: Damage, spots: Sequence[Spot], count: int) -> Retarget:
    add = made(lease, spots, gang=max(0, lease.request.workers[0] - damage.kept))
    return Retarget(
        lease=lease.id,
        hold=hold_of_gang(lease, damage.keep, add),
        add=add,
        why=damage.why,
        reason=_moved_because(lease, damage, spots, count),
        by=damage.by,
    )


_BECAUSE = {Why.NOTICE: "a notice", Why.OPERATOR: "the node is drained", Why.REPAIR: "workers were lost"}


def _moved_because(lease: Lease, damage: Damage, spots: Sequence[Spot], count: int) -> str:
    away = f" from {names(a.node for a in damage.leaving)}" if damage.leaving else ""
    words = _BECAUSE[damage.why]
    if spots:
        several = "s move" if count != 1 else " moves"
        return f"{words}: {count} worker{several}{away} to {names(spot.node for spot in spots)}"
    low, before = lease.request.workers[0], damage.kept + damage.going
    change = f"shrink {before} -> {damage.kept}{away}" if damage.leaving else f"{damage.kept} are left"
    return f"{words}: {change}; nothing is free to replace them, and the min is {low}"


def made(lease: Lease, spots: Sequence[Spot], gang: int) -> tuple[Allocation, ...]:
    """The first `gang` workers in one allocation per node, as in a grant; the others one by one."""
    inside, outside = [], []
    for spot in spots:
        inside.append(Spot(node=spot.node, workers=spot.workers[:gang]))
        outside.append(Spot(node=spot.node, workers=spot.workers[gang:]))
        gang = max(0, gang - len(spot.workers))
    whole = gang_workers(lease, (spot for spot in inside if spot.workers))
    return numbered(lease, (*whole, *single_workers(lease, outside)))


def hold_of_gang(lease: Lease, keep: Sequence[Allocation], add: Sequence[Allocation]) -> tuple[str, ...]:
    """Ids of a target: the head of the attempt, and these workers."""
    heads = (a for a in lease.live if a.role is AllocationRole.HEAD and a.epoch == lease.epoch)
    return tuple(a.id for a in (*heads, *keep, *add))


def _without_the_dead(lease: Lease, damage: Damage) -> Retarget:
    """No replacement yet: the trainer goes on with, or waits with, what survives."""
    hold = hold_of_gang(lease, (*damage.keep, *damage.leaving), ())
    left = damage.kept + damage.going
    reason = f"workers were lost: {left} of at least {lease.request.workers[0]} left, and no replacement is free yet"
    return Retarget(lease=lease.id, hold=hold, add=(), why=Why.REPAIR, reason=reason)
