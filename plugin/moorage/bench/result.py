"""Rows, and the one JSON object that every benchmark writes."""

from __future__ import annotations

import json
import math
import os
import platform
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from moorage import __version__


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One figure: one work, one system, one metric.

    `low` and `high` bound the mean at 95 % where `n` > 1. A peer re-implemented by us says so; a bound is a system of
    its own, for example ``bare_commit``.
    """

    work: str
    system: str
    metric: str
    value: float
    unit: str
    n: int = 1
    low: float | None = None
    high: float | None = None
    seeds: str | None = None
    reimplemented: bool | None = None


def document(bench: str, rows: Sequence[Row], began: float) -> dict[str, Any]:
    """The JSON object of one run; `began` is `time.monotonic()` at its start."""
    return {
        "bench": bench,
        "version": __version__,
        "command": " ".join(["moorage", *sys.argv[1:]]),
        "date": datetime.now(UTC).date().isoformat(),
        "seconds": round(time.monotonic() - began, 1),
        "machine": {"cpus": os.cpu_count(), "system": platform.system(), "python": platform.python_version()},
        "rows": [{key: value for key, value in asdict(row).items() if value is not None} for row in rows],
    }


def publish(console: Console, values: dict[str, Any], out: Path | None) -> None:
    """Print the table, and write the JSON if asked."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("WORK", "SYSTEM", "METRIC", "VALUE", "UNIT", "N"):
        table.add_column(column, justify="right" if column in ("VALUE", "N") else "left")
    for row in values["rows"]:
        table.add_row(
            *(
                f"{row[key]:.4g}" if key == "value" else str(row[key])
                for key in ("work", "system", "metric", "value", "unit", "n")
            )
        )
    console.print(table)
    if out is not None:
        out.write_text(json.dumps(values, indent=2) + "\n")


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` (0..1) of the values do not exceed."""
    ranked = sorted(values)
    return ranked[max(0, math.ceil(share * len(ranked)) - 1)]
