"""The fleet as numpy columns: one row per node, sorted by id, so that a rule is one vector operation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from moorage.core.fleet import Gpu, Node
from moorage.core.health import stale
from moorage.core.lease import Allocation, AllocationRole, Lease
from moorage.core.policy import Policy
from moorage.core.request import CapacityType, Request
from moorage.core.state import State

Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Masks = NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class Tree:
    """One topology level over the rows: the number of each node's domain (-1: none), and the domains' names."""

    of: Ints
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """What placement needs of a state. Never changed in place; `taking` and `freeing` return another."""

    ids: tuple[str, ...]
    nodes: tuple[Node, ...]
    row: Mapping[str, int]
    #: Bit i: no live allocation holds device i.
    free: Masks
    #: CPU cores and bytes of memory that no live allocation reserved; NaN: not known.
    cpus: Floats
    memory: Floats
    #: USD per GPU-hour; for order only, never for money.
    price: Floats
    #: Position of the capacity type, steadiest first.
    capacity: Ints
    cordoned: Bools
    draining: Bools
    notice: Bools
    lost: Bools
    stale: Bools
    #: Ray heads on the node.
    heads: Ints
    #: Policy levels, broadest first; ``host`` and ``island`` are not among them.
    trees: Mapping[str, Tree]
    #: Memo of `usable` by (models, gpu_memory, healthy).
    masks: dict[tuple[tuple[str, ...], int | None, bool], Masks] = field(default_factory=dict, compare=False)

    def usable(self, request: Request, *, healthy: bool = True) -> Masks:
        """Bit i: device i is of a model and memory that the request takes, and not known to be unhealthy."""
        key = (request.models, request.gpu_memory, healthy)
        if key not in self.masks:
            self.masks[key] = np.array([_mask(node.gpus, request, healthy) for node in self.nodes], dtype=np.uint64)
        return self.masks[key]

    def taking(self, holds: Iterable[tuple[str, tuple[int, ...], float, int]]) -> Columns:
        """With these (node, devices, cpus, memory) taken."""
        free, cpus, memory = self.free.copy(), self.cpus.copy(), self.memory.copy()
        for node, gpus, cores, size in holds:
            row = self.row[node]
            free[row] &= ~_bits(gpus)
            cpus[row] -= cores
            memory[row] -= size
        return replace(self, free=free, cpus=cpus, memory=memory)

    def freeing(self, holds: Iterable[tuple[str, tuple[int, ...], float, int]]) -> Columns:
        """With these (node, devices, cpus, memory) given back."""
        free, cpus, memory = self.free.copy(), self.cpus.copy(), self.memory.copy()
        for node, gpus, cores, size in holds:
            row = self.row[node]
            free[row] |= _bits(gpus)
            cpus[row] += cores
            memory[row] += size
        return replace(self, free=free, cpus=cpus, memory=memory)

    def emptied(self) -> Columns:
        """The same nodes, all well and nothing on them: what the fleet could hold at best."""
        no = np.zeros(len(self.nodes), dtype=np.bool_)
        return replace(
            self,
            free=np.full(len(self.nodes), ~np.uint64(0), dtype=np.uint64),
            cpus=_floats(node.cpus for node in self.nodes),
            memory=_floats(node.memory for node in self.nodes),
            cordoned=no,
            draining=no,
            notice=no,
            lost=no,
            stale=no,
        )

    def with_head(self, node: str) -> Columns:
        """With one more Ray head on the node."""
        heads = self.heads.copy()
        heads[self.row[node]] += 1
        return replace(self, heads=heads)


def columns(state: State, policy: Policy) -> Columns:
    """The state's nodes as columns, with everything that live allocations hold taken."""
    nodes = tuple(state.nodes[key] for key in sorted(state.nodes))
    count = len(nodes)
    empty = Columns(
        ids=tuple(node.id for node in nodes),
        nodes=nodes,
        row={node.id: row for row, node in enumerate(nodes)},
        free=np.full(count, ~np.uint64(0), dtype=np.uint64),
        cpus=_floats(node.cpus for node in nodes),
        memory=_floats(node.memory for node in nodes),
        price=_floats(float(node.price) for node in nodes),
        capacity=np.array([steadiness(node.capacity) for node in nodes], dtype=np.int64),
        cordoned=_bools(node.cordoned for node in nodes),
        draining=_bools(node.draining for node in nodes),
        notice=_bools(node.notice_deadline is not None for node in nodes),
        lost=_bools(node.lost for node in nodes),
        stale=_bools(stale(node, state.heard, policy) for node in nodes),
        heads=np.zeros(count, dtype=np.int64),
        trees={level.name: _tree(nodes, level.name, policy) for level in policy.levels},
    )
    held = tuple((lease, a) for lease in state.leases.values() for a in lease.live if a.node in empty.row)
    heads = empty.heads
    for _, allocation in held:
        heads[empty.row[allocation.node]] += allocation.role is AllocationRole.HEAD
    return empty.taking(hold_of(lease, allocation) for lease, allocation in held)


def hold_of(lease: Lease, allocation: Allocation) -> tuple[str, tuple[int, ...], float, int]:
    """What an allocation holds, as `Columns.taking` wants it."""
    request, workers = lease.request, allocation.workers
    return allocation.node, allocation.gpus, workers * request.cpus_per_worker, workers * request.memory_per_worker


def steadiness(capacity: CapacityType) -> int:
    """Position of the capacity type, steadiest first."""
    return list(CapacityType).index(capacity)


def count_bits(masks: Masks) -> Ints:
    """Set bits of each row."""
    as_bytes = np.ascontiguousarray(masks).view(np.uint8).reshape(len(masks), 8)
    counts: Ints = np.unpackbits(as_bytes, axis=1).sum(axis=1).astype(np.int64)
    return counts


def bits_of(mask: int) -> Iterator[int]:
    """Positions of the set bits, lowest first."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def _bits(gpus: Iterable[int]) -> np.uint64:
    return np.uint64(sum(1 << index for index in gpus))


def _mask(gpus: Iterable[Gpu], request: Request, healthy: bool) -> int:
    """Unknown health is usable; unknown memory is not enough where an amount is asked for."""
    return sum(
        1 << gpu.index
        for gpu in gpus
        if (not healthy or gpu.healthy is not False)
        and (not request.models or gpu.model in request.models)
        and (request.gpu_memory is None or (gpu.memory is not None and gpu.memory >= request.gpu_memory))
    )


def _floats(values: Iterable[float | None]) -> Floats:
    return np.array([np.nan if value is None else value for value in values], dtype=np.float64)


def _bools(values: Iterable[bool]) -> Bools:
    return np.array(list(values), dtype=np.bool_)


def _tree(nodes: tuple[Node, ...], level: str, policy: Policy) -> Tree:
    """Domains are told apart by their whole path: rack 1 of zone a is not rack 1 of zone b."""
    broader = [one.name for one in policy.levels]
    broader = broader[: broader.index(level)]
    numbers: dict[tuple[str | None, ...], int] = {}
    of = []
    for node in nodes:
        name = node.domains.get(level)
        path = (*(node.domains.get(one) for one in broader), name)
        of.append(-1 if name is None else numbers.setdefault(path, len(numbers)))
    return Tree(np.array(of, dtype=np.int64), tuple(path[-1] or "" for path in numbers))
