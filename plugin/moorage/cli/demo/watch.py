"""What a demo learns from the broker while a lease runs, and what it says about it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from moorage.api.values import Event, EventKind, LeaseView


@dataclass(frozen=True)
class Resize:
    """One change of the number of workers."""

    at: datetime
    before: int
    after: int
    reason: str


@dataclass(frozen=True)
class Interruption:
    """A node that went while a lease held something on it, and what training lost by it."""

    at: datetime
    node: str
    notice: bool
    steps_lost: int | None
    seconds_lost: float | None


@dataclass
class Story:
    """A lease's resizes and interruptions, from its events."""

    resizes: list[Resize] = field(default_factory=list)
    interruptions: list[Interruption] = field(default_factory=list)


def story(events: Iterable[Event]) -> Story:
    """Read one lease's events, oldest first.

    What an interruption cost is told by the resumption that answers it: the move away from a node comes with its
    notice, so that resumption may stand before the loss of the node itself.
    """
    events = list(events)
    told = Story()
    for index, event in enumerate(events):
        if event.kind is EventKind.RESIZED and event.facts.get("from") != event.facts.get("to"):
            told.resizes.append(Resize(event.at, _int(event.facts["from"]), _int(event.facts["to"]), event.sentence))
        elif event.kind is EventKind.LOST and event.lease and event.facts.get("interruption", 1):
            told.interruptions.append(_interruption(event, events, index))
    return told


def _interruption(lost: Event, events: list[Event], index: int) -> Interruption:
    notice = bool(lost.facts.get("notice"))
    resumed = _resumed_after_notice(events, index) if notice else _next(events[index:], EventKind.RESUMED)
    facts: Mapping[str, Any] = resumed.facts if resumed else {}
    return Interruption(lost.at, lost.node or "", notice, facts.get("steps_lost"), facts.get("seconds_stopped"))


def _resumed_after_notice(events: list[Event], index: int) -> Event | None:
    moves = [i for i, event in enumerate(events[:index]) if event.facts.get("why") == "notice"]
    return _next(events[moves[-1] if moves else index :], EventKind.RESUMED)


def _next(events: Iterable[Event], kind: EventKind) -> Event | None:
    return next((event for event in events if event.kind is kind), None)


def _int(value: object) -> int:
    return int(str(value))


def line(view: LeaseView) -> str:
    """A running lease in one line."""
    lease, progress = view.lease, view.lease.progress
    if progress is None or progress.step is None:
        return lease.reason or lease.state.value
    bits = [f"{progress.workers or lease.workers} workers", f"step {progress.step}"]
    if progress.samples_total and progress.samples_done is not None:
        bits.append(f"{100 * progress.samples_done / progress.samples_total:.0f} %")
    if progress.loss is not None:
        bits.append(f"loss {progress.loss:.4f}")
    bits += [f"{name} {value:.3f}" for name, value in progress.metrics.items()]
    if progress.throughput is not None:
        bits.append(f"{progress.throughput:.0f} samples/s")
    nodes = sorted({a.node for a in lease.live if a.gpus})
    return f"{progress.phase.value}: {', '.join(bits)} on {'+'.join(nodes) or 'nothing'} · ${view.cost.total_usd:.4f}"
