"""`make demo` as a stranger runs it: its summary, and what the witnesses say when asked again."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from decimal import Decimal
from pathlib import Path
from typing import Any

import psutil
import pytest

from moorage.cli.demo.guard import MARK
from moorage.cli.demo.summary import ledger_sum

ROOT = Path(__file__).parents[2]
SHOTS = ROOT / "build" / "screenshots"
CHROMIUM = shutil.which("chromium")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


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


def argv(folder: Path, *words: str) -> list[str]:
    return [sys.executable, "-m", "moorage.cli", "demo", *words, f"--dir={folder}", f"--source={ROOT}"]


def clean_env() -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}


def end(demo: subprocess.Popen[bytes]) -> None:
    """Ask it to end, and be sure."""
    if demo.poll() is None:
        demo.send_signal(signal.SIGINT)
        try:
            demo.wait(timeout=60)
        except subprocess.TimeoutExpired:
            demo.kill()


@pytest.mark.system
@pytest.mark.path
@pytest.mark.timeout(1300)
def test_the_main_job(tmp_path: Path) -> None:
    """Also looks at the fleet page in Airflow, signed in, while the job trains."""
    log = tmp_path / "demo.log"
    with log.open("wb") as out:
        demo = subprocess.Popen(argv(tmp_path), env=clean_env(), stdout=out, stderr=subprocess.STDOUT, cwd=tmp_path)
    try:
        look_at_the_fleet_page(demo, log)
        assert demo.wait(timeout=1200) == 0, log.read_text()[-6000:]
    finally:
        end(demo)
    summary = json.loads((tmp_path / "summary.json").read_text())
    check_training(summary)
    check_money(summary)
    assert summary["state"] == "success"
    assert summary["agree"] == {"broker": True, "mlflow": True, "airflow": True}
    assert summary["leaked_allocations"] == 0
    assert summary["peak_memory_bytes"] < 7e9
    assert marked() == []


def look_at_the_fleet_page(demo: subprocess.Popen[bytes], log: Path) -> None:
    """Sign in to Airflow as a person does; who holds which GPU must be there. Without Chromium there is nobody."""
    found = said(demo, log, r"GPU fleet: (\S+) \(user (\S+), password (\S+)\)")
    said(demo, log, r"train +running +training: 4 workers")
    if CHROMIUM is None:
        return
    from playwright.sync_api import sync_playwright

    url, user, password = found.groups()
    with sync_playwright() as tool, tempfile.TemporaryDirectory() as profile:
        home = {**os.environ, "HOME": profile, "XDG_CONFIG_HOME": profile, "XDG_CACHE_HOME": profile}
        size = {"width": 1440, "height": 700}
        browser = tool.chromium.launch_persistent_context(
            profile, executable_path=CHROMIUM, args=FLAGS, headless=True, env=home, viewport=size
        )
        page = browser.pages[0]
        page.set_default_timeout(60_000)
        page.goto(url)
        page.fill("input[name=username]", user)
        page.fill("input[name=password]", password)
        page.keyboard.press("Enter")
        page.wait_for_url(lambda there: "/auth/" not in there)
        page.goto(url)
        frame = page.frame_locator("iframe")
        for node in ("gpu-a1", "gpu-a2", "gpu-b1", "gpu-b2"):
            frame.get_by_text(node).first.wait_for()
        frame.get_by_text("train_digits").first.wait_for()
        SHOTS.mkdir(parents=True, exist_ok=True)
        page.screenshot(path=SHOTS / "airflow-fleet.png")
        browser.close()


def said(demo: subprocess.Popen[bytes], log: Path, pattern: str, limit_s: float = 400) -> re.Match[str]:
    """What the demo printed, once it did."""
    until = time.monotonic() + limit_s
    while not (found := re.search(pattern, log.read_text())):
        assert demo.poll() is None, log.read_text()[-6000:]
        assert time.monotonic() < until, log.read_text()[-6000:]
        time.sleep(0.5)
    return found


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
    run = subprocess.run(
        argv(tmp_path, "ray"), env=clean_env(), capture_output=True, text=True, timeout=450, check=False, cwd=tmp_path
    )
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-4000:]
    assert marked() == []


@pytest.mark.system
@pytest.mark.timeout(300)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["ctrl-c", "kill-9"])
def test_nothing_survives_a_demo_that_is_ended(tmp_path: Path, number: signal.Signals) -> None:
    demo = subprocess.Popen(argv(tmp_path), env=clean_env(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
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
        end(demo)
