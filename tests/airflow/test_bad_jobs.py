"""What is wrong with a training task fails it with the sentence that names it; a fleet of fake GPUs is there."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException, TaskDeferred

from moorage.airflow import GpuTrainOperator
from moorage.client import Client
from moorage.testing.fleet import FakeFleet, FakeNode
from moorage.testing.served import ServedBroker


class Store(dict[str, Any]):
    """Stands in for Airflow's task state store."""

    def set(self, key: str, value: object) -> None:
        self[key] = value


@pytest.fixture
def context(tmp_path: Path) -> dict[str, Any]:
    """What a worker gives to `execute`, for a DAG file beside ``train.py``."""
    labels = {"dag_id": "d", "run_id": f"run-{tmp_path.name}", "task_id": "t", "map_index": -1}
    return {
        "ti": SimpleNamespace(**labels, xcom_push=lambda **_: None),
        "task_state_store": Store(),
        "dag": SimpleNamespace(fileloc=str(tmp_path / "dag.py"), dagrun_timeout=None),
        "dag_run": SimpleNamespace(start_date=datetime.now(UTC)),
    }


@pytest.fixture(scope="module")
def fleet(served: ServedBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeFleet]:
    with FakeFleet(served.url, served.token, [FakeNode(name="n1", gpus=4)], tmp_path_factory.mktemp("n")) as fleet:
        yield fleet


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"gpus_per_worker": 9}, "gpus_per_worker=9: can never fit: largest node has 4"),
        ({"models": ["H999"]}, "models=('H999',): the fleet has FAKE-GPU"),
        ({"workers": 8}, "workers=(8, 8): can never fit: the whole fleet has room for 4 of 8 workers"),
        ({"topology": {"required": "galaxy"}}, "topology.required='galaxy': name one of the fleet's levels: zone, bl"),
        ({"budget_usd": "NaN"}, "budget_usd='NaN': "),
        ({"capacity": "cheap"}, "capacity='cheap': Input should be 'reserved', 'on-demand' or 'spot'"),
    ],
)
def test_what_can_never_be_fails_at_once(
    fleet: FakeFleet,
    connected: Client,
    context: dict[str, Any],
    tmp_path: Path,
    options: Mapping[str, Any],
    sentence: str,
) -> None:
    (tmp_path / "train.py").write_text("")
    with pytest.raises(AirflowFailException) as failed:
        GpuTrainOperator(task_id="t", script="train.py", **options).execute(context)  # type: ignore[arg-type]
    assert str(failed.value).startswith(sentence)
    assert connected.find({}) == []


def test_no_token(connected: Client, context: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MOORAGE_TOKEN")
    (tmp_path / "train.py").write_text("")
    with pytest.raises(AirflowFailException, match="no token: set MOORAGE_TOKEN or MOORAGE_TOKEN_FILE"):
        GpuTrainOperator(task_id="t", script="train.py").execute(context)  # type: ignore[arg-type]


@pytest.mark.system
@pytest.mark.timeout(200)
@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("raise ValueError('no such data set')", "attempt 1 exited 1; last line: ValueError: no such data set"),
        ("print('looks fine')", "attempt 1 exited 0 without finishing: no completion marker; last line: looks fine"),
    ],
    ids=["raises", "does not finish"],
)
def test_a_script_that_is_broken_fails_its_task(
    fleet: FakeFleet, connected: Client, context: dict[str, Any], tmp_path: Path, script: str, reason: str
) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text(script)
    operator = GpuTrainOperator(task_id="t", script="code/train.py")

    async def event(deferred: TaskDeferred) -> Mapping[str, Any]:
        async with asyncio.timeout(150):
            return dict((await anext(deferred.trigger.run())).payload)  # type: ignore[attr-defined]

    with pytest.raises(TaskDeferred) as raised:
        operator.execute(context)  # type: ignore[arg-type]
    with pytest.raises(AirflowException) as failed:
        operator.execute_complete(context, asyncio.run(event(raised.value)))  # type: ignore[arg-type]
    assert str(failed.value).startswith(reason)
    # A retry may help: the task is not failed for good.
    assert not isinstance(failed.value, AirflowFailException)
