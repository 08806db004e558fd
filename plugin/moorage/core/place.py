"""Where a gang goes: domains first, then nodes, then islands and devices; one tree from zone to island."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from moorage.core.columns import Bools, Columns, Ints
from moorage.core.decision import Code, Reason
from moorage.core.devices import Gpus, known_islands, largest_island, pick
from moorage.core.request import Request
from moorage.core.rules import feasible, slots


@dataclass(frozen=True, slots=True, kw_only=True)
class Spot:
    """What a placement takes of one node: the devices of each worker."""

    node: str
    workers: tuple[Gpus, ...]

    @property
    def gpus(self) -> Gpus:
        return tuple(sorted(index for gpus in self.workers for index in gpus))


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A whole gang has its place."""

    spots: tuple[Spot, ...]
    #: The narrowest level whose one domain holds the gang, and that domain; "" if none does.
    level: str
    domain: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NotPlaced:
    """It does not fit now: typed, counted reasons, the head one first."""

    reasons: tuple[Reason, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """One way to pack the gang: (row, workers) pairs and how good it is; smaller is better."""

    rows: tuple[tuple[int, int], ...]
    price: float
    left_over: int
    one_island: bool = False


def place(
    fleet: Columns, request: Request, workers: int, *, one_node: bool = False, within: Bools | None = None
) -> Placed | NotPlaced:
    """Place `workers` workers, all or nothing. `one_node`: on one host; `within`: only on these rows."""
    allowed, reasons = feasible(fleet, request)
    if within is not None:
        allowed = allowed & within
    room = slots(fleet, request, allowed)
    found = _search(fleet, request, room, workers, one_node)
    if found is None:
        return NotPlaced(reasons=(_nearest(fleet, request, room, one_node), *reasons))
    return _placed(fleet, request, found)


def levels_of(fleet: Columns) -> tuple[str, ...]:
    """All levels, narrowest first."""
    return ("island", "host", *reversed(tuple(fleet.trees)))


def _search(fleet: Columns, request: Request, room: Ints, workers: int, one_node: bool) -> _Found | None:
    """The first level that fits, or for a gang without a wish the cheapest of what each level offers."""
    if int(room.sum()) < workers:
        return None
    levels = _levels_to_try(fleet, request, one_node)
    finds = (_best_in(fleet, request, room, workers, level) for level in levels)
    if request.topology.preferred or request.topology.required:
        return next((found for found in finds if found), None)
    return _cheapest(finds, workers * float(fleet.price[room > 0].min()))


def _cheapest(finds: Iterable[_Found | None], bound: float) -> _Found | None:
    """The cheapest, narrow levels before broad ones; nothing beats `bound`, so one that meets it ends the search."""
    best: _Found | None = None
    for found in finds:
        if found is not None and (best is None or found.price < best.price):
            best = found
        if best is not None and best.price <= bound:
            return best
    return best


def _levels_to_try(fleet: Columns, request: Request, one_node: bool) -> tuple[str, ...]:
    """Narrowest first; "" is the whole fleet as one domain.

    `preferred` starts the search at its level and widens; `required` ends it at its level. Without a preference, the
    search below `required` starts at the host: few nodes are better than many.
    """
    all_levels = (*levels_of(fleet), "")
    wish = request.topology
    first = all_levels.index(wish.preferred) if wish.preferred in all_levels else 1
    last = all_levels.index(wish.required) if wish.required in all_levels else len(all_levels) - 1
    if one_node:
        first, last = min(first, 1), min(last, 1)
    return all_levels[min(first, last) : last + 1]


def _best_in(fleet: Columns, request: Request, room: Ints, workers: int, level: str) -> _Found | None:
    if level == "island":
        return _in_island(fleet, request, room, workers)
    if level == "host":
        return _in_host(fleet, room, workers)
    if level == "":
        return _pack(fleet, room, np.flatnonzero(room), workers)
    tree = fleet.trees[level]
    members = np.flatnonzero((room > 0) & (tree.of >= 0))
    if not len(members):
        return None
    totals = np.bincount(tree.of[members], weights=room[members], minlength=len(tree.names))
    finds = [_pack(fleet, room, members[tree.of[members] == d], workers) for d in np.flatnonzero(totals >= workers)]
    return min((found for found in finds if found), key=_goodness, default=None)


def _goodness(found: _Found) -> tuple[float, int, int]:
    """Price first, then few nodes, then little left over; ties keep the order of the rows."""
    return found.price, len(found.rows), found.left_over


def _in_host(fleet: Columns, room: Ints, workers: int) -> _Found | None:
    rows = np.flatnonzero(room >= workers)
    if not len(rows):
        return None
    row = int(rows[np.lexsort((rows, room[rows], fleet.price[rows]))[0]])
    price = float(fleet.price[row]) * workers
    return _Found(rows=((row, workers),), price=price, left_over=int(room[row]) - workers)


def _in_island(fleet: Columns, request: Request, room: Ints, workers: int) -> _Found | None:
    """The tightest known island of the cheapest node that has one."""
    need = workers * request.gpus_per_worker
    best: tuple[float, int, int] | None = None
    for row in np.flatnonzero(room >= workers).tolist():
        spare = _tightest_spare(fleet, request, row, need)
        if spare is not None:
            key = (float(fleet.price[row]), spare, row)
            best = key if best is None or key < best else best
    if best is None:
        return None
    price, spare, row = best
    return _Found(rows=((row, workers),), price=price * workers, left_over=spare, one_island=True)


def _tightest_spare(fleet: Columns, request: Request, row: int, need: int) -> int | None:
    """GPUs left over in the tightest island of the row that holds `need`. None: none does."""
    node = fleet.nodes[row]
    free = known_islands(node, _free(fleet, request, row))
    if largest_island(node, free) < need:
        return None
    taken = pick(node, free, 1, need, one_island=True)[0]
    island = {gpu.index: gpu.island for gpu in node.gpus}
    same = sum(1 for gpu in node.gpus if free >> gpu.index & 1 and gpu.island == island[taken[0]])
    return same - need


def _pack(fleet: Columns, room: Ints, rows: Ints, workers: int) -> _Found | None:
    """Cheapest nodes first, as few as can be, the last one the tightest that fits."""
    if int(room[rows].sum()) < workers:
        return None
    order = rows[np.lexsort((rows, -room[rows], fleet.price[rows]))]
    chosen: list[tuple[int, int]] = []
    left = workers
    remaining = order.tolist()
    while left:
        row = _next_row(fleet, room, remaining, left)
        remaining.remove(row)
        count = min(left, int(room[row]))
        chosen.append((row, count))
        left -= count
    price = sum(float(fleet.price[row]) * count for row, count in chosen)
    return _Found(rows=tuple(chosen), price=price, left_over=sum(int(room[row]) - count for row, count in chosen))


def _next_row(fleet: Columns, room: Ints, remaining: list[int], left: int) -> int:
    """Of the cheapest nodes left: the tightest that holds all the rest, else the one with the most room."""
    price = fleet.price[remaining[0]]
    tightest = remaining[0]
    for row in remaining:
        if fleet.price[row] != price or room[row] < left:
            break
        if room[row] < room[tightest]:
            tightest = row
    return tightest


def _placed(fleet: Columns, request: Request, found: _Found) -> Placed:
    spots = tuple(_spot(fleet, request, row, count, found.one_island) for row, count in found.rows)
    level, domain = shared_level(fleet, spots)
    return Placed(spots=spots, level=level, domain=domain)


def _spot(fleet: Columns, request: Request, row: int, workers: int, one_island: bool) -> Spot:
    node = fleet.nodes[row]
    free = _free(fleet, request, row)
    if one_island:
        free = known_islands(node, free)
    return Spot(node=node.id, workers=pick(node, free, workers, request.gpus_per_worker, one_island=one_island))


def _free(fleet: Columns, request: Request, row: int) -> int:
    return int(fleet.free[row] & fleet.usable(request)[row])


def shared_level(fleet: Columns, spots: Sequence[Spot]) -> tuple[str, str]:
    """The narrowest level whose one domain holds all spots, and that domain; ("", "") if none does."""
    rows = {fleet.row[spot.node] for spot in spots}
    if len(rows) == 1:
        node = fleet.nodes[rows.pop()]
        island = {gpu.island for gpu in node.gpus for spot in spots if gpu.index in spot.gpus}
        one = len(island) == 1 and None not in island
        return ("island", f"{node.id}/{island.pop()}") if one else ("host", node.id)
    for level, tree in reversed(tuple(fleet.trees.items())):
        domains = {int(tree.of[row]) for row in rows}
        if len(domains) == 1 and -1 not in domains:
            return level, tree.names[domains.pop()]
    return "", ""


def _nearest(fleet: Columns, request: Request, room: Ints, one_node: bool) -> Reason:
    """How near it came: the largest domain of the level that must hold it all, in GPUs."""
    level = "host" if one_node and request.topology.required != "island" else request.topology.required
    if level is None:
        return Reason(code=Code.TOO_SMALL, facts={"fits": str(int(room.sum()))})
    name, free = _largest(fleet, request, room, level)
    return Reason(code=Code.TOPOLOGY, facts={"level": level, "largest": name, "free": str(free)})


def _largest(fleet: Columns, request: Request, room: Ints, level: str) -> tuple[str, int]:
    """The domain of the level with room for the most workers, and the GPUs of those; ("", 0) if none has any."""
    totals = list(_totals(fleet, request, room, level))
    name, workers = max(totals, key=lambda total: total[1], default=("", 0))
    return (name, workers * request.gpus_per_worker) if workers else ("", 0)


def _totals(fleet: Columns, request: Request, room: Ints, level: str) -> Iterable[tuple[str, int]]:
    rows = np.flatnonzero(room).tolist()
    if level == "host":
        return ((fleet.ids[row], int(room[row])) for row in rows)
    if level == "island":
        each = request.gpus_per_worker
        return ((fleet.ids[row], largest_island(fleet.nodes[row], _free(fleet, request, row)) // each) for row in rows)
    tree = fleet.trees.get(level)
    if tree is None or not tree.names:
        return ()
    members = np.flatnonzero(tree.of >= 0)
    totals = np.bincount(tree.of[members], weights=room[members], minlength=len(tree.names))
    return ((name, int(total)) for name, total in zip(tree.names, totals, strict=True))
