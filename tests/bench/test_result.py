"""Rows, percentiles and the page: what a reader of a benchmark relies on."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from moorage.bench.page import page
from moorage.bench.result import Row, document, percentile


@pytest.mark.parametrize(("share", "value"), [(0.0, 1), (0.5, 2), (0.51, 3), (0.75, 3), (0.99, 4), (1.0, 4)])
def test_percentiles_are_values_that_were_measured(share: float, value: float) -> None:
    assert percentile([4, 1, 3, 2], share) == value


def test_absent_facts_are_absent_from_the_json() -> None:
    row = Row(work="w", system="bare_commit", metric="p50", value=0.25, unit="ms", n=500)
    values = document("broker", [row], time.monotonic())
    assert values["rows"] == [
        {"work": "w", "system": "bare_commit", "metric": "p50", "value": 0.25, "unit": "ms", "n": 500}
    ]
    assert values["machine"]["cpus"] >= 1


def test_the_page_shows_every_row_with_its_command_and_date(tmp_path: Path) -> None:
    rows = [
        Row(work="w", system="moorage", metric="renew_p99", value=12.345678, unit="ms", n=3, low=12.0, high=12.7),
        Row(work="w", system="fgd", metric="allocation", value=95.4, unit="%", reimplemented=True),
    ]
    file = tmp_path / "run.json"
    file.write_text(
        json.dumps(
            {**document("broker", rows, time.monotonic()), "command": "moorage bench broker", "date": "2026-12-01"}
        )
    )
    text = page([file])
    assert "`moorage bench broker` on 2026-12-01 took 0 s" in text
    assert "| w | moorage | renew_p99 | 12.35 ms (12 to 12.7) | 3 |" in text
    assert "| w | fgd (re-implemented) | allocation | 95.4 % | 1 |" in text
