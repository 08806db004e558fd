"""The timeline of a `CostReport` as SVG: GPUs held, phases, one lane per node, numbered marks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from html import escape

from moorage.mlflow.timeline import Bar, CostReport, Lane

#: Numbered marks that are drawn and listed; the event table has the others.
MAX_MARKS = 40

_WIDTH, _LEFT, _RIGHT = 880, 130, 10
_STEP_HEIGHT, _PHASE_HEIGHT, _GAP = 64, 14, 10
_TICKS_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800)
#: A bar narrower than this is drawn as wide as this, so that a short loss can still be seen.
_NARROWEST = 0.75


def duration(seconds: float) -> str:
    """``4 s``, ``2:05``, ``1:02:05`` or ``3 d 04:05``."""
    whole = max(0, round(seconds))
    days, rest = divmod(whole, 86400)
    hours, rest = divmod(rest, 3600)
    minutes, secs = divmod(rest, 60)
    if days:
        return f"{days} d {hours:02}:{minutes:02}"
    if hours:
        return f"{hours}:{minutes:02}:{secs:02}"
    return f"{minutes}:{secs:02}" if minutes else f"{secs} s"


class _Scale:
    """From times to pixels."""

    def __init__(self, start: datetime, end: datetime) -> None:
        self.start = start
        self.seconds = max((end - start).total_seconds(), 1.0)

    def x(self, at: datetime) -> float:
        share = (at - self.start).total_seconds() / self.seconds
        return _LEFT + min(max(share, 0.0), 1.0) * (_WIDTH - _LEFT - _RIGHT)

    def ticks(self) -> Iterator[tuple[float, str]]:
        """At most eight, at round numbers of seconds since the start."""
        every: float = next((tick for tick in _TICKS_S if self.seconds / tick <= 8), self.seconds / 8)
        for k in range(int(self.seconds / every) + 1):
            yield _LEFT + k * every / self.seconds * (_WIDTH - _LEFT - _RIGHT), duration(k * every)


def timeline_svg(report: CostReport) -> str:
    """The drawing; its numbers are in the tables beside it."""
    scale = _Scale(report.start, report.end)
    top: float = 24
    parts = [_steps(report, scale, top)]
    top += _STEP_HEIGHT + _GAP
    if report.spans:
        parts.append(_phases(report, scale, top))
        top += _PHASE_HEIGHT + _GAP
    for lane in report.lanes:
        drawn, height = _lane(lane, scale, top)
        parts.append(drawn)
        top += height + _GAP
    axis = _axis(scale, top)
    marks = _mark_lines(report, scale, top)
    label = f"GPUs over {duration(scale.seconds)} on {len(report.lanes)} nodes; the tables below say the same in words"
    return (
        f"<div class='wide'><svg viewBox='0 0 {_WIDTH} {top + 22}' role='img' aria-label='{escape(label)}'>"
        f"<defs><pattern id='hatch' width='6' height='6' patternUnits='userSpaceOnUse' patternTransform='rotate(45)'>"
        f"<rect width='6' height='6' class='unknown-ground'/><line y2='6' class='unknown-line'/></pattern></defs>"
        f"{axis}{''.join(parts)}{marks}</svg></div>"
    )


def _name(y: float, text: str, sub: str = "") -> str:
    small = f"<tspan class='dim' dx='4'>{escape(sub)}</tspan>" if sub else ""
    return f"<text x='{_LEFT - 8}' y='{y:.1f}' text-anchor='end'>{escape(_short(text, 22 - len(sub)))}{small}</text>"


def _short(text: str, most: int) -> str:
    return text if len(text) <= max(most, 8) else text[: max(most, 8) - 1] + "…"


def _steps(report: CostReport, scale: _Scale, top: float) -> str:
    """GPUs held, as an area that changes only where the ledger does."""
    most = max((gpus for _, gpus in report.steps), default=0)
    floor = top + _STEP_HEIGHT
    points, y = [f"{_LEFT},{floor}"], floor
    for at, gpus in report.steps:
        x = scale.x(at)
        points.append(f"{x:.1f},{y:.1f}")
        y = floor - _STEP_HEIGHT * gpus / max(most, 1)
        points.append(f"{x:.1f},{y:.1f}")
    right = scale.x(report.end)
    points += [f"{right:.1f},{y:.1f}", f"{right:.1f},{floor}"]
    return (
        f"<polygon class='held' points='{' '.join(points)}'/>{_name(top + 9, f'{most} GPUs')}{_name(floor, '0')}"
        f"<line class='axis' x1='{_LEFT}' x2='{right:.1f}' y1='{floor}' y2='{floor}'/>"
    )


def _phases(report: CostReport, scale: _Scale, top: float) -> str:
    drawn = []
    for span in report.spans:
        x, width = _extent(scale, span.start, span.end)
        took = duration((span.end - span.start).total_seconds())
        text = (
            f"<text class='on' x='{x + 4:.1f}' y='{top + 11}'>{escape(span.phase)}</text>"
            if width > 8 * len(span.phase)
            else ""
        )
        drawn.append(
            f"<g><title>{escape(span.phase)}, {took}</title><rect class='phase {escape(span.phase)}' x='{x:.1f}' "
            f"y='{top}' width='{width:.1f}' height='{_PHASE_HEIGHT}'/>{text}</g>"
        )
    return _name(top + 11, "phase") + "".join(drawn)


def _extent(scale: _Scale, start: datetime, end: datetime) -> tuple[float, float]:
    x = scale.x(start)
    return x, max(scale.x(end) - x, _NARROWEST)


def _lane(lane: Lane, scale: _Scale, top: float) -> tuple[str, float]:
    row = max(3.0, min(11.0, 88.0 / max(len(lane.gpus), 1)))
    height = row * len(lane.gpus)
    bars = "".join(_bar(bar, lane, scale, top, row) for bar in lane.bars)
    return _name(top + height / 2 + 4, lane.node, lane.pool) + bars, max(height, 12.0)


def _bar(bar: Bar, lane: Lane, scale: _Scale, top: float, row: float) -> str:
    x, width = _extent(scale, bar.start, bar.end)
    gpus = ", ".join(map(str, bar.gpus))
    took = duration((bar.end - bar.start).total_seconds())
    title = f"{lane.node} GPU {gpus}: {bar.activity}, {took}, attempt {bar.epoch}"
    rects = "".join(
        f"<rect class='{bar.activity}' x='{x:.1f}' y='{top + first * row:.1f}' width='{width:.1f}' "
        f"height='{count * row - 1:.1f}'/>"
        for first, count in _runs([lane.gpus.index(gpu) for gpu in bar.gpus])
    )
    return f"<g><title>{escape(title)}</title>{rects}</g>"


def _runs(rows: Sequence[int]) -> list[tuple[int, int]]:
    """(first, count) of neighbouring rows."""
    runs: list[tuple[int, int]] = []
    for row in sorted(rows):
        if runs and sum(runs[-1]) == row:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((row, 1))
    return runs


def _axis(scale: _Scale, bottom: float) -> str:
    return "".join(
        f"<line class='grid' x1='{x:.1f}' x2='{x:.1f}' y1='20' y2='{bottom}'/>"
        f"<text class='dim' x='{x:.1f}' y='{bottom + 14}' text-anchor='middle'>{escape(label)}</text>"
        for x, label in scale.ticks()
    )


def _mark_lines(report: CostReport, scale: _Scale, bottom: float) -> str:
    """Numbered; a number moves right where it would cover the one before it."""
    drawn, taken = [], 0.0
    for number, mark in enumerate(report.marks[:MAX_MARKS], 1):
        x = scale.x(mark.at)
        badge = min(max(x, taken + 16), _WIDTH - 8)
        taken = badge
        drawn.append(
            f"<g class='mark {mark.kind}'><title>{escape(mark.label)}: {escape(mark.sentence)}</title>"
            f"<polyline points='{badge:.1f},18 {x:.1f},24 {x:.1f},{bottom}'/><circle cx='{badge:.1f}' cy='10' r='8'/>"
            f"<text x='{badge:.1f}' y='13.5' text-anchor='middle'>{number}</text></g>"
        )
    return "".join(drawn)
