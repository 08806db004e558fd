"""A lease's life as an SVG: one bar per allocation, cut where what it did changed, and marks for events. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from html import escape

from moorage.api.values import Event, EventKind, Segment
from moorage.core.job import Activity
from moorage.web import text

WIDTH = 1360
LEFT = 150
ROW = 24
BAR = 15
TOP = 42
#: Rows of words above the bars.
LANES = 2
LANE = 13
#: Rows drawn; older allocations beyond are counted.
MAX_ROWS = 40
#: Kinds that get a mark, with the word beside it.
MARKS = {
    EventKind.GRANTED: "granted",
    EventKind.NOTICE: "notice",
    EventKind.LOST: "node lost",
    EventKind.RESUMED: "resumed",
    EventKind.RETRIED: "retried",
    EventKind.RESIZED: "resized",
    EventKind.STOPPING: "stopping",
    EventKind.ENDED: "ended",
}
#: Widths of ticks in seconds.
TICKS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400, 604800)


@dataclass(frozen=True, slots=True)
class Scale:
    """Time to x."""

    start: datetime
    end: datetime

    @property
    def seconds(self) -> float:
        return max((self.end - self.start).total_seconds(), 1.0)

    def x(self, at: datetime) -> float:
        share = (at - self.start).total_seconds() / self.seconds
        return LEFT + (WIDTH - LEFT - 8) * min(max(share, 0.0), 1.0)


def draw(start: datetime, end: datetime, segments: Sequence[Segment], events: Sequence[Event]) -> str:
    """The SVG, or nothing where the lease has held nothing yet. Colours come from the page's style sheet."""
    rows = _rows(segments)
    if not rows:
        return ""
    shown, scale = rows[-MAX_ROWS:], Scale(start, end)
    height = TOP + ROW * len(shown) + 22
    body = [*_ticks(scale, height), *_marks(scale, events, height)]
    for number, row in enumerate(shown):
        body += _row(scale, row, TOP + number * ROW, end)
    if len(rows) > len(shown):
        body.append(f'<text x="0" y="12" class="soft">{len(rows) - len(shown)} earlier allocations not drawn</text>')
    return (
        f'<svg viewBox="0 0 {WIDTH} {height}" class="timeline" role="img" '
        f'aria-label="{escape(_summary(rows, events))}">{"".join(body)}</svg>'
    )


def _rows(segments: Sequence[Segment]) -> list[list[Segment]]:
    """Segments by allocation, in order of their first one."""
    rows: dict[str, list[Segment]] = {}
    for segment in segments:
        rows.setdefault(segment.allocation, []).append(segment)
    return sorted(rows.values(), key=lambda row: row[0].start)


def _row(scale: Scale, row: Sequence[Segment], y: float, now: datetime) -> list[str]:
    first = row[0]
    label = f"{first.node}:{','.join(map(str, first.gpus))}"
    parts = [f'<text x="0" y="{y + BAR - 3}" class="row">{escape(_fit(label))}<title>{escape(label)}</title></text>']
    return parts + [_bar(scale, segment, y, now) for segment in row]


def _bar(scale: Scale, segment: Segment, y: float, now: datetime) -> str:
    end = segment.end or now
    x, to = scale.x(segment.start), scale.x(end)
    title = (
        f"{segment.activity} on {segment.node}, {text.span((end - segment.start).total_seconds())}, "
        f"{text.price(segment.price)} per GPU-hour"
    )
    return (
        f'<rect x="{x:.1f}" y="{y}" width="{max(to - x, 0.8):.1f}" height="{BAR}" rx="2" class="a-{segment.activity}">'
        f"<title>{escape(title)}</title></rect>"
    )


def _ticks(scale: Scale, height: int) -> list[str]:
    step = next((tick for tick in TICKS if scale.seconds / tick <= 10), TICKS[-1])
    parts: list[str] = []
    for number in range(int(scale.seconds // step) + 1):
        x = LEFT + (WIDTH - LEFT - 8) * number * step / scale.seconds
        parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP - 6}" y2="{height - 16}" class="tick"/>')
        parts.append(f'<text x="{x:.1f}" y="{height - 4}" class="tick-label">{_clock(number * step)}</text>')
    return parts


def _clock(seconds: int) -> str:
    hours, rest = divmod(seconds, 3600)
    return f"{hours}:{rest // 60:02}:{rest % 60:02}" if hours else f"{rest // 60}:{rest % 60:02}"


def _marks(scale: Scale, events: Sequence[Event], height: int) -> list[str]:
    parts: list[str] = []
    # A word goes to the first lane where the last word does not reach; without one, the mark has its title only.
    free_from = [float(LEFT)] * LANES
    for event in events:
        if event.kind not in MARKS:
            continue
        x, word = scale.x(event.at), MARKS[event.kind]
        lane = next((lane for lane in range(LANES) if x >= free_from[lane]), None)
        label = ""
        if lane is not None:
            free_from[lane] = x + 6.5 * len(word) + 8
            label = _word(x, TOP - 14 - LANE * lane, word)
        line = f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP - 10}" y2="{height - 18}" class="m-{event.kind}"/>'
        title = escape(f"{event.at:%H:%M:%S} {event.sentence}")
        parts.append(f'<g class="mark">{line}{label}<title>{title}</title></g>')
    return parts


def _word(x: float, y: float, word: str) -> str:
    anchor = ' text-anchor="end"' if x > WIDTH - 60 else ""
    return f'<text x="{x:.1f}" y="{y}"{anchor} class="mark-label">{word}</text>'


def _fit(label: str) -> str:
    return label if len(label) <= 19 else f"{label[:8]}…{label[-10:]}"


def _summary(rows: Sequence[Sequence[Segment]], events: Sequence[Event]) -> str:
    activities = [str(kind) for kind in Activity if any(s.activity is kind for row in rows for s in row)]
    happened = [MARKS[event.kind] for event in events if event.kind in MARKS]
    return f"{text.many(len(rows), 'allocation')}: {', '.join(activities)}. Events: {', '.join(happened) or 'none'}."
