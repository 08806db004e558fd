"""What must be true after everything ended: no GPU is held, none was held twice, and no process is left."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import time
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any


def assert_nothing_leaked(database: Path, agents: Path, limit_s: float = 30.0) -> None:
    """No GPU is held and no process of a lease lives, `limit_s` seconds from now; and no GPU was ever held twice.

    Args:
        database: the broker's SQLite file.
        agents: the folder that the agents' state folders are in.
    """
    until = time.monotonic() + limit_s
    while found := leaks(database, agents):
        if time.monotonic() > until:
            raise AssertionError(f"after {limit_s:.0f} s there are still: {found}")
        time.sleep(0.2)
    assert_never_granted_twice(database)


def leaks(database: Path, agents: Path) -> Mapping[str, Any]:
    """GPUs that are held, allocations that are not freed, command lines that live; only those that there are."""
    found = {
        "held": _rows(database, "SELECT * FROM gpu_hold"),
        "allocations": _rows(database, "SELECT id, state FROM allocation WHERE state <> 'freed'"),
        "processes": _living(agents),
    }
    return {what: them for what, them in found.items() if them}


def assert_never_granted_twice(database: Path) -> None:
    """No two ledger segments hold one GPU at one time."""
    held: dict[tuple[str, int], list[tuple[str, str]]] = {}
    for (body,) in _rows(database, "SELECT body FROM segment"):
        segment = json.loads(body)
        for gpu in segment["gpus"]:
            held.setdefault((segment["node"], gpu), []).append((segment["start"], segment["end"] or "9999"))
    for gpu, intervals in held.items():
        for one, two in pairwise(sorted(intervals)):
            if one[1] > two[0]:
                raise AssertionError(f"GPU {gpu} was held twice: {one} and {two}")


def _rows(database: Path, query: str) -> list[tuple[Any, ...]]:
    # A connection's own context manager ends the transaction only; it closes nothing.
    with contextlib.closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True, timeout=10)) as connection:
        return connection.execute(query).fetchall()


def _living(agents: Path) -> list[str]:
    import psutil

    from moorage.agent.names import HOME_MARK

    found = []
    for process in psutil.process_iter(["status"]):
        with contextlib.suppress(psutil.Error, OSError):
            home = process.environ().get(HOME_MARK, "")
            if process.info["status"] != psutil.STATUS_ZOMBIE and home.startswith(f"{agents.resolve()}/"):
                found.append(" ".join(process.cmdline())[:120])
    return found
