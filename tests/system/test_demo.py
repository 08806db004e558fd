"""`make demo` as a stranger runs it: its summary, and what the witnesses say when asked again."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from decimal import Decimal
from pathlib import Path
from typing import Any

import psutil
import pytest

from moorage.cli.demo.guard import MARK
from moorage.cli.demo.summary import ledger_sum

ROOT = Path(__file__).parents[2]
DEMO = [sys.executable, "-m", "moorage.cli", "demo"]


def marked() -> list[int]:
    """Living processes of any demo."""
    found = []
    for process in psutil.process_iter(["status"]):
        try:
            if process.info["status"] != psutil.STATUS_ZOMBIE and MARK in process.environ():
                found.append(process.pid)
        except (psutil.Error, OSError):
            continue
    return found


def run_demo(folder: Path, *words: str, limit_s: float) -> subprocess.CompletedProcess[str]:
    env = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    argv = [*DEMO, *words, f"--dir={folder}", f"--source={ROOT}"]
    return subprocess.run(argv, env=env, capture_output=True, text=True, timeout=limit_s, check=False, cwd=folder)


@pytest.mark.system
@pytest.mark.path
@pytest.mark.timeout(1300)
def test_the_main_job(tmp_path: Path) -> None:
    run = run_demo(tmp_path, limit_s=1200)
    print(run.stdout[-6000:], run.stderr[-3000:])
    assert run.returncode == 0
    summary = json.loads((tmp_path / "summary.json").read_text())
    check_training(summary)
    check_money(summary)
    assert summary["state"] == "success"
    assert summary["agree"] == {"broker": True, "mlflow": True, "airflow": True}
    assert summary["leaked_allocations"] == 0
    assert marked() == []


def check_training(summary: dict[str, Any]) -> None:
    sizes = [(resize["from"], resize["to"]) for resize in summary["resizes"]]
    assert any(after > before for before, after in sizes), sizes
    assert any(after < before for before, after in sizes), sizes
    assert all(resize["reason"] for resize in summary["resizes"])
    (interruption,) = summary["interruptions"]
    assert interruption["notice"] is True
    assert 0 <= interruption["steps_lost"] <= 1
    assert interruption["seconds_lost"] > 0
    assert abs(summary["accuracy"] - summary["accuracy_undisturbed"]) <= 0.005


def check_money(summary: dict[str, Any]) -> None:
    cost = {name: Decimal(value) for name, value in summary["cost"].items()}
    parts = sum(cost[f"{part}_usd"] for part in ("busy", "idle", "lost", "overhead", "unknown"))
    assert parts == cost["total_usd"] > 0
    assert cost["busy_usd"] > 0
    assert cost["saved_usd"] > 0
    database = Path(summary["database"])
    assert abs(ledger_sum(database, summary["ids"]["lease"]) - cost["total_usd"]) < Decimal("0.005")
    with sqlite3.connect(f"file:{database}?mode=ro", uri=True) as connection:
        assert connection.execute("SELECT count(*) FROM gpu_hold").fetchone() == (0,)


@pytest.mark.system
@pytest.mark.path
@pytest.mark.timeout(500)
def test_the_autoscaler_hook(tmp_path: Path) -> None:
    run = run_demo(tmp_path, "ray", limit_s=450)
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-4000:]
    assert marked() == []


@pytest.mark.system
@pytest.mark.timeout(300)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["ctrl-c", "kill-9"])
def test_nothing_survives_a_demo_that_is_ended(tmp_path: Path, number: signal.Signals) -> None:
    demo = subprocess.Popen(
        [*DEMO, f"--dir={tmp_path}", f"--source={ROOT}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        until = time.monotonic() + 120
        while len(marked()) < 8:
            assert time.monotonic() < until
            assert demo.poll() is None
            time.sleep(0.2)
        demo.send_signal(number)
        assert demo.wait(timeout=60) != 0
        until = time.monotonic() + 60
        while marked():
            assert time.monotonic() < until, marked()
            time.sleep(0.2)
    finally:
        if demo.poll() is None:
            demo.kill()
