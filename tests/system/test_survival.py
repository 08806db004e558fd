"""A lease outlives everything: each part is killed for real in the middle of training."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from moorage.core.lease import AllocationRole, Outcome

if TYPE_CHECKING:
    from conftest import Fleet

pytestmark = [pytest.mark.system, pytest.mark.timeout(900)]

#: Short enough for a test, long enough to be killed in the middle.
SHORT = ("--epochs", "12")


def kill_agent_of_workers(fleet: Fleet, lease: str) -> None:
    node = fleet.node_of(fleet.get(lease), AllocationRole.WORKER)
    part = fleet.part(node)
    fleet.kill(part)
    fleet.restart(part)


def kill_agent_of_head(fleet: Fleet, lease: str) -> None:
    node = fleet.node_of(fleet.get(lease), AllocationRole.HEAD)
    part = fleet.part(node)
    fleet.kill(part)
    fleet.restart(part)


def kill_broker(fleet: Fleet, lease: str) -> None:
    fleet.kill(fleet.broker_part)
    fleet.broker_part = fleet.restart(fleet.broker_part)


def kill_driver(fleet: Fleet, lease: str) -> None:
    node = fleet.node_of(fleet.get(lease), AllocationRole.HEAD)
    drivers = fleet.processes(node, "train_digits.py")
    assert drivers
    for process in drivers:
        process.send_signal(signal.SIGKILL)


def kill_ray_head(fleet: Fleet, lease: str) -> None:
    node = fleet.node_of(fleet.get(lease), AllocationRole.HEAD)
    servers = fleet.processes(node, "gcs_server")
    assert servers
    for process in servers:
        process.send_signal(signal.SIGKILL)


@pytest.mark.parametrize(
    ("kill", "epoch"),
    [
        pytest.param(kill_agent_of_workers, 1, id="agent-of-workers"),
        pytest.param(kill_agent_of_head, 1, id="agent-of-head"),
        pytest.param(kill_broker, 1, id="broker", marks=pytest.mark.path),
        pytest.param(kill_driver, 2, id="driver"),
        pytest.param(kill_ray_head, 2, id="ray-head"),
    ],
)
def test_a_lease_outlives(fleet: Fleet, kill: Callable[[Fleet, str], None], epoch: int) -> None:
    lease = fleet.train(*SHORT, workers=(2, 2)).lease.id
    fleet.wait_for_step(lease, 30)
    kill(fleet, lease)
    view = fleet.wait_until_ended(lease)
    assert view.lease.outcome is Outcome.SUCCEEDED, view.lease.reason
    assert view.lease.epoch == epoch, view.lease.reason
    assert json.loads(view.lease.result or "{}")["accuracy"] > 0.9
    fleet.assert_nothing_leaked()


def test_five_minutes_without_the_broker(fleet: Fleet) -> None:
    """Training goes on; afterwards nothing was retried, and the end is learned."""
    lease = fleet.train("--epochs", "60", workers=(2, 2)).lease.id
    before = fleet.wait_for_step(lease, 30)
    fleet.kill(fleet.broker_part)
    away_since = time.monotonic()
    fleet.eventually(lambda: time.monotonic() - away_since > 300, 310, "five minutes")
    fleet.broker_part = fleet.restart(fleet.broker_part)
    view = fleet.wait_until_ended(lease)
    assert (view.lease.outcome, view.lease.epoch) == (Outcome.SUCCEEDED, before.lease.epoch), view.lease.reason
    fleet.assert_nothing_leaked()
