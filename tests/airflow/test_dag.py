"""``dag.test()`` in a fresh Airflow: deferral, agent, process, marker and result are real; only the GPU is fake."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from moorage.api.auth import Role
from moorage.core.lease import LeaseState, Outcome
from moorage.testing.fleet import FakeFleet, FakeNode
from moorage.testing.served import ServedBroker

DAG = """
from airflow.sdk import DAG, task

with DAG("gpus", schedule=None) as dag:

    @task
    def numbers():
        return [1, 2, 3]

    @task.gpu(gpus=2, models=["FAKE-GPU"], budget_usd="{{ 2 + 3 }}")
    def double(values, gpu=None):
        print("doubling", values)
        return {"doubled": [2 * value for value in values], "gpus": len(gpu["devices"])}

    @task.gpu
    def breaks():
        raise LookupError("no such digit")

    double(numbers())
    breaks()
"""

RUN = """
import json, runpy, sys
from airflow.utils import db

db.initdb()
run = runpy.run_path(sys.argv[1])["dag"].test()
tasks = run.get_task_instances()
value = next(ti for ti in tasks if ti.task_id == "double").xcom_pull("double", map_indexes=-1)
print(json.dumps({"states": {ti.task_id: ti.state for ti in tasks}, "value": value}))
"""


def clean_environment(home: Path, broker: ServedBroker) -> dict[str, str]:
    """Of a new Airflow whose tasks reach the broker."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("AIRFLOW", "MOORAGE", "PYTHONDONT"))}
    connection = {
        "conn_type": "moorage",
        "host": broker.url,
        "password": broker.client.make_token("tasks", Role.SUBMITTER, team="research"),
    }
    return kept | {
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__DAGS_FOLDER": str(home / "dags"),
        "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
        "AIRFLOW_CONN_MOORAGE_DEFAULT": json.dumps(connection),
    }


@pytest.mark.system
@pytest.mark.path
def test_a_dag_of_gpu_tasks(broker: ServedBroker, fake_fleet: Callable[..., FakeFleet], tmp_path: Path) -> None:
    fake_fleet([FakeNode(name="n1", gpus=4)])
    home = tmp_path / "airflow"
    (home / "dags").mkdir(parents=True)
    file = home / "dags" / "gpus.py"
    file.write_text(DAG)
    environment = clean_environment(home, broker)
    argv = [sys.executable, "-c", RUN, str(file)]
    done = subprocess.run(argv, env=environment, cwd=home, capture_output=True, text=True, timeout=240, check=False)
    log = done.stdout + done.stderr
    assert done.returncode == 0, log
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["states"] == {"numbers": "success", "double": "success", "breaks": "failed"}, log
    assert told["value"] == {"doubled": [2, 4, 6], "gpus": 2}
    assert "doubling [1, 2, 3]" in log
    assert 'raise LookupError("no such digit")' in log
    leases = {
        view.lease.owner["airflow.task_id"]: view.lease for view in broker.client.find({"airflow.dag_id": "gpus"})
    }
    assert {name: lease.outcome for name, lease in leases.items()} == {
        "double": Outcome.SUCCEEDED,
        "breaks": Outcome.FAILED,
    }
    assert all(lease.state is LeaseState.ENDED and not lease.live for lease in leases.values())
