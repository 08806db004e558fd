"""Reasons as one sentence that a person can act on. Made here only, and tested word for word."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

from moorage.core.decision import Code, Reason
from moorage.core.place import Placed
from moorage.core.request import Request

#: Clauses about excluded nodes, for one and for several.
_NODES: dict[Code, tuple[str, str]] = {
    Code.LOST: ("is lost", "are lost"),
    Code.DRAINING: ("is draining", "are draining"),
    Code.CORDONED: ("is cordoned", "are cordoned"),
    Code.NOTICE: ("has a notice", "have a notice"),
    Code.STALE: ("has a stale report", "have stale reports"),
    Code.NO_GPU: ("has no GPU", "have no GPU"),
    Code.MODEL: ("has another GPU model", "have other GPU models"),
    Code.GPU_MEMORY: ("has too little GPU memory", "have too little GPU memory"),
    Code.CAPACITY: ("is less steady than asked for", "are less steady than asked for"),
    Code.LABELS: ("has other labels", "have other labels"),
    Code.UNHEALTHY: ("has too few healthy GPUs", "have too few healthy GPUs"),
    Code.TOO_SMALL: ("has too few GPUs for one worker", "have too few GPUs for one worker"),
    Code.BUSY: ("is busy", "are busy"),
    Code.CPU: ("has too few free CPU cores", "have too few free CPU cores"),
    Code.MEMORY: ("has too little free memory", "have too little free memory"),
}


def why_waiting(request: Request, workers: int, reasons: Sequence[Reason]) -> str:
    """For example: 2 x 8 GPUs in one rack: largest free rack is r07 with 12; 3 nodes are draining, 1 is busy."""
    about = [reason for reason in reasons if not reason.nodes]
    counted = [reason for reason in reasons if reason.nodes]
    clauses = [clause for clause in (_clause(reason, workers) for reason in about) if clause]
    if counted:
        clauses.append(excluded(counted))
    return f"{wanted(request, workers)}: {'; '.join(clauses)}"


def wanted(request: Request, workers: int) -> str:
    """For example ``2 x 8 H100 in one rack``."""
    what = " or ".join(request.models) or ("GPU" if workers * request.gpus_per_worker == 1 else "GPUs")
    where = f" in one {request.topology.required}" if request.topology.required else ""
    return f"{workers} x {request.gpus_per_worker} {what}{where}"


def excluded(reasons: Iterable[Reason]) -> str:
    """For example ``3 nodes are draining, 1 has a stale report``."""
    clauses: list[str] = []
    for reason in reasons:
        one, several = _NODES[reason.code]
        noun = "" if clauses else (" node" if reason.nodes == 1 else " nodes")
        clauses.append(f"{reason.nodes}{noun} {one if reason.nodes == 1 else several}")
    return ", ".join(clauses)


def _clause(reason: Reason, workers: int) -> str:
    facts = reason.facts
    match reason.code:
        case Code.TOPOLOGY if not facts["largest"]:
            return f"no {facts['level']} has room for a worker now"
        case Code.TOPOLOGY:
            return f"largest free {facts['level']} is {facts['largest']} with {facts['free']}"
        case Code.TOO_SMALL:
            fits = int(facts["fits"])
            return f"{fits or 'none'} of {workers} worker{'s' if workers != 1 else ''} would fit now"
        case Code.NO_NODES:
            return "no node has joined the fleet yet"
        case Code.QUOTA:
            return f"team {facts['team']} may hold {facts['quota']} GPUs and holds {facts['held']}"
        case Code.BACK_OFF:
            return f"tried again at {facts['at']}"
        case Code.BEHIND:
            return f"waits for {facts['gpus']} GPUs that are given back on {facts['nodes']}"
        case Code.NEVER:
            return "could not fit even on the empty fleet"
        case _:
            return ""


def clock(at: datetime) -> str:
    """The time of day of a UTC-aware time, to the second."""
    return f"{at:%H:%M:%S %Z}"


def names(nodes: Iterable[str], most: int = 4) -> str:
    """A few names, and how many more there are."""
    listed = sorted(set(nodes))
    more = f" and {len(listed) - most} more" if len(listed) > most else ""
    return ", ".join(listed[:most]) + more


def where(placed: Placed) -> str:
    """For example ``n1, n2 in rack r1``."""
    on = names(spot.node for spot in placed.spots)
    if placed.level in ("", "host", "island"):
        return on
    return f"{on} in {placed.level} {placed.domain}"
