"""How a demo ends: one summary that the broker, its database, MLflow and Airflow agree on."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console
from rich.table import Table

from moorage.api.values import Cost, LeaseView
from moorage.cli.demo.watch import Story
from moorage.core.lease import LeaseState

CENT = Decimal("0.01")
#: Names of the parts of a cost, in the order in which they are told.
PARTS = ("busy", "idle", "lost", "overhead", "unknown")


@dataclass(frozen=True)
class Agreement:
    """Whether each witness tells the same; True, or the difference in words."""

    broker: bool | str
    mlflow: bool | str
    airflow: bool | str

    @property
    def whole(self) -> bool:
        return self.broker is True and self.mlflow is True and self.airflow is True


def ledger_sum(database: Path, lease: str) -> Decimal:
    """Dollars of a lease, summed from the database's rows with none of the broker's code, exact to the micro-dollar."""
    with sqlite3.connect(f"file:{database}?mode=ro", uri=True, timeout=10) as connection:
        rows = connection.execute("SELECT body FROM segment WHERE lease = ?", (lease,)).fetchall()
    total = sum((_dollars(json.loads(body)) for (body,) in rows), Fraction(0))
    return Decimal(total.numerator) / Decimal(total.denominator)


def _dollars(segment: Mapping[str, Any]) -> Fraction:
    if segment["end"] is None:
        raise ValueError(f"segment {segment['id']} of an ended lease is open")
    lasted = datetime.fromisoformat(segment["end"]) - datetime.fromisoformat(segment["start"])
    microseconds = lasted // timedelta(microseconds=1)
    return Fraction(len(segment["gpus"]) * microseconds, 3_600_000_000) * Fraction(segment["price"])


def open_allocations(database: Path) -> int:
    """Allocations that hold GPUs, straight from the database."""
    with sqlite3.connect(f"file:{database}?mode=ro", uri=True, timeout=10) as connection:
        return int(connection.execute("SELECT count(*) FROM allocation WHERE state != 'freed'").fetchone()[0])


def broker_agrees(view: LeaseView, database: Path) -> bool | str:
    """The lease is over, its parts add up, and the ledger's rows say the same to the cent."""
    cost = view.cost
    if view.lease.state is not LeaseState.ENDED:
        return f"lease {view.lease.id} is {view.lease.state.value}, not ended"
    parts = sum((getattr(cost, f"{part}_usd") for part in PARTS), Decimal(0))
    if parts != cost.total_usd:
        return f"the parts add up to {parts}, the total is {cost.total_usd}"
    return same_to_the_cent("the ledger's rows", ledger_sum(database, view.lease.id), cost.total_usd)


def same_to_the_cent(what: str, found: Decimal, expected: Decimal) -> bool | str:
    """True if they differ by less than half a cent, else how they differ."""
    return True if abs(found - expected) < CENT / 2 else f"{what} say {found:.6f} USD, the broker {expected:.6f}"


def mlflow_agrees(url: str, run: str | None, cost: Cost) -> bool | str:
    """Ask MLflow's REST API for the run: finished, and with the broker's dollars."""
    if run is None:
        return "the lease has no MLflow run"
    answer = httpx.get(f"{url}/api/2.0/mlflow/runs/get", params={"run_id": run}, timeout=30)
    if answer.status_code != httpx.codes.OK:
        return f"MLflow answers {answer.status_code} for run {run}"
    body = answer.json()["run"]
    if body["info"]["status"] != "FINISHED":
        return f"run {run} is {body['info']['status']}, not FINISHED"
    metrics = {metric["key"]: metric["value"] for metric in body["data"].get("metrics", [])}
    if "cost/total_usd" not in metrics:
        return f"run {run} has no cost/total_usd"
    return same_to_the_cent("MLflow's metrics", Decimal(str(metrics["cost/total_usd"])), cost.total_usd)


def airflow_agrees(run_state: str, returned: Mapping[str, Any] | None, view: LeaseView) -> bool | str:
    """The DAG run succeeded, and what the task returned is this lease with these dollars."""
    if run_state != "success":
        return f"the DAG run is {run_state}"
    if not returned or returned.get("lease") != view.lease.id:
        return f"the task returned {returned!r}, not lease {view.lease.id}"
    told = Decimal(str(returned.get("cost", {}).get("total_usd", "NaN")))
    return same_to_the_cent("the task's XCom", told, view.cost.total_usd)


def cost_dict(cost: Cost) -> dict[str, str]:
    """Decimal strings by the names of `build/demo/summary.json`."""
    return {f"{part}_usd": str(getattr(cost, f"{part}_usd")) for part in ("total", *PARTS, "saved")}


def story_dict(told: Story) -> dict[str, Any]:
    """Resizes and interruptions as JSON-able values."""
    return {
        "resizes": [
            {"at": resize.at.isoformat(), "from": resize.before, "to": resize.after, "reason": resize.reason}
            for resize in told.resizes
        ],
        "interruptions": [
            {
                "at": gone.at.isoformat(),
                "node": gone.node,
                "notice": gone.notice,
                "steps_lost": gone.steps_lost,
                "seconds_lost": gone.seconds_lost,
            }
            for gone in told.interruptions
        ],
    }


def write(path: Path, values: Mapping[str, Any]) -> None:
    """Replace the file as a whole."""
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    part.write_text(json.dumps(values, indent=2) + "\n")
    part.replace(path)


def print_story(console: Console, began: datetime, told: Story) -> None:
    """Resizes and the interruption, each with its reason, on one clock."""
    table = Table(
        title="What happened to training", title_justify="left", box=None, pad_edge=False, header_style="bold"
    )
    for column in ("AT", "WHAT", "WHY"):
        table.add_column(column, overflow="fold")
    rows = [(resize.at, f"{resize.before} -> {resize.after} workers", resize.reason) for resize in told.resizes]
    for gone in told.interruptions:
        lost = f"{gone.steps_lost} steps and {gone.seconds_lost} s of training lost"
        rows.append(
            (gone.at, "interruption", f"{gone.node} went {'after a' if gone.notice else 'without'} notice: {lost}")
        )
    for at, what, why in sorted(rows):
        table.add_row(f"{(at - began).total_seconds():.0f} s", what, why.replace("[", "\\["))
    console.print(table)


def print_cost(console: Console, cost: Cost) -> None:
    """The split, which adds up."""
    table = Table(title="What it cost", title_justify="left", box=None, pad_edge=False, header_style="bold")
    for name in ("TOTAL", *(part.upper() for part in PARTS), "SAVED AGAINST ON-DEMAND"):
        table.add_column(name, justify="right")
    table.add_row(*(f"${getattr(cost, f'{part}_usd'):.4f}" for part in ("total", *PARTS, "saved")))
    console.print(table)
