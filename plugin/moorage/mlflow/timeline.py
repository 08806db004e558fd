"""A lease's ledger and journal as one value: what its report draws. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from itertools import pairwise

from moorage.api.values import Cost, Event, EventKind, Segment
from moorage.core.cost import cost
from moorage.core.job import Activity


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """Some GPUs of a lane doing one thing for one interval."""

    gpus: tuple[int, ...]
    activity: Activity
    epoch: int
    start: datetime
    end: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """One node. `gpus`: every device of it that the lease ever held, sorted."""

    node: str
    pool: str
    gpus: tuple[int, ...]
    bars: tuple[Bar, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """Something that happened at one moment. `label`: one or two words."""

    at: datetime
    kind: EventKind
    label: str
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """The attempt said that it was in this phase."""

    phase: str
    start: datetime
    end: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One epoch. `workers`: as granted; None: the journal does not say."""

    epoch: int
    start: datetime
    end: datetime
    outcome: str
    workers: int | None
    usd: Decimal
    gpu_seconds: Decimal


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the event table."""

    at: datetime
    event: str
    epoch: int | None
    node: str
    sentence: str
    facts: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CostReport:
    """All that the report shows. Times are UTC-aware; an interval that is still open ends at `end`."""

    lease: str
    title: str
    team: str
    outcome: str
    reason: str
    start: datetime
    end: datetime
    cost: Cost
    lanes: tuple[Lane, ...]
    #: (time, GPUs held from then on), oldest first.
    steps: tuple[tuple[datetime, int], ...]
    spans: tuple[Span, ...]
    marks: tuple[Mark, ...]
    attempts: tuple[Attempt, ...]
    rows: tuple[Row, ...]


def cost_report(
    segments: Sequence[Segment],
    events: Sequence[Event],
    *,
    lease: str,
    until: datetime,
    title: str = "",
    team: str = "",
) -> CostReport:
    """The report of one lease from its ledger and its journal rows, both oldest first.

    Args:
        until: where intervals that are still open end.
    """
    ended = next((event for event in reversed(events) if event.kind is EventKind.ENDED), None)
    times = [segment.start for segment in segments] + [event.at for event in events]
    end = max([ended.at if ended else until, *(segment.end or until for segment in segments)])
    return CostReport(
        lease=lease,
        title=title or lease,
        team=team,
        outcome=str(ended.facts.get("outcome") or "ended") if ended else "running",
        reason=ended.sentence if ended else "",
        start=min(times, default=until),
        end=end,
        cost=cost_of(segments, end),
        lanes=_lanes(segments, end),
        steps=gpu_steps(segments),
        spans=_spans(events, end),
        marks=tuple(mark for event in events if (mark := _mark(event)) is not None),
        attempts=_attempts(segments, events, end),
        rows=tuple(_row(event) for event in events if event.kind is not EventKind.PROGRESS),
    )


def cost_of(segments: Iterable[Segment], until: datetime) -> Cost:
    """Exact sums over the part of each segment before `until`. busy + idle + lost + overhead + unknown = total."""
    return cost([_until(segment, until) for segment in segments if segment.start < until], until)


def _until(segment: Segment, until: datetime) -> Segment:
    return segment if segment.end is None or segment.end <= until else replace(segment, end=until)


def usd_by_epoch(segments: Iterable[Segment], until: datetime) -> dict[int, Decimal]:
    """Dollars of each attempt."""
    by_epoch: dict[int, list[Segment]] = defaultdict(list)
    for segment in segments:
        by_epoch[segment.epoch].append(segment)
    return {epoch: cost_of(own, until).total_usd for epoch, own in by_epoch.items()}


def gpu_steps(segments: Iterable[Segment]) -> tuple[tuple[datetime, int], ...]:
    """How many GPUs were held from when on; a change of price or activity alone is no step."""
    change: dict[datetime, int] = defaultdict(int)
    for segment in segments:
        change[segment.start] += len(segment.gpus)
        if segment.end is not None:
            change[segment.end] -= len(segment.gpus)
    steps, held = [], 0
    for at in sorted(change):
        if change[at]:
            held += change[at]
            steps.append((at, held))
    return tuple(steps)


def _lanes(segments: Sequence[Segment], end: datetime) -> tuple[Lane, ...]:
    by_node: dict[str, list[Segment]] = defaultdict(list)
    for segment in segments:
        if segment.gpus:
            by_node[segment.node].append(segment)
    return tuple(
        Lane(
            node=node,
            pool=own[0].pool,
            gpus=tuple(sorted({gpu for segment in own for gpu in segment.gpus})),
            bars=_bars(own, end),
        )
        for node, own in by_node.items()
    )


def _bars(segments: Sequence[Segment], end: datetime) -> tuple[Bar, ...]:
    """Neighbours that differ only in price become one."""
    bars: dict[str, list[Bar]] = defaultdict(list)
    for one in sorted(segments, key=lambda segment: segment.start):
        bar = Bar(gpus=one.gpus, activity=one.activity, epoch=one.epoch, start=one.start, end=one.end or end)
        own = bars[one.allocation]
        if own and (own[-1].end, own[-1].activity) == (bar.start, bar.activity):
            bar = Bar(gpus=bar.gpus, activity=bar.activity, epoch=bar.epoch, start=own.pop().start, end=bar.end)
        own.append(bar)
    return tuple(bar for own in bars.values() for bar in own)


def _spans(events: Sequence[Event], end: datetime) -> tuple[Span, ...]:
    """From each progress row with a new phase to the next; a retry ends one too."""
    cuts: list[tuple[datetime, str]] = []
    for event in events:
        phase = _phase(event)
        if phase is not None and (not cuts or cuts[-1][1] != phase):
            cuts.append((event.at, phase))
    cuts.append((end, ""))
    return tuple(Span(phase=phase, start=start, end=stop) for (start, phase), (stop, _) in pairwise(cuts) if phase)


def _phase(event: Event) -> str | None:
    """The phase that begins here; "": none is known from here on; None: the row says nothing about it."""
    if event.kind is EventKind.PROGRESS:
        return str(event.facts.get("phase") or "") or None
    return "" if event.kind in (EventKind.RETRIED, EventKind.ENDED) else None


def _mark(event: Event) -> Mark | None:
    label = _label(event)
    return (label and Mark(at=event.at, kind=event.kind, label=label, sentence=event.sentence)) or None


def _label(event: Event) -> str:
    match event.kind:
        case EventKind.RESIZED:
            return f"{event.facts.get('from')}→{event.facts.get('to')} {event.facts.get('why') or ''}".strip()
        case EventKind.NOTICE | EventKind.LOST | EventKind.RETRIED | EventKind.WARNED | EventKind.STOPPING:
            return str(event.kind)
        case EventKind.GRANTED:
            return f"attempt {event.facts.get('epoch')}"
        case EventKind.RESUMED:
            lost = event.facts.get("steps_lost")
            return "resumed" if lost is None else f"resumed, {lost} lost"
        case _:
            return ""


def _attempts(segments: Sequence[Segment], events: Sequence[Event], end: datetime) -> tuple[Attempt, ...]:
    granted = [event for event in events if event.kind is EventKind.GRANTED]
    return tuple(_attempt(event, segments, events, end) for event in granted)


def _attempt(granted: Event, segments: Sequence[Segment], events: Sequence[Event], end: datetime) -> Attempt:
    epoch = int(granted.facts.get("epoch") or 0)
    over = next((e for e in events if e.seq > granted.seq and e.kind in (EventKind.RETRIED, EventKind.ENDED)), None)
    cost = cost_of([segment for segment in segments if segment.epoch == epoch], end)
    workers = granted.facts.get("workers")
    return Attempt(
        epoch=epoch,
        start=granted.at,
        end=over.at if over else end,
        outcome=attempt_outcome(over),
        workers=None if workers is None else int(workers),
        usd=cost.total_usd,
        gpu_seconds=cost.gpu_seconds,
    )


def attempt_outcome(over: Event | None) -> str:
    """One word for the row that ended an attempt."""
    if over is None:
        return "running"
    if over.kind is EventKind.ENDED:
        return str(over.facts.get("outcome") or "ended")
    return "failed" if over.facts.get("fault") else "interrupted" if over.facts.get("interruption") else "retried"


def _row(event: Event) -> Row:
    epoch = event.facts.get("epoch")
    return Row(
        at=event.at,
        event=str(event.kind),
        epoch=None if epoch is None else int(epoch),
        node=event.node or "",
        sentence=event.sentence,
        facts=", ".join(f"{key} {value}" for key, value in event.facts.items() if key != "epoch" and value is not None),
    )
