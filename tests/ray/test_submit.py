"""A script with only MOORAGE_URL set leases GPUs for itself: real broker, real agents, real Ray."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from moorage.api.values import EventKind
from moorage.core.lease import LeaseState, Outcome
from moorage.testing.fleet import FakeNode

JOBS = Path(__file__).parents[2] / "ray_jobs"


@pytest.mark.system
@pytest.mark.path
@pytest.mark.timeout(240)
def test_a_script_submits_itself_and_returns_its_result(
    broker: Any, fake_fleet: Callable[..., Any], tmp_path: Path
) -> None:
    fake_fleet([FakeNode(name="n1", gpus=2, fake_sample_seconds=0.002)], processes=True)
    env = {k: v for k, v in os.environ.items() if not k.startswith(("MOORAGE_", "RAY_"))}
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    env |= {"MOORAGE_URL": broker.url, "MOORAGE_TOKEN": broker.token}
    argv = [sys.executable, str(JOBS / "train_digits.py"), "--epochs", "20", "--workers", "1", "2"]
    done = subprocess.run(
        [*argv, "--storage", str(tmp_path / "store")], env=env, capture_output=True, text=True, timeout=200, check=False
    )
    (view,) = broker.client.find({"moorage.script": "train_digits"})
    log = broker.client.logs(view.lease.id).text
    assert done.returncode == 0, done.stderr[-2000:] + log[-3000:]
    assert (view.lease.state, view.lease.outcome) == (LeaseState.ENDED, Outcome.SUCCEEDED)
    assert "'accuracy': 0.9" in done.stdout
    assert "granted" in done.stderr or "running" in done.stderr
    assert (tmp_path / "store" / view.lease.team / view.lease.id / "model.npz").is_file()
    assert view.cost.busy_usd + view.cost.overhead_usd + view.cost.unknown_usd + view.cost.idle_usd == (
        view.cost.total_usd - view.cost.lost_usd
    )
    events = broker.client.events(lease=view.lease.id)
    assert all(event.facts["steps_lost"] == 0 for event in events if event.kind is EventKind.RESUMED)
    print([event.sentence for event in events if event.kind in (EventKind.RESIZED, EventKind.RESUMED)])
