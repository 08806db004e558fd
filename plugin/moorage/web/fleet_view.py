"""`Fleet` as the fleet page draws it: groups of nodes, GPU cells, totals and two tables. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from typing import Any

from moorage.api.values import Fleet, GpuUse, LeaseView, NodeView
from moorage.core.fleet import Gpu
from moorage.core.lease import AllocationState, Lease, LeaseState
from moorage.core.request import CapacityType
from moorage.web import text

#: Levels that are finer than a group of nodes.
FINE = ("host", "island")
DOT = "\u00b7"


class Cell(StrEnum):
    """What one GPU is; its character in `fleet.json`."""

    HELD = "h"
    FREE = "f"
    #: Healthy as far as known, but its node takes no new grants.
    CLOSED = "c"
    #: The GPU is unhealthy.
    BROKEN = "b"
    #: Nobody can tell: its node is silent or lost.
    UNKNOWN = "u"


def cell(node: NodeView, use: GpuUse, gpu: Gpu | None) -> Cell:
    """What one GPU is. A silent node's GPUs are unknown, never free."""
    if use.lease is not None:
        return Cell.HELD
    if node.condition in ("stale", "lost"):
        return Cell.UNKNOWN
    if gpu is not None and gpu.healthy is False:
        return Cell.BROKEN
    return Cell.FREE if node.condition == "ready" else Cell.CLOSED


def build(fleet: Fleet, *, operator: bool) -> dict[str, Any]:
    """Everything that the page needs, as JSON-able values."""
    holders = Holders((*fleet.leases, *fleet.queue))
    nodes = [_node(view, fleet.at, holders) for view in sorted(fleet.nodes, key=lambda v: text.natural(v.node.id))]
    return {
        "at": fleet.at.isoformat(),
        "revision": fleet.revision,
        "frozen": fleet.frozen,
        "operator": operator,
        "totals": totals(fleet),
        "groups": _groups(fleet.nodes, nodes),
        "holders": holders.shown,
        "queue": [_queued(position, view, fleet.at) for position, view in enumerate(fleet.queue, 1)],
        "leases": [_lease(view, fleet.at) for view in fleet.leases],
    }


def totals(fleet: Fleet) -> dict[str, Any]:
    """The header: GPUs by what they are, dollars per hour, leases by state."""
    cells = [(view, use, kind) for view in fleet.nodes for use, _, kind in _cells(view)]
    kinds = [kind for _, _, kind in cells]
    held = kinds.count(Cell.HELD)
    free = kinds.count(Cell.FREE)
    paid = [view.node for view, _, kind in cells if kind is Cell.HELD]
    saved = sum((node.on_demand_price - node.price for node in paid), Decimal(0))
    states = [view.lease.state for view in fleet.leases]
    unusable = len(cells) - held - free
    return {
        "held": text.count(held),
        "held_of": f"of {text.count(len(cells))} held",
        "use_note": f"{text.count(held)} held {DOT} {text.count(free)} free {DOT} {text.count(unusable)} not usable",
        "nodes_note": _nodes_note(fleet.nodes),
        "rate": text.usd(sum((node.price for node in paid), Decimal(0))),
        "rate_note": f"{text.usd(saved)}/h less than on demand" if saved > 0 else _unpriced(paid),
        "running": text.count(states.count(LeaseState.RUNNING)),
        "lease_note": _lease_note(states),
        "queued": text.count(len(fleet.queue)),
        "oldest": _oldest(fleet),
    }


def _nodes_note(nodes: Iterable[NodeView]) -> str:
    conditions = [view.condition for view in nodes]
    not_ready = sum(condition != "ready" for condition in conditions)
    return text.many(len(conditions), "node") + (f", {not_ready} not ready" if not_ready else "")


def _lease_note(states: Sequence[LeaseState]) -> str:
    counted = {"starting": states.count(LeaseState.GRANTED), "stopping": states.count(LeaseState.STOPPING)}
    words = [f"{number} {word}" for word, number in counted.items() if number]
    return f" {DOT} ".join(words) or "none is starting or stopping"


def _unpriced(paid: Iterable[Any]) -> str:
    without = sum(node.price == 0 for node in paid)
    return f"{text.many(without, 'held GPU')} without a price" if without else "at the prices of now"


def _oldest(fleet: Fleet) -> str:
    waits = [(fleet.at - view.lease.submitted_at).total_seconds() for view in fleet.queue]
    return f"longest wait {text.span(max(waits))}" if waits else "nothing waits"


class Holders:
    """Leases as cells refer to them: by index, so that a thousand cells do not repeat a name."""

    def __init__(self, views: Iterable[LeaseView]) -> None:
        self._leases = {view.lease.id: view.lease for view in views}
        self._index: dict[str, int] = {}
        self.shown: list[dict[str, Any]] = []

    def index(self, lease: str) -> int:
        """The lease's place in `shown`."""
        if lease not in self._index:
            self._index[lease] = len(self.shown)
            self.shown.append(self._show(lease))
        return self._index[lease]

    def _show(self, lease: str) -> dict[str, Any]:
        known = self._leases.get(lease)
        label = f"{text.owner(known.owner)} (team {known.team})" if known else "a lease that is not listed"
        return {"id": lease, **mark(lease), "label": label}


def mark(lease: str) -> dict[str, Any]:
    """How a lease is drawn everywhere."""
    return {"hue": text.hue(lease), "letter": text.letter(lease), "short": text.short(lease)}


def _cells(view: NodeView) -> list[tuple[GpuUse, Gpu | None, Cell]]:
    devices = {gpu.index: gpu for gpu in view.node.gpus}
    uses = sorted(view.gpus, key=lambda use: use.index)
    return [(use, devices.get(use.index), cell(view, use, devices.get(use.index))) for use in uses]


def _node(view: NodeView, now: datetime, holders: Holders) -> dict[str, Any]:
    cells = _cells(view)
    return {
        "id": view.node.id,
        "pool": view.node.pool,
        "capacity": str(view.node.capacity),
        "spot": view.node.capacity is CapacityType.SPOT,
        "price": text.price(view.node.price),
        "condition": view.condition,
        "badge": badge(view, now),
        "note": condition_note(view, now),
        "model": _models(view.node.gpus),
        "size": _size(view),
        "cordoned": view.node.cordoned or view.node.draining,
        "cells": [[str(kind), use.index, holders.index(use.lease) if use.lease else -1] for use, _, kind in cells],
    }


def badge(view: NodeView, now: datetime) -> str:
    """The condition in a word or two; nothing for a node that is ready."""
    deadline = view.node.notice_deadline
    if view.condition == "notice" and deadline is not None:
        return f"goes in {text.span((deadline - now).total_seconds())}"
    return "" if view.condition == "ready" else view.condition


def condition_note(view: NodeView, now: datetime) -> str:
    """One clause about a node that is not simply ready."""
    silent = "" if view.silent_s is None else f", last heard {text.span(view.silent_s)} ago"
    match view.condition:
        case "notice" if view.node.notice_deadline is not None:
            return f"the cloud takes it in {text.span((view.node.notice_deadline - now).total_seconds())}"
        case "stale":
            return f"silent, no new grants{silent}" if silent else "never heard since the broker started"
        case "lost":
            return f"declared lost{silent}"
        case "draining":
            return "leases move away at their next checkpoint"
        case "cordoned":
            return "no new grants"
        case _:
            return ""


def _models(gpus: Iterable[Gpu]) -> str:
    """``4 x H100 80 GiB``."""
    counted: dict[str, int] = {}
    for gpu in gpus:
        name = f"{gpu.model} {text.gib(gpu.memory)}".strip()
        counted[name] = counted.get(name, 0) + 1
    return ", ".join(f"{number} {text.TIMES} {name}" for name, number in counted.items())


def _size(view: NodeView) -> str:
    cpus = "CPU cores not known" if view.node.cpus is None else f"{view.node.cpus:g} CPU cores"
    memory = "memory not known" if view.node.memory is None else f"{text.gib(view.node.memory)} memory"
    return f"{cpus}, {memory}"


def _groups(views: Iterable[NodeView], nodes: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Nodes by the narrowest domain above the host."""
    paths = {view.node.id: _path(view) for view in views}
    groups: dict[tuple[tuple[str, str], ...], list[Mapping[str, Any]]] = {}
    for node in nodes:
        groups.setdefault(paths[node["id"]], []).append(node)
    return [_group(path, groups[path]) for path in sorted(groups, key=_path_order)]


def _path(view: NodeView) -> tuple[tuple[str, str], ...]:
    return tuple((level, domain) for level, domain in view.node.domains.items() if level not in FINE)


def _path_order(path: tuple[tuple[str, str], ...]) -> tuple[Any, ...]:
    return (not path, tuple(text.natural(domain) for _, domain in path))


def _group(path: tuple[tuple[str, str], ...], nodes: list[Mapping[str, Any]]) -> dict[str, Any]:
    kinds = [kind for node in nodes for kind, _, _ in node["cells"]]
    level, name = path[-1] if path else ("", "")
    return {
        "id": "/".join(domain for _, domain in path),
        # A domain that is named after its level (rack-7, Rack 7) needs no second word.
        "title": (name if name.lower().startswith(level.lower()) else f"{level} {name}") if path else "no place known",
        "above": " · ".join(f"{level} {domain}" for level, domain in path[:-1]),
        "gpus": len(kinds),
        "held": kinds.count(Cell.HELD),
        "free": kinds.count(Cell.FREE),
        "nodes": nodes,
    }


def _queued(position: int, view: LeaseView, now: datetime) -> dict[str, Any]:
    lease = view.lease
    return {
        **_who(lease),
        "position": position,
        "asks": text.asks(lease.request),
        "since": text.since(lease.submitted_at, now),
        "since_title": text.stamp(lease.submitted_at),
        "reason": lease.reason or "not tried yet",
    }


def _lease(view: LeaseView, now: datetime) -> dict[str, Any]:
    lease, progress = view.lease, view.lease.progress
    return {
        **_who(lease),
        "state": state_word(lease),
        "reason": lease.reason,
        "workers": workers(lease),
        "gpus": sum(len(allocation.gpus) for allocation in lease.live),
        "phase": str(progress.phase) if progress else text.UNKNOWN,
        "step": text.count(progress.step if progress else None),
        "done": done(lease),
        "loss": text.loss(progress.loss if progress else None),
        "spent": text.usd(view.cost.total_usd),
        "started": text.since(lease.granted_at, now),
        "started_title": text.stamp(lease.granted_at),
        "where": where(lease),
    }


def _who(lease: Lease) -> dict[str, Any]:
    return {
        "id": lease.id,
        **mark(lease.id),
        "owner": text.owner(lease.owner),
        "owner_title": text.owner_lines(lease.owner),
        "team": lease.team,
    }


def state_word(lease: Lease) -> str:
    """The state; a granted lease is starting."""
    return "starting" if lease.state is LeaseState.GRANTED else str(lease.state)


def workers(lease: Lease) -> str:
    """``3 of 1-4``."""
    low, high = lease.request.workers
    return f"{lease.workers} of {low}" if low == high else f"{lease.workers} of {low}{text.DASH}{high}"


def done(lease: Lease) -> int | None:
    """Percent of the samples; None: the job does not say."""
    progress = lease.progress
    if progress is None or progress.samples_done is None or not progress.samples_total:
        return None
    return min(100, int(100 * progress.samples_done / progress.samples_total))


def where(lease: Lease) -> str:
    """``n1 x2, n3``: nodes with the GPUs held on each; what is draining is said."""
    gpus: dict[str, int] = {}
    draining: set[str] = set()
    for allocation in lease.live:
        if allocation.gpus:
            gpus[allocation.node] = gpus.get(allocation.node, 0) + len(allocation.gpus)
            if allocation.state is AllocationState.DRAINING:
                draining.add(allocation.node)
    words = [
        f"{node}{f' {text.TIMES}{number}' if number > 1 else ''}{' (draining)' if node in draining else ''}"
        for node, number in sorted(gpus.items(), key=lambda item: text.natural(item[0]))
    ]
    return ", ".join(words) or text.UNKNOWN
