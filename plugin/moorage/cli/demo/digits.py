"""The main job: a DAG leases GPUs, trains elastically through a spot interruption, and costs dollars in MLflow."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moorage.api.values import LeaseView
from moorage.cli.demo import services, summary
from moorage.cli.demo.airflow import Airflow, start_airflow
from moorage.cli.demo.cloud import Cloud
from moorage.cli.demo.memory import PeakMemory
from moorage.cli.demo.parts import Part, PartFailed, Parts, free_port
from moorage.cli.demo.screen import Screen
from moorage.cli.demo.watch import line, story
from moorage.core.lease import LeaseState

DAG = "train_digits"
#: Seconds that the whole DAG run, MLflow's last numbers, and the undisturbed run may take.
DAG_LIMIT_S, RECORD_LIMIT_S, UNDISTURBED_LIMIT_S = 900.0, 60.0, 300.0


@dataclass(frozen=True)
class Stage:
    """Everything that is up."""

    parts: Parts
    screen: Screen
    work: Path
    source: Path
    broker: services.Broker
    airflow: Airflow
    metadata_url: str
    mlflow_url: str


def play(parts: Parts, screen: Screen, work: Path, source: Path, *, keep: bool) -> bool:
    """Run it; True if the DAG succeeded and every witness agrees."""
    memory = PeakMemory()
    memory.start()
    began = time.monotonic()
    stage = set_up(parts, screen, work, source)
    setup_s = time.monotonic() - began
    screen.say(f"GPU fleet: {stage.airflow.fleet_url} ({stage.airflow.login})")
    screen.say(f"MLflow:    {stage.mlflow_url}")
    run = stage.airflow.trigger(DAG)
    state = follow_run(stage, run)
    dag_s = time.monotonic() - began - setup_s
    values = gather(stage, run, state)
    values["accuracy_undisturbed"] = undisturbed(stage)
    values["seconds"] = {"setup": round(setup_s, 1), "dag": round(dag_s, 1)}
    values["peak_memory_bytes"] = memory.stop()
    summary.write(work.parent / "summary.json", values)
    screen.say(f"\nGPU fleet:  {values['links']['fleet']} ({stage.airflow.login})")
    screen.say(f"MLflow run: {values['links']['mlflow_run']}")
    screen.say(f"Summary:    {work.parent / 'summary.json'}")
    if keep:
        services.wait_for_interrupt(parts, screen)
    return state == "success" and all(value is True for value in values["agree"].values())


def set_up(parts: Parts, screen: Screen, work: Path, source: Path) -> Stage:
    """Start every part and wait until all are healthy; the slowest (Airflow) starts as soon as the broker is there."""
    airflow_port = free_port()
    mlflow_part, mlflow_url = services.start_mlflow(parts, work)
    fleet_url = f"http://127.0.0.1:{airflow_port}/plugin/moorage"
    broker_part, broker = services.start_broker(parts, work, f"--mlflow={mlflow_url}", f"--fleet-url={fleet_url}")
    metadata_part, metadata_url = services.start_metadata(parts, work)
    parts.wait_healthy(broker_part, metadata_part)
    airflow_part, airflow = start_airflow(parts, work, source, airflow_port, services.tokens_for_airflow(work, broker))
    agents = services.start_agents(parts, work, broker, metadata_url)
    parts.wait_healthy(*agents, mlflow_part, airflow_part)
    airflow.wait_for_dag(DAG, limit_s=120)
    return Stage(parts, screen, work, source, broker, airflow, metadata_url, mlflow_url)


def follow_run(stage: Stage, run: str) -> str:
    """Show tasks and leases, and let the cloud play, until the DAG run is over. Returns its state."""
    cloud = Cloud(stage.parts, stage.screen, stage.metadata_url)
    until = time.monotonic() + DAG_LIMIT_S
    with stage.broker.client() as client:
        while time.monotonic() < until:
            stage.parts.check()
            state = stage.airflow.run_state(DAG, run)
            views = {view.lease.owner.get("airflow.task_id", ""): view for view in client.find({"airflow.run_id": run})}
            show_tasks(stage, run, views)
            if "train" in views:
                cloud.tick(views["train"])
            if state in ("success", "failed"):
                return state
            time.sleep(0.5)
    raise PartFailed("airflow", f"did not finish the DAG run within {DAG_LIMIT_S:.0f} s", stage.work / "airflow.log")


def show_tasks(stage: Stage, run: str, views: Mapping[str, LeaseView]) -> None:
    """One line per task: its state in Airflow, and what its lease does."""
    for task, state in stage.airflow.task_states(DAG, run).items():
        shown = {"success": "done", "failed": "failed", None: "waiting"}.get(state, "running")
        detail = line(views[task]) if task in views else (state or "")
        stage.screen.show(task, shown, detail)


def gather(stage: Stage, run: str, state: str) -> dict[str, Any]:
    """The summary, but for what is measured outside: seconds, memory, the undisturbed run."""
    with stage.broker.client() as client:
        trained = client.find({"airflow.run_id": run, "airflow.task_id": "train"})
        if not trained:
            raise PartFailed(
                "airflow", f"ended the DAG run as {state} before train had a lease", stage.work / "airflow.log"
            )
        view = settled(client, trained[0].lease.id)
        told = story(client.events(0, limit=100_000), view.lease.id)
    summary.print_story(stage.screen.console, view.lease.submitted_at, told)
    summary.print_cost(stage.screen.console, view.cost)
    returned = stage.airflow.returned(DAG, run, "train")
    result = json.loads(view.lease.result) if view.lease.result else {}
    agreement = summary.Agreement(
        broker=summary.broker_agrees(view, stage.broker.database),
        mlflow=eventually_mlflow(stage, view),
        airflow=summary.airflow_agrees(state, returned, view),
    )
    return {
        "state": state,
        "accuracy": result.get("accuracy"),
        **summary.story_dict(told),
        "cost": summary.cost_dict(view.cost),
        "leaked_allocations": summary.open_allocations(stage.broker.database),
        "links": {
            "airflow": stage.airflow.url,
            "fleet": stage.airflow.fleet_url,
            "mlflow_run": view.lease.notes.get("mlflow.run_url"),
        },
        "ids": {"dag_run": run, "lease": view.lease.id, "mlflow_run": view.lease.notes.get("mlflow.run_id")},
        "agree": {"broker": agreement.broker, "mlflow": agreement.mlflow, "airflow": agreement.airflow},
        "broker_url": stage.broker.url,
        "database": str(stage.broker.database),
    }


def settled(client: Any, lease: str) -> LeaseView:
    """The lease once its last allocation is freed and it knows its MLflow run, or as it is after a while."""
    until = time.monotonic() + RECORD_LIMIT_S
    view: LeaseView = client.get(lease)
    while time.monotonic() < until:
        if view.lease.state is LeaseState.ENDED and "mlflow.run_id" in view.lease.notes:
            break
        view = client.watch(lease, "demo", view.revision, 2.0)
    return view


def eventually_mlflow(stage: Stage, view: LeaseView) -> bool | str:
    """MLflow's word; the recorder writes its last numbers a moment after the end."""
    until = time.monotonic() + RECORD_LIMIT_S
    while True:
        verdict = summary.mlflow_agrees(stage.mlflow_url, view.lease.notes.get("mlflow.run_id"), view.cost)
        if verdict is True or time.monotonic() > until:
            return verdict
        time.sleep(1)


def undisturbed(stage: Stage) -> float:
    """Accuracy of the same training in one piece: no lease, no resize, no interruption. It is really run."""
    marker = stage.work / "undisturbed.json"
    argv = [
        sys.executable,
        str(stage.source / "ray_jobs" / "train_digits.py"),
        "--data",
        str(stage.work / "data" / "digits.npz"),
    ]
    env = {"MOORAGE_MARKER": str(marker), "RAY_AUTH_MODE": "disabled"}
    part = Part("undisturbed", argv, stage.work / "undisturbed.log", lambda: None, env, expendable=True)
    process = stage.parts.start(part).process
    until = time.monotonic() + UNDISTURBED_LIMIT_S
    while process is not None and process.poll() is None and time.monotonic() < until:
        time.sleep(0.2)
    if process is None or process.poll() != 0 or not marker.is_file():
        raise PartFailed("undisturbed", "did not finish", part.log)
    accuracy = float(json.loads(marker.read_text())["accuracy"])
    stage.screen.show("undisturbed", "done", f"accuracy {accuracy:.4f} without any interruption")
    return accuracy
