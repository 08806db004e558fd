"""How the command line prints values: tables for people, JSON for programs."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

from rich.console import Console
from rich.table import Table

from moorage.api import codec
from moorage.api.values import Fleet, LeaseView, NodeView
from moorage.core.lease import Lease, LeaseState

#: Columns where nobody looks: tables in a pipe or a file are not folded.
WIDE = 400


def console(*, stderr: bool = False) -> Console:
    """As wide as the terminal, or as COLUMNS says; else wide."""
    stream = sys.stderr if stderr else sys.stdout
    folds = stream.isatty() or "COLUMNS" in os.environ
    return Console(stderr=stderr, width=None if folds else WIDE)


out, err = console(), console(stderr=True)


def print_json(value: object, kind: Any = None) -> None:
    """The value as JSON on standard output."""
    out.print_json(codec.dumps(value, kind).decode())


#: Columns that are copied or compared, so that they never fold.
UNBROKEN = frozenset({"LEASE", "TEAM", "STATE", ">WORKERS", ">STEP", ">LOSS", ">SPENT", "SINCE", "ID", "NODE"})


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, title: str | None = None) -> Table:
    """A plain table; columns that start with ``>`` are right-aligned."""
    made = Table(*[], title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for column in columns:
        made.add_column(
            column.lstrip(">"),
            justify="right" if column.startswith(">") else "left",
            overflow="fold",
            no_wrap=column in UNBROKEN,
        )
    for row in rows:
        made.add_row(*row)
    return made


def ago(at: datetime | None) -> str:
    """How long ago, in one unit: ``12 s``, ``3 min``, ``5 h``, ``2 d``."""
    if at is None:
        return "-"
    seconds = (datetime.now(UTC) - at).total_seconds()
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"


def who(view: LeaseView) -> str:
    """The owner in a few words."""
    owner = view.lease.owner
    for keys, between in ((("airflow.dag_id", "airflow.task_id"), "."), (("cli.user", "cli.command"), ": ")):
        if named := [owner[key] for key in keys if key in owner]:
            return between.join(named)
    return ", ".join(f"{key}={value}" for key, value in owner.items()) or "-"


def size(view: LeaseView) -> str:
    """Workers x GPUs, with the bounds of an elastic gang."""
    low, high = view.lease.request.workers
    bounds = str(low) if low == high else f"{low}..{high}"
    return f"{view.lease.workers or '-'}/{bounds} x {view.lease.request.gpus_per_worker}"


def short(lease: str) -> str:
    """The part of an id that people type: the end of a UUIDv7 is random, its start is time."""
    return lease[:13]


def lease_table(views: Iterable[LeaseView], *, title: str | None = None) -> Table:
    """Leases, one a row. Steps and losses only where a job told some."""
    views = list(views)
    trains = any(view.lease.progress is not None for view in views)
    columns = ("LEASE", "OWNER", "TEAM", "STATE", ">WORKERS", *((">STEP", ">LOSS") if trains else ()))
    return table(
        (*columns, ">SPENT", "SINCE", "REASON"),
        ([cell for cell in _lease_row(view, trains) if cell is not None] for view in views),
        title=title,
    )


def _lease_row(view: LeaseView, trains: bool) -> tuple[str | None, ...]:
    lease, progress = view.lease, view.lease.progress
    state = _state(lease)
    step = "-" if progress is None or progress.step is None else str(progress.step)
    loss = "-" if progress is None or progress.loss is None else f"{progress.loss:.4f}"
    spent = f"${view.cost.total_usd:.2f}"
    return (
        short(lease.id),
        who(view),
        lease.team,
        state,
        size(view),
        step if trains else None,
        loss if trains else None,
        spent,
        ago(lease.submitted_at),
        lease.reason,
    )


def _state(lease: Lease) -> str:
    """An ended lease's outcome says it all."""
    if lease.outcome is None:
        return lease.state.value
    return lease.outcome.value if lease.state is LeaseState.ENDED else f"{lease.state.value}: {lease.outcome.value}"


def node_table(nodes: Iterable[NodeView]) -> Table:
    """Nodes, one a row; a GPU is ``.`` when free, a letter per lease when held."""
    nodes = list(nodes)
    leases = sorted({use.lease for view in nodes for use in view.gpus if use.lease})
    letters = {lease: chr(ord("A") + index % 26) for index, lease in enumerate(leases)}
    return table(
        ("NODE", "WHERE", "POOL", ">$/GPU-H", "CONDITION", "GPUS"),
        (
            (
                view.node.id,
                "/".join(view.node.domains.values()) or "-",
                f"{view.node.pool} ({view.node.capacity.value})",
                f"{view.node.price:.2f}",
                view.condition,
                "".join(letters[use.lease] if use.lease else "." for use in view.gpus) or "none",
            )
            for view in nodes
        ),
    )


def counted(number: int, what: str) -> str:
    """For example ``1 lease``."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def print_fleet(fleet: Fleet) -> None:
    """Nodes, leases and queue."""
    if not fleet.nodes:
        out.print("No node has joined yet: run `moorage agent join URL --token-file FILE` on a GPU host.")
    else:
        out.print(node_table(fleet.nodes))
    held = sum(1 for view in fleet.nodes for use in view.gpus if use.lease)
    total = sum(len(view.gpus) for view in fleet.nodes)
    frozen = " · disruption is frozen" if fleet.frozen else ""
    out.print(
        f"\n{held} of {total} GPUs held · {counted(len(fleet.leases), 'lease')} · {len(fleet.queue)} queued{frozen}\n"
    )
    if fleet.leases:
        out.print(lease_table(fleet.leases, title="Leases"))
    if fleet.queue:
        out.print(lease_table(fleet.queue, title="Queue"))
