"""The broker's benchmark, small: its machinery works, and an outage costs nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.system
@pytest.mark.path
@pytest.mark.timeout(240)
def test_quick(tmp_path: Path) -> None:
    out = tmp_path / "broker.json"
    argv = [sys.executable, "-m", "moorage.cli", "bench", "broker", "--quick", f"--out={out}"]
    run = subprocess.run(argv, capture_output=True, text=True, timeout=200, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    found = {row["metric"]: row["value"] for row in json.loads(out.read_text())["rows"] if row["system"] == "moorage"}
    assert (found["leases_changed_by_outage"], found["retries"], found["renews_refused_after"]) == (0, 0, 0)
    assert found["queued_after"] == 50
    assert 0 < found["renew_p50"] <= found["renew_p99"] <= found["renew_max"]
