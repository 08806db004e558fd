"""Operators against a real broker over HTTP: one lease per task instance, whatever dies."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import task
from airflow.sdk.exceptions import AirflowException, AirflowFailException, TaskDeferred

from moorage.airflow import GpuLeaseOperator, GpuReleaseOperator, GpuTrainOperator, triggers
from moorage.airflow.labels import owner
from moorage.airflow.leased import PAST_STOP, STATE_KEY, LeasedOperator, client_id
from moorage.api.values import LeaseView
from moorage.client import Client
from moorage.core.job import DoneWhen, JobKind
from moorage.core.lease import LeaseState, Outcome

#: Real waits: `make test` runs them, `make check` does not.
pytestmark = pytest.mark.slow


class Store(dict[str, Any]):
    """Stands in for Airflow's task state store."""

    def set(self, key: str, value: object) -> None:
        self[key] = value

    def delete(self, key: str) -> None:
        self.pop(key, None)


class Instance(SimpleNamespace):
    def xcom_push(self, key: str, value: object) -> None:
        self.pushed[key] = value


@pytest.fixture
def context(tmp_path: Path) -> dict[str, Any]:
    """What a worker gives to `execute`, for a DAG file beside ``train.py``."""
    (tmp_path / "train.py").write_text("print('training')\n")
    ti = Instance(dag_id="d", run_id=f"run-{tmp_path.name}", task_id="t", map_index=-1, pushed={})
    return {
        "ti": ti,
        "task_state_store": Store(),
        "dag": SimpleNamespace(fileloc=str(tmp_path / "dag.py"), dagrun_timeout=None),
        "dag_run": SimpleNamespace(start_date=datetime.now(UTC)),
    }


def train(**options: Any) -> GpuTrainOperator:
    return GpuTrainOperator(task_id="t", **{"script": "train.py", **options})


def deferred(operator: LeasedOperator, context: dict[str, Any]) -> TaskDeferred:
    with pytest.raises(TaskDeferred) as raised:
        operator.execute(context)  # type: ignore[arg-type]
    return raised.value


def leases(api: Client, context: dict[str, Any]) -> list[LeaseView]:
    return list(api.find(owner(context["ti"])))  # type: ignore[arg-type]


def test_one_lease_however_often_it_is_submitted(connected: Client, context: dict[str, Any]) -> None:
    first = deferred(train(workers=(1, 4), capacity="spot", args=["--epochs", 3]), context)
    (view,) = leases(connected, context)
    assert context["task_state_store"] == {STATE_KEY: view.lease.id}
    assert context["ti"].pushed == {"moorage_lease_link": f"/moorage/leases/{view.lease.id}"}
    job = view.lease.job
    assert job is not None
    assert (job.kind, job.done_when) == (JobKind.RAY, DoneWhen.MARKER)
    assert job.entrypoint == ("python", "train.py", "--epochs", "3")
    assert connected.get_code(job.code or "")[:2] == b"PK"
    assert (first.method_name, first.timeout) == ("execute_complete", None)
    # The worker died: state store. It died before it could store: owner labels.
    for store in (context["task_state_store"], Store()):
        again = deferred(train(workers=(1, 4)), {**context, "task_state_store": store})
        assert again.trigger.lease == view.lease.id  # type: ignore[attr-defined]
    assert len(leases(connected, context)) == 1


def test_an_answer_that_was_lost_finds_its_lease() -> None:
    labels = {"b": "2", "a": "1"}
    assert client_id(labels, 1) == client_id(dict(sorted(labels.items())), 1)
    assert len({client_id(labels, 1), client_id(labels, 2), client_id({**labels, "a": "2"}, 1)}) == 3


def ends(api: Client, lease: str, reason: str = "a test ends it") -> LeaseView:
    """Release a queued lease and wait until it has ended."""
    view = api.release(lease, reason, f"release-{lease}", force=True)
    while view.lease.state is not LeaseState.ENDED:
        view = api.watch(lease, "test", view.revision, 5)
    return view


def test_a_retry_after_a_failure_continues_it(connected: Client, context: dict[str, Any]) -> None:
    first = deferred(train(), context).trigger.lease  # type: ignore[attr-defined]
    ends(connected, first)
    second = connected.get(deferred(train(), context).trigger.lease).lease  # type: ignore[attr-defined]
    assert (second.generation, second.resume_from) == (2, first)
    assert context["task_state_store"][STATE_KEY] == second.id


def test_a_lease_that_the_broker_forgot(connected: Client, context: dict[str, Any]) -> None:
    context["task_state_store"].set(STATE_KEY, "0193-nobody-knows-me")
    assert deferred(train(), context).trigger.lease == leases(connected, context)[0].lease.id  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"workers": (4, 2)}, "workers=(4, 2): max must not be below min; did you mean (2, 4)?"),
        ({"gpus_per_worker": 0}, "gpus_per_worker=0: give each worker at least 1 GPU"),
        ({"budget_usd": -1}, "budget_usd='-1': give a positive amount of dollars, or none for no limit"),
        ({"deadline": timedelta(days=-1)}, "it is in the past"),
        ({"script": "gone.py"}, "script='gone.py': no such file or folder; looked in"),
        ({"script": None}, "script=None: give a script or an entrypoint"),
        ({"entrypoint": ["python", "-c", "1"]}, "give a script or an entrypoint, not both"),
        ({"args": "--epochs 3"}, "args='--epochs 3': give a list of words"),
        ({"topology": {"required": "galaxy"}}, "galaxy"),
    ],
)
def test_wrong_arguments_fail_at_once(
    connected: Client, context: dict[str, Any], options: Mapping[str, Any], sentence: str
) -> None:
    with pytest.raises(AirflowFailException) as failed:
        train(**options).execute(context)  # type: ignore[arg-type]
    assert sentence in str(failed.value)
    assert leases(connected, context) == []


def test_a_wrong_token_fails_at_once(
    connected: Client, context: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MOORAGE_TOKEN", "wrong")
    with pytest.raises(AirflowFailException):
        train().execute(context)  # type: ignore[arg-type]


def test_a_broker_that_is_away_is_tried_again(context: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOORAGE_URL", "http://127.0.0.1:9")
    monkeypatch.setattr("moorage.airflow.hook.RETRY_FOR", 0.2)
    with pytest.raises(AirflowException, match=r"no answer from http://127\.0\.0\.1:9") as failed:
        train().execute(context)  # type: ignore[arg-type]
    assert not isinstance(failed.value, AirflowFailException)


def test_time_outs_stop_the_lease_before_the_deferral(connected: Client, context: dict[str, Any]) -> None:
    context["dag"].dagrun_timeout = timedelta(hours=1)
    event = deferred(train(execution_timeout=timedelta(hours=2)), context)
    stop_at = leases(connected, context)[0].lease.request.stop_at
    assert stop_at == context["dag_run"].start_date + timedelta(hours=1)
    assert event.timeout is not None
    assert timedelta(minutes=59) < event.timeout - PAST_STOP <= timedelta(hours=1)


def ended(outcome: Outcome | None, **more: Any) -> dict[str, Any]:
    cost = {f"{name}_usd": "0" for name in ("total", "busy", "idle", "lost", "overhead", "unknown", "saved")}
    base = {"lease": "abc", "state": "ended", "outcome": outcome, "reason": "Said why.", "result": {"value": 3}}
    return {**base, "cost": {**cost, "gpu_seconds": "0"}, "attempts": 1, "interruptions": 0, "notes": {}, **more}


def test_success_returns_and_forgets(connected: Client, context: dict[str, Any]) -> None:
    context["task_state_store"].set(STATE_KEY, "abc")
    value = train().execute_complete(context, ended(Outcome.SUCCEEDED))  # type: ignore[arg-type]
    assert value["lease"] == "abc"
    assert value["result"] == {"value": 3}
    assert value["cost"]["total_usd"] == "0"
    assert context["task_state_store"] == {}


@pytest.mark.parametrize(
    ("event", "kind", "retried"),
    [
        (ended(Outcome.FAILED), AirflowException, True),
        (ended(Outcome.STOPPED), AirflowFailException, False),
        ({"lease": "abc", "error": "NotFound: no lease abc"}, AirflowException, True),
    ],
)
def test_other_ends(
    connected: Client, context: dict[str, Any], event: dict[str, Any], kind: type[Exception], retried: bool
) -> None:
    context["task_state_store"].set(STATE_KEY, "abc")
    with pytest.raises(kind, match=r"Said why\.|no lease abc") as raised:
        train().execute_complete(context, event)  # type: ignore[arg-type]
    assert isinstance(raised.value, AirflowFailException) is not retried
    assert context["task_state_store"] == {STATE_KEY: "abc"}


def test_the_end_needs_no_broker(context: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOORAGE_URL", "http://127.0.0.1:9")
    monkeypatch.setattr("moorage.airflow.hook.RETRY_FOR", 0.2)
    assert train().execute_complete(context, ended(Outcome.SUCCEEDED))["lease"] == "abc"  # type: ignore[arg-type]


def double(value: int, gpu: Any = None) -> int:
    return 2 * value


def gpu_operator(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    return task.gpu(**options)(function)(*args).operator  # type: ignore[attr-defined]


def test_a_function_is_a_process_job(connected: Client, context: dict[str, Any]) -> None:
    operator = gpu_operator(double, 4, gpus=2, capacity="spot", models=["H100"])
    deferred(operator, context)
    lease = leases(connected, context)[0].lease
    assert lease.job is not None
    assert (lease.job.kind, lease.job.entrypoint) == (JobKind.PROCESS, ("python", "main.py"))
    assert (lease.request.gpus_per_worker, lease.request.workers) == (2, (1, 1))
    assert operator.execute_complete(context, ended(Outcome.SUCCEEDED)) == 3


def wants_context(ds: Any = None, ti: Any = None) -> Any:
    return ds


def test_a_function_gets_no_live_context(connected: Client, context: dict[str, Any]) -> None:
    with pytest.raises(AirflowFailException, match="wants_context='ti': cannot travel to the GPU node"):
        gpu_operator(wants_context).execute({**context, "ds": "2026-11-30"})


def test_a_lease_for_several_tasks(connected: Client, context: dict[str, Any]) -> None:
    with pytest.raises(AirflowFailException, match="a lease without a job needs an end"):
        GpuLeaseOperator(task_id="t").execute(context)  # type: ignore[arg-type]
    event = deferred(GpuLeaseOperator(task_id="t", gpus_per_worker=2, stop_after=timedelta(hours=1)), context)
    assert isinstance(event.trigger, triggers.LeaseTrigger)
    lease = event.trigger.lease
    assert event.trigger.until == "granted"
    GpuReleaseOperator(task_id="r", lease={"lease": lease}).execute(context)  # type: ignore[arg-type]
    assert ends(connected, lease).lease.outcome is Outcome.STOPPED
