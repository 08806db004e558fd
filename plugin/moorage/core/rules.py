"""The hard rules: which nodes a request may use at all. Each exclusion is typed and counted."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from moorage.core.columns import Bools, Columns, Floats, Ints, count_bits, steadiness
from moorage.core.decision import Code, Reason
from moorage.core.request import Request

Rule = Callable[[Columns, Request], Bools]


def _cordoned(fleet: Columns, request: Request) -> Bools:  # noqa: ARG001 - every rule has the same shape
    return fleet.cordoned


def _draining(fleet: Columns, request: Request) -> Bools:  # noqa: ARG001 - every rule has the same shape
    return fleet.draining


def _notice(fleet: Columns, request: Request) -> Bools:  # noqa: ARG001 - every rule has the same shape
    return fleet.notice


def _lost(fleet: Columns, request: Request) -> Bools:  # noqa: ARG001 - every rule has the same shape
    return fleet.lost


def _stale(fleet: Columns, request: Request) -> Bools:  # noqa: ARG001 - every rule has the same shape
    return fleet.stale


def _no_gpu(fleet: Columns, request: Request) -> Bools:  # noqa: ARG001 - every rule has the same shape
    return np.array([not node.gpus for node in fleet.nodes], dtype=np.bool_)


def _model(fleet: Columns, request: Request) -> Bools:
    if not request.models:
        return np.zeros(len(fleet.nodes), dtype=np.bool_)
    return np.array([all(g.model not in request.models for g in node.gpus) for node in fleet.nodes], dtype=np.bool_)


def _gpu_memory(fleet: Columns, request: Request) -> Bools:
    return np.equal(fleet.usable(request, healthy=False), np.uint64(0))


def _unhealthy(fleet: Columns, request: Request) -> Bools:
    well = count_bits(fleet.usable(request))
    return (well < request.gpus_per_worker) & (well < count_bits(fleet.usable(request, healthy=False)))


def _too_small(fleet: Columns, request: Request) -> Bools:
    return count_bits(fleet.usable(request)) < request.gpus_per_worker


def _capacity(fleet: Columns, request: Request) -> Bools:
    """Less steady than the job tolerates (`CapacityType.tolerates`, as one comparison)."""
    return fleet.capacity > steadiness(request.capacity)


def _labels(fleet: Columns, request: Request) -> Bools:
    if not request.labels:
        return np.zeros(len(fleet.nodes), dtype=np.bool_)
    wanted = request.labels.items()
    return np.array([any(node.labels.get(k) != v for k, v in wanted) for node in fleet.nodes], dtype=np.bool_)


def _busy(fleet: Columns, request: Request) -> Bools:
    return count_bits(fleet.free & fleet.usable(request)) < request.gpus_per_worker


def _cpu(fleet: Columns, request: Request) -> Bools:
    """Known to be short; NaN compares false, so what is not known excludes nothing."""
    return fleet.cpus < request.cpus_per_worker


def _memory(fleet: Columns, request: Request) -> Bools:
    return fleet.memory < request.memory_per_worker


#: In this order: a node is counted once, under the first rule that excludes it.
RULES: tuple[tuple[Code, Rule], ...] = (
    (Code.LOST, _lost),
    (Code.DRAINING, _draining),
    (Code.CORDONED, _cordoned),
    (Code.NOTICE, _notice),
    (Code.STALE, _stale),
    (Code.NO_GPU, _no_gpu),
    (Code.MODEL, _model),
    (Code.GPU_MEMORY, _gpu_memory),
    (Code.CAPACITY, _capacity),
    (Code.LABELS, _labels),
    (Code.UNHEALTHY, _unhealthy),
    (Code.TOO_SMALL, _too_small),
    (Code.BUSY, _busy),
    (Code.CPU, _cpu),
    (Code.MEMORY, _memory),
)


def feasible(fleet: Columns, request: Request) -> tuple[Bools, tuple[Reason, ...]]:
    """The nodes that can hold at least one worker now, and a counted reason for the others."""
    left = np.ones(len(fleet.nodes), dtype=np.bool_)
    reasons = []
    for code, rule in RULES:
        excluded = left & rule(fleet, request)
        count = int(excluded.sum())
        if count:
            reasons.append(Reason(code=code, nodes=count))
            left &= ~excluded
    return left, tuple(reasons)


def slots(fleet: Columns, request: Request, allowed: Bools) -> Ints:
    """How many workers each node can take now; 0 where it is not allowed."""
    count = count_bits(fleet.free & fleet.usable(request)) // request.gpus_per_worker
    count = _bounded(count, fleet.cpus, request.cpus_per_worker)
    count = _bounded(count, fleet.memory, request.memory_per_worker)
    return np.where(allowed, count, 0)


def _bounded(count: Ints, left: Floats, each: float) -> Ints:
    """At most what is left allows; NaN, not known, allows everything."""
    if not each:
        return count
    most = np.floor(left / each)
    known = np.nan_to_num(most).clip(0, 2**31).astype(np.int64)
    return np.where(np.isnan(most), count, np.minimum(count, known))
