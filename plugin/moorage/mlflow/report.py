"""A `CostReport` as one self-contained HTML page: no script, no network, light and dark, every text escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from decimal import Decimal
from html import escape

from moorage.core.job import Activity
from moorage.mlflow.accounts import money, plural
from moorage.mlflow.chart import MAX_MARKS, duration, timeline_svg
from moorage.mlflow.style import STYLE
from moorage.mlflow.timeline import CostReport

#: What the words of the cost split mean, as a reader of the page needs it.
MEANING = {
    Activity.BUSY: "training",
    Activity.OVERHEAD: "starting, restoring, checkpointing, resizing, draining",
    Activity.LOST: "work done again after an interruption",
    Activity.IDLE: "held without a job, or measured idle",
    Activity.UNKNOWN: "no heartbeat and no measurement",
}
#: Rows of the page's own event table; moorage/events.json has all of them.
_MAX_ROWS = 300


def render(report: CostReport) -> str:
    """The page."""
    body = "\n".join(
        (
            _head(report),
            _tiles(report),
            _split(report),
            _section("Timeline", timeline_svg(report) + _marks(report)),
            _section("Attempts", _attempts(report)),
            _section("Events", _events(report)),
        )
    )
    title = escape(f"{report.title} · {money(report.cost.total_usd)}")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="color-scheme" '
        f'content="light dark">\n<title>{title}</title>\n<style>{STYLE}</style></head>\n<body><main>\n{body}\n'
        "</main></body></html>\n"
    )


def share(part: Decimal, whole: Decimal) -> str:
    """Percent with one decimal; a dash where there is no whole."""
    return f"{part / whole * 100:.1f} %" if whole else "-"


def _head(report: CostReport) -> str:
    when = f"{_clock(report.start)} to {_clock(report.end)} UTC"
    facts = f"lease {report.lease} · team {report.team or 'unknown'} · {when}"
    reason = f"<p>{escape(report.reason)}</p>" if report.reason else ""
    return (
        f"<header><h1>{escape(report.title)} <span class='badge {escape(report.outcome)}'>"
        f"{escape(report.outcome)}</span></h1><p class='dim'>{escape(facts)}</p>{reason}</header>"
    )


def _tiles(report: CostReport) -> str:
    cost = report.cost
    interruptions = sum(attempt.outcome == "interrupted" for attempt in report.attempts)
    lost = sum(mark.label == "lost" for mark in report.marks)
    tiles = [
        ("total", money(cost.total_usd)),
        ("saved against on demand", money(cost.saved_usd)),
        ("GPU-hours", f"{cost.gpu_seconds / 3600:.3f}"),
        ("from submission to end", duration((report.end - report.start).total_seconds())),
        ("most GPUs at once", str(max((gpus for _, gpus in report.steps), default=0))),
        ("nodes lost", str(max(lost, interruptions))),
    ]
    cells = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in tiles)
    return f"<dl class='tiles'>{cells}</dl>"


def _parts(report: CostReport) -> dict[Activity, Decimal]:
    cost = report.cost
    return {
        Activity.BUSY: cost.busy_usd,
        Activity.OVERHEAD: cost.overhead_usd,
        Activity.LOST: cost.lost_usd,
        Activity.IDLE: cost.idle_usd,
        Activity.UNKNOWN: cost.unknown_usd,
    }


def _split(report: CostReport) -> str:
    total = report.cost.total_usd
    parts = _parts(report)
    bar = "".join(
        f"<span class='{activity}' style='flex:{float(usd / total) * 1000:.3f}' title='{activity}'></span>"
        for activity, usd in parts.items()
        if usd > 0
    )
    rows = [
        (f"<i class='key {activity}'></i>{activity}", money(usd), share(usd, total), MEANING[activity])
        for activity, usd in parts.items()
    ]
    rows.append(("total", money(total), share(total, total), ""))
    table = _table(("", "dollars", "share", "what it was"), rows, right={1, 2}, raw={0})
    return _section("Where the money went", f"<div class='split' role='presentation'>{bar}</div>{table}")


def _marks(report: CostReport) -> str:
    items = "".join(
        f"<li><b>{escape(_elapsed(report, mark.at))} {escape(mark.label)}</b> {escape(mark.sentence)}</li>"
        for mark in report.marks[:MAX_MARKS]
    )
    return f"<ol class='marks'>{items}</ol>" if items else ""


def _attempts(report: CostReport) -> str:
    rows = [
        (
            str(one.epoch),
            _elapsed(report, one.start),
            duration((one.end - one.start).total_seconds()),
            "unknown" if one.workers is None else str(one.workers),
            f"{one.gpu_seconds / 3600:.3f}",
            money(one.usd),
            one.outcome,
        )
        for one in report.attempts
    ]
    columns = ("attempt", "began", "took", "workers at start", "GPU-hours", "dollars", "outcome")
    return _table(columns, rows, right={1, 2, 3, 4, 5}) if rows else "<p class='dim'>It never got GPUs.</p>"


def _events(report: CostReport) -> str:
    rows = [(_elapsed(report, row.at), row.event, row.node, row.sentence) for row in report.rows[:_MAX_ROWS]]
    left = len(report.rows) - len(rows)
    more = f"<p class='dim'>{plural(left, 'more row')} in moorage/events.json</p>" if left > 0 else ""
    return _table(("after", "event", "node", "what happened"), rows, right={0}) + more


def _section(title: str, inner: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{inner}</section>"


def _table(
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    right: frozenset[int] | set[int] = frozenset(),
    raw: frozenset[int] | set[int] = frozenset(),
) -> str:
    """`right`: columns of numbers; `raw`: columns that are HTML of our own."""

    def cell(tag: str, index: int, text: str) -> str:
        inner = text if index in raw and tag == "td" else escape(text)
        return f"<{tag} class='n'>{inner}</{tag}>" if index in right else f"<{tag}>{inner}</{tag}>"

    head = "".join(cell("th", index, text) for index, text in enumerate(columns))
    body = "".join(
        "<tr>" + "".join(cell("td", index, text) for index, text in enumerate(row)) + "</tr>" for row in rows
    )
    return f"<div class='wide'><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"


def _elapsed(report: CostReport, at: datetime) -> str:
    return duration((at - report.start).total_seconds())


def _clock(at: datetime) -> str:
    return at.strftime("%Y-%m-%d %H:%M:%S")
