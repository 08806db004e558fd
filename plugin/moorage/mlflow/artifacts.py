"""The two files of a finished lease: its events as an MLflow table, and its report."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime

from moorage.api.values import Event, EventKind, Segment
from moorage.core.lease import Lease
from moorage.mlflow.opening import run_name
from moorage.mlflow.operations import Attach, Operation
from moorage.mlflow.report import render
from moorage.mlflow.timeline import Row, cost_report

EVENTS = "moorage/events.json"
REPORT = "moorage/report.html"
_COLUMNS = ("time", "event", "epoch", "node", "sentence", "facts")


def attachments(lease: Lease, ledger: Sequence[Segment], events: Sequence[Event], until: datetime) -> list[Operation]:
    """Both files, as operations on the lease's run."""
    report = cost_report(
        ledger, concerning(ledger, events), lease=lease.id, until=until, title=run_name(lease), team=lease.team
    )
    return [
        Attach(lease=lease.id, epoch=0, path=EVENTS, text=table(report.rows), table=True),
        Attach(lease=lease.id, epoch=0, path=REPORT, text=render(report)),
    ]


def concerning(ledger: Sequence[Segment], events: Sequence[Event]) -> list[Event]:
    """Without the notices of nodes on which the lease held nothing then."""
    return [event for event in events if event.kind is not EventKind.NOTICE or _there(ledger, event)]


def _there(ledger: Sequence[Segment], event: Event) -> bool:
    own = (segment for segment in ledger if segment.node == event.node and segment.start <= event.at)
    return any(segment.end is None or segment.end >= event.at for segment in own)


def table(rows: Sequence[Row]) -> str:
    """What `mlflow.log_table` writes (pandas' split format), without pandas."""
    data = [
        [row.at.isoformat(timespec="milliseconds"), row.event, row.epoch, row.node, row.sentence, row.facts]
        for row in rows
    ]
    return json.dumps({"columns": _COLUMNS, "data": data})
