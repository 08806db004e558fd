"""Room for a better claim: a whole plan, computed before anything is touched, or nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import islice

import numpy as np

from moorage.core.columns import Bools, Columns, hold_of
from moorage.core.decision import Claim, Retarget, Retry
from moorage.core.elastic import shed
from moorage.core.explain import names, wanted
from moorage.core.gang import find_place, kind_of, one_node
from moorage.core.health import stale
from moorage.core.job import JobKind
from moorage.core.lease import Allocation, AllocationState, Lease, LeaseState, Why
from moorage.core.place import Placed, place
from moorage.core.round import Round

#: Domains that are searched for victims, those with most to gain first.
MOST_SCOPES = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Victim:
    """What would be taken of one lease: some extra workers, or all of it."""

    lease: Lease
    allocations: tuple[Allocation, ...]
    whole: bool

    @property
    def gpus(self) -> int:
        return sum(len(a.gpus) for a in self.allocations)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Victims whose GPUs, with what drains already, hold the whole gang."""

    victims: tuple[Victim, ...]
    placed: Placed

    @property
    def cost(self) -> tuple[int, int, int]:
        """Whole gangs, leases touched, GPUs taken: fewer is better."""
        return sum(v.whole for v in self.victims), len(self.victims), sum(v.gpus for v in self.victims)


def soon_free(round_: Round) -> tuple[tuple[Lease, Allocation], ...]:
    """What is on its way out already, on nodes that answer."""
    return tuple(
        (lease, a)
        for lease in round_.state.leases.values()
        for a in lease.live
        if (a.state is AllocationState.DRAINING or (lease.state.active and a.id not in lease.target.hold))
        and _answers(round_, a.node)
    )


def freed(fleet: Columns, held: Iterable[tuple[Lease, Allocation]]) -> Columns:
    """The fleet when these are gone."""
    return fleet.freeing(hold_of(lease, a) for lease, a in held if a.node in fleet.row)


def plan(round_: Round, lease: Lease, fleet: Columns) -> Plan | None:
    """The cheapest complete plan on `fleet` (with what drains already free). None: nothing is to be touched."""
    candidates = tuple(_candidates(round_, lease))
    if round_.policy.frozen or not candidates:
        return None
    needed = lease.request.workers[0] * lease.request.gpus_per_worker
    most = round_.policy.preempt_ratio * needed
    plans = (_plan_in(fleet, lease, candidates, scope) for scope in _scopes(fleet, lease, candidates))
    good = (p for p in plans if p is not None and p.cost[2] <= most)
    return min(good, key=lambda p: p.cost, default=None)


def decisions(round_: Round, lease: Lease, chosen: Plan) -> Iterator[Retarget | Retry | Claim]:
    """The plan as decisions: victims first, then the claim."""
    by = round_.now + timedelta(seconds=round_.policy.stop_grace_s)
    why = (
        f"{wanted(lease.request, lease.request.workers[0])} of lease {lease.id} with priority {lease.request.priority}"
    )
    for victim in chosen.victims:
        yield _taken(victim, f"makes room for {why}", by)
    ids = tuple(victim.lease.id for victim in chosen.victims)
    yield Claim(lease=lease.id, victims=ids, reason=f"{why} takes from {names(ids)}")


def _taken(victim: Victim, reason: str, by: datetime) -> Retarget | Retry:
    if victim.whole:
        return Retry(lease=victim.lease.id, reason=reason, preempted=True, by=by)
    gone = {a.id for a in victim.allocations}
    hold = tuple(a.id for a in victim.lease.live if a.id in victim.lease.target.hold and a.id not in gone)
    return Retarget(lease=victim.lease.id, hold=hold, add=(), why=Why.PREEMPT, reason=reason, by=by)


def _answers(round_: Round, node_id: str) -> bool:
    node = round_.state.nodes.get(node_id)
    return node is not None and not node.lost and not stale(node, round_.state.heard, round_.policy)


def _candidates(round_: Round, lease: Lease) -> Iterator[Victim]:
    """Shrinks first, then whole gangs; the weakest claim first, and of equal ones the least unsaved work."""
    weaker = [
        other
        for other in round_.state.leases.values()
        if other.state.active
        and other.request.priority < lease.request.priority
        and all(_answers(round_, a.node) for a in other.live)
    ]
    weaker.sort(key=lambda other: (other.request.priority, unsaved(other, round_.now), other.id))
    for other in weaker:
        yield from _shrinks(other)
    for other in weaker:
        gpus = tuple(a for a in other.live if a.state is not AllocationState.DRAINING and a.id in other.target.hold)
        yield Victim(lease=other, allocations=gpus, whole=True)


def _shrinks(other: Lease) -> Iterator[Victim]:
    """Ever more extras of an elastic gang."""
    if other.state is not LeaseState.RUNNING or kind_of(other.job) is not JobKind.RAY or not other.request.elastic:
        return
    held = other.workers
    for count in reversed(other.request.counts):
        go = shed(other, count) if count < held else ()
        if go:
            yield Victim(lease=other, allocations=go, whole=False)


def unsaved(lease: Lease, now: datetime) -> float:
    """GPU-seconds that would be lost: since the newest checkpoint as far as it is known, else since the grant."""
    gpus = sum(len(a.gpus) for a in lease.live)
    since = lease.granted_at or now
    progress = lease.progress
    if progress and progress.checkpoint_step is not None:
        saved = [point.at for point in lease.observations if point.step <= progress.checkpoint_step]
        since = max(since, saved[-1]) if saved else since
    return gpus * max(0.0, (now - since).total_seconds())


def _scopes(fleet: Columns, lease: Lease, candidates: Sequence[Victim]) -> Iterator[Bools]:
    """The domains of a required level, those first where most could be taken; else the whole fleet."""
    required = "host" if one_node(lease.job) else lease.request.topology.required
    everywhere = np.ones(len(fleet.ids), dtype=np.bool_)
    if required is None:
        return iter((everywhere,))
    of = np.arange(len(fleet.ids)) if required in ("host", "island") else fleet.trees[required].of
    gain = _gain(fleet, candidates)
    totals = {int(d): int(gain[of == d].sum()) for d in np.unique(of[of >= 0])}
    best = sorted(totals, key=lambda d: (-totals[d], d))
    return (of == d for d in islice(best, MOST_SCOPES))


def _gain(fleet: Columns, candidates: Sequence[Victim]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    gain = np.zeros(len(fleet.ids), dtype=np.int64)
    for victim in candidates:
        for allocation in victim.allocations if victim.whole else ():
            gain[fleet.row[allocation.node]] += len(allocation.gpus)
    return gain


def _plan_in(fleet: Columns, lease: Lease, candidates: Sequence[Victim], scope: Bools) -> Plan | None:
    """Take candidates in their order until the gang fits, then spare every one that turns out not to be needed."""
    chosen: dict[str, Victim] = {}
    for victim in candidates:
        if not any(scope[fleet.row[a.node]] and a.gpus for a in victim.allocations):
            continue
        chosen[victim.lease.id] = victim
        placed = _fits(fleet, lease, chosen.values(), scope)
        if placed is not None:
            return _spared(fleet, lease, chosen, placed, scope)
    return None


def _spared(fleet: Columns, lease: Lease, chosen: dict[str, Victim], placed: Placed, scope: Bools) -> Plan:
    for key in sorted(chosen, key=lambda key: (not chosen[key].whole, -chosen[key].gpus, key)):
        without = {other: victim for other, victim in chosen.items() if other != key}
        fits = _fits(fleet, lease, without.values(), scope)
        if fits is not None:
            chosen, placed = without, fits
    return Plan(victims=tuple(chosen.values()), placed=placed)


def _fits(fleet: Columns, lease: Lease, victims: Iterable[Victim], scope: Bools) -> Placed | None:
    held = ((victim.lease, a) for victim in victims for a in victim.allocations)
    request = replace(lease.request, workers=(lease.request.workers[0],) * 2)
    answer = place(freed(fleet, held), request, request.workers[0], one_node=one_node(lease.job), within=scope)
    return answer if isinstance(answer, Placed) else None


def keeps_waiting(round_: Round, lease: Lease) -> Placed | None:
    """Where the lease fits once what drains already is gone. None: that is not enough."""
    held = soon_free(round_)
    if not held:
        return None
    _, answer = find_place(freed(round_.fleet, held), lease.request, lease.job)
    return answer if isinstance(answer, Placed) else None
