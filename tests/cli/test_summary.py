"""The demo's witnesses: they agree, or say in words how they differ."""

from __future__ import annotations

import json
import sqlite3
from decimal import Decimal
from pathlib import Path

import pytest

from moorage.cli.demo import summary


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "moorage.db"
    rows = [
        {"id": 1, "gpus": [0, 1], "price": "1.12", "start": "2026-11-30T20:00:00Z", "end": "2026-11-30T20:30:00Z"},
        {"id": 2, "gpus": [2], "price": "3.20", "start": "2026-11-30T20:00:00Z", "end": "2026-11-30T20:00:00.000001Z"},
    ]
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE segment (lease TEXT, body TEXT)")
        connection.executemany("INSERT INTO segment VALUES ('L', ?)", [(json.dumps(row),) for row in rows])
    return path


def test_ledger_rows_are_summed_exactly(database: Path) -> None:
    expected = Decimal("1.12") + Decimal("3.20") / Decimal(3_600_000_000)
    assert summary.ledger_sum(database, "L") == expected
    assert summary.ledger_sum(database, "another") == 0


def test_an_open_segment_of_an_ended_lease_is_an_error(database: Path) -> None:
    row = {"id": 3, "gpus": [0], "price": "1", "start": "2026-11-30T20:00:00Z", "end": None}
    with sqlite3.connect(database) as connection:
        connection.execute("INSERT INTO segment VALUES ('L', ?)", (json.dumps(row),))
    with pytest.raises(ValueError, match="segment 3 of an ended lease is open"):
        summary.ledger_sum(database, "L")


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        ("1.0049", True),
        ("0.9951", True),
        ("1.005", "rows say 1.005000 USD, the broker 1.000000"),
        ("2", "rows say 2.000000 USD, the broker 1.000000"),
    ],
)
def test_to_the_cent(found: str, verdict: bool | str) -> None:
    assert summary.same_to_the_cent("rows", Decimal(found), Decimal(1)) == verdict


def test_the_summary_is_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    path.write_text("old")
    summary.write(path, {"state": "success"})
    assert json.loads(path.read_text()) == {"state": "success"}
    assert [p.name for p in tmp_path.iterdir()] == ["summary.json"]
