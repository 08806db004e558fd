"""Airflow standalone with a real broker and agent: what users do to tasks, and what becomes of their GPUs."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator

import pytest

from moorage.api.auth import Role
from moorage.api.values import LeaseView
from moorage.core.lease import LeaseState, Outcome
from moorage.testing.airflow import AirflowStandalone
from moorage.testing.fleet import FakeFleet, FakeNode
from moorage.testing.served import ServedBroker

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]

DAG = """
from airflow.sdk import DAG, task

with DAG("gpus", schedule=None, params={"seconds": 0}):

    @task.gpu(retries=0)
    def work(seconds, gpu=None):
        import time

        print("working for", seconds)
        time.sleep(float(seconds))
        return {"gpus": len(gpu["devices"])}

    work("{{ params.seconds }}")
"""


@pytest.fixture(scope="module")
def airflow(served: ServedBroker, token: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AirflowStandalone]:
    folder = tmp_path_factory.mktemp("standalone")
    (folder / "dags").mkdir()
    (folder / "dags" / "gpus.py").write_text(DAG)
    connection = {"conn_type": "moorage", "host": served.url, "password": token}
    env = {
        "AIRFLOW_CONN_MOORAGE_DEFAULT": json.dumps(connection),
        "MOORAGE_URL": served.url,
        "MOORAGE_TOKEN": served.client.make_token("page", Role.OPERATOR),
    }
    with (
        FakeFleet(served.url, served.token, [FakeNode(name="n1", gpus=2)], folder / "agents"),
        AirflowStandalone(folder / "home", folder / "dags", env, users={"vi": "viewer"}) as airflow,
    ):
        airflow.wait_for_dag("gpus")
        yield airflow
    assert airflow._family() == set()


def newest(served: ServedBroker, run: str) -> LeaseView | None:
    return next(iter(served.client.find({"airflow.run_id": run})), None)


def until(done: Callable[[], bool], within: float) -> float:
    """Seconds until it is true."""
    began = time.monotonic()
    while not done():
        assert time.monotonic() - began < within, "it did not happen in time"
        time.sleep(0.1)
    return time.monotonic() - began


def at_work(airflow: AirflowStandalone, served: ServedBroker, *, watched: bool = True) -> tuple[str, str]:
    """A run whose function is running, and its lease; the task is deferred, and its trigger watches."""
    run = airflow.trigger("gpus", {"seconds": 300})
    until(lambda: airflow.task_states("gpus", run).get("work") == "deferred", 60)
    until(lambda: (view := newest(served, run)) is not None and view.lease.state is LeaseState.RUNNING, 30)
    view = newest(served, run)
    assert view is not None
    heard = view.lease.owner_heard or 0
    if watched:
        until(lambda: (served.client.get(view.lease.id).lease.owner_heard or 0) > heard + 1, 30)
    return run, view.lease.id


def test_a_run_and_a_clear_after_success(airflow: AirflowStandalone, served: ServedBroker) -> None:
    run = airflow.trigger("gpus")
    assert airflow.wait_for_run("gpus", run, 90) == "success"
    first = newest(served, run)
    assert first is not None
    assert airflow.returned("gpus", run, "work") == {"gpus": 1}
    assert "[job] working for 0" in airflow.task_log("gpus", run, "work")
    links = airflow.get(f"/dags/gpus/dagRuns/{run}/taskInstances/work/links")
    assert f"/moorage/leases/{first.lease.id}" in json.dumps(links)
    airflow.clear("gpus", run, "work")
    until(lambda: (view := newest(served, run)) is not None and view.lease.id != first.lease.id, 60)
    assert airflow.wait_for_run("gpus", run, 90) == "success"
    second = newest(served, run)
    assert second is not None
    assert (second.lease.generation, second.lease.resume_from) == (2, None)


@pytest.mark.parametrize("watched", [True, False], ids=["trigger runs", "trigger waits"])
def test_marked_failed_frees_its_gpus_in_seconds(
    airflow: AirflowStandalone, served: ServedBroker, watched: bool
) -> None:
    run, lease = at_work(airflow, served, watched=watched)
    airflow.mark("gpus", run, "work", "failed")
    # The trigger is cancelled within its heartbeat; then the unwatch grace (3 s here), and the agent.
    assert until(lambda: served.client.get(lease).lease.state is LeaseState.ENDED, 30) < 20
    assert served.client.get(lease).lease.outcome is Outcome.STOPPED


def test_an_operators_release_fails_the_task(airflow: AirflowStandalone, served: ServedBroker) -> None:
    run, lease = at_work(airflow, served)
    served.client.release(lease, "an operator needs the GPU", lease)
    assert airflow.wait_for_run("gpus", run, 60) == "failed"
    assert "an operator needs the GPU" in airflow.task_log("gpus", run, "work")


def test_the_page(airflow: AirflowStandalone) -> None:
    assert airflow.call("GET", "/moorage/fleet.json", user=None).status_code == 401
    fleet = airflow.call("GET", "/moorage/fleet.json", user="vi")
    assert fleet.status_code == 200
    assert "n1" in fleet.text
    body = {"node": "n1", "on": True, "client_id": "c1"}
    assert airflow.call("POST", "/moorage/actions/cordon", body, user="vi").status_code == 403
    assert airflow.call("POST", "/moorage/actions/cordon", body).status_code == 204
