"""From a placement to allocations: the head of a ray job, one allocation per node for the min gang, one per extra."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from moorage.core.columns import Columns
from moorage.core.decision import Grant
from moorage.core.explain import wanted, where
from moorage.core.job import Job, JobKind
from moorage.core.lease import Allocation, AllocationRole, Lease
from moorage.core.place import NotPlaced, Placed, Spot, place
from moorage.core.request import Request


def kind_of(job: Job | None) -> JobKind | None:
    """The job's kind; None for a lease without a job."""
    return job.kind if job else None


def one_node(job: Job | None) -> bool:
    """Whether the gang must fit on one node: processes and leases without a job."""
    return kind_of(job) in (None, JobKind.PROCESS)


def counts_to_try(request: Request, job: Job | None) -> tuple[int, ...]:
    """Worker counts to try at a grant. An elastic ray job starts small: measurements make it grow."""
    if kind_of(job) is JobKind.RAY:
        return (request.workers[0],)
    return tuple(reversed(request.counts))


def find_place(
    fleet: Columns, request: Request, job: Job | None, most: int | None = None
) -> tuple[int, Placed | NotPlaced]:
    """The largest count (of at most `most` workers) that fits, and where; or why the smallest does not."""
    counts = counts_to_try(request, job)
    for count in counts[:-1]:
        answer = place(fleet, request, count, one_node=one_node(job)) if most is None or count <= most else None
        if isinstance(answer, Placed):
            return count, answer
    return counts[-1], place(fleet, request, counts[-1], one_node=one_node(job))


def grant(fleet: Columns, lease: Lease, placed: Placed, workers: int) -> Grant:
    """The next attempt of the lease on these spots."""
    epoch = lease.epoch + 1
    made = tuple(_allocations(fleet, lease, placed))
    allocations = numbered(replace(lease, epoch=epoch), made)
    reason = f"granted {wanted(lease.request, workers)} on {where(placed)}"
    return Grant(lease=lease.id, epoch=epoch, allocations=allocations, level=placed.level, reason=reason)


def numbered(lease: Lease, made: Sequence[Allocation]) -> tuple[Allocation, ...]:
    """With ids and the epoch of the lease: ``<lease>.<n>``, counted over its whole life."""
    first = lease.allocations_made + 1
    return tuple(replace(a, id=f"{lease.id}.{first + n}", epoch=lease.epoch) for n, a in enumerate(made))


def _allocations(fleet: Columns, lease: Lease, placed: Placed) -> Iterable[Allocation]:
    match kind_of(lease.job):
        case JobKind.RAY:
            yield draft(lease, head_node(fleet, placed), AllocationRole.HEAD, ())
            for spot in placed.spots:
                yield draft(lease, spot.node, AllocationRole.WORKER, spot.workers)
        case JobKind.RAYLET:
            yield from single_workers(lease, placed.spots)
        case _:
            for spot in placed.spots:
                yield draft(lease, spot.node, AllocationRole.PROCESS, spot.workers)


def single_workers(lease: Lease, spots: Iterable[Spot]) -> Iterable[Allocation]:
    """One allocation for each worker, so that each can be given back."""
    for spot in spots:
        for gpus in spot.workers:
            yield draft(lease, spot.node, AllocationRole.WORKER, (gpus,))


def gang_workers(lease: Lease, spots: Iterable[Spot]) -> Iterable[Allocation]:
    """One allocation for each node."""
    for spot in spots:
        yield draft(lease, spot.node, AllocationRole.WORKER, spot.workers)


def draft(lease: Lease, node: str, role: AllocationRole, workers: Sequence[tuple[int, ...]]) -> Allocation:
    """An allocation that is not numbered yet."""
    gpus = tuple(sorted(index for each in workers for index in each))
    return Allocation(id="", lease=lease.id, epoch=0, node=node, role=role, gpus=gpus, workers=len(workers))


def head_node(fleet: Columns, placed: Placed) -> str:
    """The steadiest node that takes new work; near the gang, and with few other heads.

    There always is one: the nodes of the gang qualify.
    """
    out = fleet.cordoned | fleet.draining | fleet.notice | fleet.lost | fleet.stale
    rows = np.flatnonzero(~out)
    far = _distance(fleet, fleet.row[placed.spots[0].node])
    order = np.lexsort((rows, fleet.heads[rows], far[rows], fleet.capacity[rows]))
    return fleet.ids[int(rows[order[0]])]


def _distance(fleet: Columns, row: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Levels that a node does not share with the row: 0 in the narrowest configured domain."""
    far = np.zeros(len(fleet.ids), dtype=np.int64)
    for tree in fleet.trees.values():
        far += (tree.of != tree.of[row]) | (tree.of == -1)
    return far
