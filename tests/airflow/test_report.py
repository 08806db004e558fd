"""The task's log at the end: what a person reads first."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal

from moorage.airflow import report, triggers
from moorage.api.values import Event, EventKind, LogChunk
from moorage.core.cost import Cost

COST = Cost(total_usd=Decimal("1.5"), busy_usd=Decimal("1.25"), idle_usd=Decimal("0.25"), gpu_seconds=Decimal(3600))
AT = datetime(2026, 11, 30, 12, 0, 5, tzinfo=UTC)


class Told:
    """A broker that only has a log and a history, in small pieces."""

    def __init__(self, text: str, events: Sequence[Event] = (), piece: int = 7) -> None:
        self.text, self.rows, self.piece = text, events, piece

    def logs(self, lease: str, offset: int = 0, timeout: float = 0) -> LogChunk:
        end = min(offset + self.piece, len(self.text))
        return LogChunk(text=self.text[offset:end], next=end, end=end == len(self.text))

    def events(self, since: int = 0, lease: str | None = None, limit: int = 500, timeout: float = 0) -> Sequence[Event]:
        return [event for event in self.rows if event.seq > since][:limit]


def event(seq: int, kind: EventKind, sentence: str) -> Event:
    return Event(seq=seq, at=AT, kind=kind, sentence=sentence)


def test_tail_keeps_the_last_lines() -> None:
    text = "".join(f"line {n}\n" for n in range(1000)) + "half"
    assert list(report.tail(Told(text, piece=500), "x")) == [*(f"line {n}" for n in range(801, 1000)), "half"]  # type: ignore[arg-type]


def test_tail_of_an_empty_log() -> None:
    assert list(report.tail(Told(""), "x")) == []  # type: ignore[arg-type]


def test_history_reads_page_by_page() -> None:
    rows = [event(n, EventKind.RESIZED if n % 600 == 0 else EventKind.PROGRESS, f"{n}") for n in range(1, 1300)]
    assert [row.sentence for row in report.history(Told("", rows), "x")] == ["600", "1200"]  # type: ignore[arg-type]


def test_table() -> None:
    ended = {
        "lease": "abc",
        "state": "ended",
        "outcome": "succeeded",
        "reason": "Done.",
        "cost": triggers.cost(COST),
        "attempts": 2,
        "interruptions": 1,
        "notes": {"mlflow.run_id": "7f3a", "mlflow.run_url": "http://mlflow/7f3a"},
    }
    rows = [
        event(1, EventKind.RESIZED, "Grows from 1 to 4 workers."),
        event(2, EventKind.RESUMED, "Goes on at step 90."),
    ]
    assert "\n".join(report.table(ended, rows)) == (
        """\
Lease abc: succeeded. Done.
  attempts       2
  interruptions  1
  resizes        1
    12:00:05  resized  Grows from 1 to 4 workers.
    12:00:05  resumed  Goes on at step 90.
  cost           $1.5000 for 1.0000 GPU-hours
                 busy $1.2500, idle $0.2500, lost $0.0000, overhead $0.0000, unknown $0.0000
                 saved $0.0000 against on-demand prices
  MLflow         http://mlflow/7f3a"""
    )
