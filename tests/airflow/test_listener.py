"""A person marks a task in the API server: its lease is let go, also where no trigger runs."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from moorage.airflow import listener
from moorage.airflow.labels import owner
from moorage.airflow.plugin import MooragePlugin
from moorage.api.ids import new_id
from moorage.api.values import Submission
from moorage.client import Client
from moorage.core.job import Job
from moorage.core.lease import LeaseState
from moorage.core.request import Request


@pytest.fixture
def instance() -> SimpleNamespace:
    return SimpleNamespace(dag_id="d", run_id=new_id(), task_id="t", map_index=-1)


def submit(api: Client, instance: SimpleNamespace) -> str:
    job = Job(entrypoint=("python", "-c", "pass"))
    asked = Submission(owner=owner(instance), request=Request(), job=job, client_id=new_id(), team="research")
    return api.submit(asked).lease.id


def ended_within(api: Client, lease: str, seconds: float) -> bool:
    limit = time.monotonic() + seconds
    while time.monotonic() < limit:
        if api.get(lease).lease.state is LeaseState.ENDED:
            return True
        time.sleep(0.05)
    return False


def test_a_mark_lets_the_lease_go_and_an_end_by_itself_does_not(connected: Client, instance: SimpleNamespace) -> None:
    assert MooragePlugin().listeners == [listener]
    lease = submit(connected, instance)
    listener.on_task_instance_failed(previous_state="running", task_instance=instance)
    assert not ended_within(connected, lease, 4)
    listener.on_task_instance_failed(previous_state=None, task_instance=instance)
    assert ended_within(connected, lease, 8)


def test_a_mark_while_the_triggerer_stands_still(
    connected: Client, instance: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its last poll is open at the broker, and nobody reads the answer."""
    monkeypatch.setattr(listener, "QUIET_S", 2.5)
    monkeypatch.setattr(listener, "LOOK_EVERY_S", 0.2)
    lease = submit(connected, instance)
    with frozen_watcher(connected, lease, timeout=3):
        listener.on_task_instance_failed(previous_state=None, task_instance=instance)
        assert ended_within(connected, lease, 20)


@contextmanager
def frozen_watcher(api: Client, lease: str, timeout: int) -> Iterator[None]:
    """A watcher that asked once, and does nothing more."""
    host, _, port = api.url.removeprefix("http://").partition(":")
    body = json.dumps({"watcher": "frozen", "since": 10**6, "timeout": timeout})
    head = [
        f"POST /api/v1/leases/{lease}/watch HTTP/1.1",
        f"Host: {host}",
        f"Authorization: Bearer {os.environ['MOORAGE_TOKEN']}",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
    ]
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall("\r\n".join([*head, "", body]).encode())
        limit = time.monotonic() + 5
        while api.get(lease).lease.owner_heard is None:
            assert time.monotonic() < limit
            time.sleep(0.05)
        yield


def test_without_a_token_nothing_is_asked(
    connected: Client, instance: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MOORAGE_TOKEN")
    monkeypatch.setattr(listener, "_let_go", lambda labels: pytest.fail(f"asked for {labels}"))
    listener.on_task_instance_success(previous_state=None, task_instance=instance)


def test_a_broker_that_is_away_is_said(
    instance: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("MOORAGE_URL", "http://127.0.0.1:9")
    monkeypatch.setattr(listener, "RETRY_FOR", 0.1)
    assert listener._under_way.acquire(blocking=False)
    listener._let_go(owner(instance))
    assert "could not be let go: no answer from http://127.0.0.1:9" in caplog.text
