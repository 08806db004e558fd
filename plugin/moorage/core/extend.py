"""Where more workers of a running gang go: near the ones it has, in the capacity it has, at the best price."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from moorage.core.columns import Bools, Columns
from moorage.core.lease import Allocation, AllocationRole, AllocationState, Lease
from moorage.core.place import Placed, Spot, place
from moorage.core.request import Request, Topology


def workers_of(lease: Lease) -> tuple[Allocation, ...]:
    """The worker allocations that the lease holds and is to keep, oldest first."""
    return tuple(
        a
        for a in lease.live
        if a.role is AllocationRole.WORKER
        and a.epoch == lease.epoch
        and a.id in lease.target.hold
        and a.state is not AllocationState.DRAINING
    )


def growth(fleet: Columns, lease: Lease, count: int) -> tuple[Spot, ...]:
    """Spots for `count` more workers; empty if there are none.

    With a preferred level the narrowest domain around the gang comes first, then the price; without, the price.
    """
    keep = workers_of(lease)
    fleet, request, bound = _bound(fleet, lease.request, keep)
    scopes = [scope & bound for scope in _near(fleet, keep)]
    if lease.request.topology.preferred is None:
        scopes = _cheapest_first(fleet, request, count, scopes)
    return _first(fleet, request, count, scopes)


def replacement(fleet: Columns, lease: Lease, count: int, keep: Sequence[Allocation]) -> tuple[Spot, ...]:
    """Spots for `count` workers instead of ones that go: the same capacity type, then near what is kept."""
    fleet, request, bound = _bound(fleet, lease.request, keep)
    scopes = _near(fleet, keep or workers_of(lease))
    same = _same_capacity(fleet, lease)
    kinds = (same, np.ones_like(same))
    return _first(fleet, request, count, [scope & bound & kind for kind in kinds for scope in scopes])


def _first(fleet: Columns, request: Request, count: int, scopes: Iterable[Bools]) -> tuple[Spot, ...]:
    for scope in scopes:
        answer = place(fleet, request, count, within=scope)
        if isinstance(answer, Placed):
            return answer.spots
    return ()


def _cheapest_first(fleet: Columns, request: Request, count: int, scopes: list[Bools]) -> list[Bools]:
    """The scopes, nearest first, that cost no more than the best of the whole fleet."""
    prices = [_price(fleet, place(fleet, request, count, within=scope)) for scope in scopes]
    best = min(prices)
    return [scope for scope, price in zip(scopes, prices, strict=True) if price <= best]


def _price(fleet: Columns, answer: object) -> float:
    if not isinstance(answer, Placed):
        return float("inf")
    return sum(float(fleet.price[fleet.row[spot.node]]) * len(spot.workers) for spot in answer.spots)


def _near(fleet: Columns, keep: Sequence[Allocation]) -> list[Bools]:
    """Rows around the kept workers, narrowest first: their nodes, then each wider domain, then all."""
    rows = [fleet.row[a.node] for a in keep if a.node in fleet.row]
    everywhere = np.ones(len(fleet.ids), dtype=np.bool_)
    if not rows:
        return [everywhere]
    return [*(_domain(fleet, rows, level) for level in ("host", *reversed(tuple(fleet.trees)))), everywhere]


def _domain(fleet: Columns, rows: list[int], level: str) -> Bools:
    """Rows that share a domain of the level with one of `rows`."""
    if level == "host":
        same = np.zeros(len(fleet.ids), dtype=np.bool_)
        same[rows] = True
        return same
    of = fleet.trees[level].of
    domains = [int(of[row]) for row in rows if of[row] >= 0]
    return np.isin(of, domains)


def _bound(fleet: Columns, request: Request, keep: Sequence[Allocation]) -> tuple[Columns, Request, Bools]:
    """A required level binds new workers to the domain of the kept ones; the new ones alone need share nothing."""
    everywhere = np.ones(len(fleet.ids), dtype=np.bool_)
    required = request.topology.required
    if not keep:
        return fleet, request, everywhere
    alone = replace(request, topology=Topology())
    if required is None:
        return fleet, alone, everywhere
    rows = [fleet.row[a.node] for a in keep if a.node in fleet.row]
    if required == "island":
        return _one_island(fleet, keep[0]), alone, _domain(fleet, rows, "host")
    return fleet, alone, _domain(fleet, rows, required)


def _one_island(fleet: Columns, kept: Allocation) -> Columns:
    """Without the devices of the node that are not in the kept allocation's island."""
    island = {gpu.index: gpu.island for gpu in fleet.nodes[fleet.row[kept.node]].gpus}
    mine = island.get(kept.gpus[0]) if kept.gpus else None
    others = tuple(index for index, number in island.items() if number is None or number != mine)
    return fleet.taking([(kept.node, others, 0.0, 0)])


def _same_capacity(fleet: Columns, lease: Lease) -> Bools:
    rows = [fleet.row[a.node] for a in lease.live if a.role is AllocationRole.WORKER and a.node in fleet.row]
    return np.isin(fleet.capacity, fleet.capacity[rows]) if rows else np.ones(len(fleet.ids), dtype=np.bool_)
