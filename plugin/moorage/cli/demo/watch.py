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


def story(events: Iterable[Event], lease: str) -> Story:
    """Read a lease's resizes and interruptions from the journal, oldest row first.

    With a notice the lease moves before the node goes, so it is the move that interrupts it; without one, the loss.
    What an interruption cost is told by the resumption that follows.
    """
    events = list(events)
    told = Story()
    for index, event in enumerate(events):
        if event.lease != lease:
            continue
        if event.kind is EventKind.RESIZED and event.facts.get("why") == "notice":
            told.interruptions.append(_interruption(event, events, index, notice=True))
        elif event.kind is EventKind.RESIZED and event.facts.get("from") != event.facts.get("to"):
            told.resizes.append(Resize(event.at, _int(event.facts["from"]), _int(event.facts["to"]), event.sentence))
        elif event.kind is EventKind.LOST and not event.facts.get("notice"):
            told.interruptions.append(_interruption(event, events, index, notice=False))
    return told


def _interruption(event: Event, events: list[Event], index: int, *, notice: bool) -> Interruption:
    resumed = _next((e for e in events[index:] if e.lease == event.lease), EventKind.RESUMED)
    noticed = _next(reversed(events[:index]), EventKind.NOTICE) if notice else event
    facts: Mapping[str, Any] = resumed.facts if resumed else {}
    node = noticed.node if noticed else None
    return Interruption(event.at, node or "", notice, facts.get("steps_lost"), facts.get("seconds_stopped"))


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
