"""docs/benchmarks.md, written from the JSON of runs: no figure in it is typed by hand."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

HEAD = """\
# Benchmarks

Written by `moorage bench page`, from what the named commands measured. Everything in one table was measured in one run
on one machine; a system called `bare_…` is a bound, not a peer. Compare ratios, not milliseconds of another machine.
"""


def page(files: Iterable[Path]) -> str:
    """The whole page, one section a file."""
    return "\n".join([HEAD, *(section(json.loads(file.read_text())) for file in files)])


def section(run: Mapping[str, Any]) -> str:
    """One run: its command, date and machine, and a table of its rows."""
    machine = ", ".join(f"{key} {value}" for key, value in run["machine"].items())
    lines = [
        f"## {run['bench']}",
        "",
        f"`{run['command']}` on {run['date']} took {run['seconds']:.0f} s ({machine}; Moorage {run['version']}).",
        "",
        "| work | system | metric | value | n |",
        "|---|---|---|---:|---:|",
        *(_line(row) for row in run["rows"]),
    ]
    return "\n".join(lines) + "\n"


def _line(row: Mapping[str, Any]) -> str:
    bounds = f" ({row['low']:.4g} to {row['high']:.4g})" if "low" in row and "high" in row else ""
    system = f"{row['system']} (re-implemented)" if row.get("reimplemented") else row["system"]
    return f"| {row['work']} | {system} | {row['metric']} | {row['value']:.4g} {row['unit']}{bounds} | {row['n']} |"
