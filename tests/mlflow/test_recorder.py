"""The recorder as a process against a real MLflow server: what people find there, whatever was killed on the way."""

import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import pandas as pd
import pytest
from mlflow_scripted import Scripted

from moorage.api.values import EventKind, LeaseView, Submission
from moorage.core.job import Job
from moorage.core.lease import LeaseState, Outcome
from moorage.core.policy import Policy, Pool
from moorage.core.request import Request
from moorage.mlflow import Recorder
from moorage.testing.fleet import FakeFleet, FakeNode
from moorage.testing.served import ServedBroker

pytestmark = [pytest.mark.system, pytest.mark.timeout(280)]

SPEED = 6.0
CENT = Decimal("0.01")


def eventually(what: str, check: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.1)


@dataclass
class Server:
    """A tracking server on SQLite that can be killed and started again at the same address."""

    folder: Path
    port: int
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        argv = [sys.executable, "-m", "mlflow", "server", "--host=127.0.0.1", f"--port={self.port}", "--workers=1"]
        argv += [
            f"--backend-store-uri=sqlite:///{self.folder}/mlflow.db",
            f"--artifacts-destination={self.folder}/files",
        ]
        env = {**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
        log = (self.folder / "server.log").open("ab")
        self.process = subprocess.Popen(argv, env=env, stdout=log, stderr=log, start_new_session=True)
        log.close()
        eventually("MLflow answers", self._healthy, 120)

    def _healthy(self) -> bool:
        try:
            return httpx.get(f"{self.url}/health", timeout=2).status_code == httpx.codes.OK
        except httpx.HTTPError:
            return False

    def kill(self) -> None:
        """Its whole session, so that uvicorn's children go too."""
        if self.process is not None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(timeout=10)
            self.process = None


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = Server(tmp_path_factory.mktemp("mlflow"), port)
    server.start()
    yield server
    server.kill()


@dataclass
class Recording:
    """One scripted lease and the processes that record it."""

    folder: Path
    server: Server
    lease: str
    source: Scripted
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self) -> subprocess.Popen[bytes]:
        program = Path(__file__).with_name("record_process.py")
        argv = [
            sys.executable,
            str(program),
            str(self.folder),
            self.lease,
            str(SPEED),
            self.server.url,
            self.experiment,
        ]
        log = (self.folder / "recorder.log").open("ab")
        self.processes.append(subprocess.Popen(argv, stdout=log, stderr=log))
        log.close()
        return self.processes[-1]

    @property
    def experiment(self) -> str:
        return f"e-{self.lease[-4:]}"

    @property
    def log(self) -> str:
        return (self.folder / "recorder.log").read_text()

    def runs(self) -> list[Any]:
        from mlflow import MlflowClient

        client = MlflowClient(tracking_uri=self.server.url)
        experiment = client.get_experiment_by_name(self.experiment)
        return list(client.search_runs([experiment.experiment_id])) if experiment else []

    def finished(self) -> bool:
        return any(r.data.tags["moorage.kind"] == "lease" and r.info.status == "FINISHED" for r in self.runs())

    def stop(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.terminate()
                process.wait(timeout=20)


_numbers = itertools.count(1)


@pytest.fixture
def recording(server: Server, tmp_path: Path) -> Iterator[Recording]:
    lease = f"01930000-0000-7000-8000-{next(_numbers):012x}"
    recording = Recording(tmp_path, server, lease, Scripted.opened(tmp_path, lease, SPEED))
    yield recording
    recording.stop()


def second(recording: Recording) -> float:
    return (recording.source.now() - recording.source.story.lease.submitted_at).total_seconds()


def until_second(recording: Recording, at: float) -> None:
    eventually(f"second {at} of the story", lambda: second(recording) >= at, at / SPEED + 30)


def check_all(recording: Recording) -> None:
    """The whole story stands in MLflow once: no hole, nothing twice."""
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=recording.server.url)
    runs = recording.runs()
    parents = [run for run in runs if run.data.tags["moorage.kind"] == "lease"]
    children = sorted((r for r in runs if r not in parents), key=lambda run: int(run.data.tags["moorage.epoch"]))
    assert (len(parents), len(children)) == (1, 2)
    check_parent(client, recording, parents[0])
    check_children(recording, parents[0], children)
    check_files(client, parents[0])
    noted = recording.source.notes()
    assert {note["mlflow.run_id"] for note in noted} == {parents[0].info.run_id}
    page = f"/#/experiments/{parents[0].info.experiment_id}/runs/{parents[0].info.run_id}?workflowType=machine_learning"
    assert noted[0]["mlflow.run_url"] == recording.server.url + page


def check_parent(client: Any, recording: Recording, parent: Any) -> None:
    run, told = client.get_run(parent.info.run_id), recording.source.story
    start = round(told.lease.submitted_at.timestamp() * 1000)
    assert (run.info.status, run.info.start_time) == ("FINISHED", start)
    assert run.info.end_time == round(told.events[-1].at.timestamp() * 1000)
    tags = run.data.tags
    assert (tags["moorage.state"], tags["moorage.outcome"], tags["airflow.task_id"]) == ("ended", "succeeded", "train")
    assert (run.data.params["moorage/workers_max"], run.data.params["moorage/capacity"]) == ("4", "spot")
    # Independent of our own arithmetic: plain fractions of the ledger.
    total = sum(
        Decimal((s.end - s.start).total_seconds()) * len(s.gpus) * s.price / 3600 for s in told.segments if s.end
    )
    metrics = run.data.metrics
    assert abs(Decimal(metrics["cost/total_usd"]) - total) < Decimal("0.00001")
    parts = [metrics[f"cost/{part}_usd"] for part in ("busy", "idle", "lost", "overhead", "unknown")]
    assert sum(parts) == pytest.approx(metrics["cost/total_usd"], abs=1e-9)
    assert metrics["cost/lost_usd"] > 0
    assert tags["mlflow.note.content"].startswith(f"${total:.4f} · ")
    check_curves(client, recording, parent.info.run_id)


def check_curves(client: Any, recording: Recording, run: str) -> None:
    rows = [e for e in recording.source.story.events if e.kind is EventKind.PROGRESS and "loss" in e.facts]
    for key, fact in (("loss", "loss"), ("throughput", "throughput"), ("accuracy", "metric.accuracy")):
        found = sorted((m.timestamp, m.step, m.value) for m in client.get_metric_history(run, key))
        assert found == [(round(e.at.timestamp() * 1000), e.facts["step"], e.facts[fact]) for e in rows]
    gpus = client.get_metric_history(run, "gpu/allocated")
    assert max(gpus, key=lambda m: (m.step, m.timestamp, m.value)).value == 0
    assert max(m.value for m in gpus) == 3
    cost = client.get_metric_history(run, "cost/total_usd")
    steps = [m.step for m in cost]
    assert len(steps) == len(set(steps))
    assert max(b - a for a, b in itertools.pairwise(sorted([0, *steps]))) <= 20, "a hole in the cost curve"
    values = [m.value for m in sorted(cost, key=lambda m: m.step)]
    assert values == sorted(values)


def check_children(recording: Recording, parent: Any, children: list[Any]) -> None:
    assert [(c.info.status, c.data.tags["moorage.outcome"]) for c in children] == [
        ("KILLED", "interrupted"),
        ("FINISHED", "succeeded"),
    ]
    assert all(child.data.tags["mlflow.parentRunId"] == parent.info.run_id for child in children)
    assert all(set(child.data.metrics) == {"attempt/cost_usd", "attempt/workers"} for child in children)
    costs = sum(child.data.metrics["attempt/cost_usd"] for child in children)
    assert costs == pytest.approx(parent.data.metrics["cost/total_usd"], abs=1e-5)


def check_files(client: Any, parent: Any) -> None:
    run = parent.info.run_id
    files = {file.path for file in client.list_artifacts(run, "moorage")}
    assert files == {"moorage/events.json", "moorage/report.html"}
    tables = json.loads(client.get_run(run).data.tags["mlflow.loggedArtifacts"])
    assert tables == [{"path": "moorage/events.json", "type": "table"}]
    with tempfile.TemporaryDirectory() as folder:
        # As `load_table` reads it; that one uses MLflow's global tracking address.
        read = pd.read_json(client.download_artifacts(run, "moorage/events.json", folder), orient="split")
    assert list(read["event"])[:3] == ["submitted", "held", "granted"]
    assert list(read["event"])[-1] == "ended"


@pytest.mark.path
def test_a_lease_is_one_run_with_a_child_for_each_attempt(recording: Recording) -> None:
    recording.start()
    eventually("the run is finished", recording.finished, 60)
    recording.stop()
    check_all(recording)


def test_the_tracking_server_dies_and_comes_back(recording: Recording) -> None:
    recording.start()
    until_second(recording, 25)
    recording.server.kill()
    until_second(recording, 60)
    recording.server.start()
    eventually("the run is finished", recording.finished, 90)
    recording.stop()
    check_all(recording)
    assert "cannot be written" in recording.log


def test_no_tracking_server_until_everything_is_over(recording: Recording) -> None:
    recording.server.kill()
    recording.start()
    until_second(recording, 90)
    # Stopped while nothing could be sent; another process sends it.
    recording.stop()
    assert recording.processes[0].returncode == 0
    recording.server.start()
    recording.start()
    eventually("the run is finished", recording.finished, 90)
    recording.stop()
    check_all(recording)


def test_the_recorder_is_killed_again_and_again(recording: Recording) -> None:
    for at in (12, 30, 46, 70):
        process = recording.start()
        until_second(recording, at)
        process.kill()
        process.wait(timeout=10)
    recording.start()
    eventually("the run is finished", recording.finished, 60)
    recording.stop()
    check_all(recording)


TRAINING = """
import os, time
from moorage.client import Client
from moorage.core.job import Phase, Progress
client = Client(os.environ["MOORAGE_URL"], os.environ["MOORAGE_TOKEN"])
for step in range(1, 7):
    progress = Progress(phase=Phase.TRAINING, step=step, loss=1 / step, metrics={"accuracy": step / 10})
    client.renew(os.environ["MOORAGE_LEASE"], int(os.environ["MOORAGE_EPOCH"]), progress)
    time.sleep(1.1)
"""


@pytest.mark.path
def test_a_real_lease_costs_in_mlflow_what_its_ledger_says(server: Server, tmp_path: Path) -> None:
    """The real broker behind HTTP, a real agent, a job that trains: nothing scripted."""
    from mlflow import MlflowClient

    policy = Policy(pools=(Pool(name="p", price=Decimal("1234.5"), on_demand_price=Decimal(3000)),))
    (tmp_path / "broker").mkdir()
    nodes = [FakeNode(name="n1", gpus=4)]
    with (
        ServedBroker(tmp_path / "broker", policy) as broker,
        FakeFleet(broker.url, broker.token, nodes, tmp_path / "a"),
    ):
        stop, recorder = threading.Event(), Recorder(broker.client, server.url, experiment="real", spool=tmp_path / "s")
        thread = threading.Thread(target=recorder.run, args=(stop,))
        thread.start()
        try:
            job = Job(entrypoint=("python", "-c", TRAINING))
            asked = Submission(owner={"who": "me"}, request=Request(gpus_per_worker=2), job=job, client_id="1")
            lease = broker.client.submit(asked).lease.id
            eventually("it ended", lambda: broker.client.get(lease).lease.state is LeaseState.ENDED, 90)
            eventually("MLflow knows", lambda: finished_note(broker.client.get(lease), server), 60)
        finally:
            stop.set()
            thread.join(timeout=20)
        view, ledger = broker.client.get(lease), broker.client.ledger(lease)
    run = MlflowClient(tracking_uri=server.url).get_run(view.lease.notes["mlflow.run_id"])
    paid = sum(Decimal((s.end - s.start).total_seconds()) * len(s.gpus) * s.price / 3600 for s in ledger if s.end)
    assert view.lease.outcome is Outcome.SUCCEEDED, view.lease.reason
    assert paid > 1
    assert abs(Decimal(run.data.metrics["cost/total_usd"]) - paid) < CENT / 2
    assert abs(Decimal(run.data.metrics["cost/total_usd"]) - view.cost.total_usd) < Decimal("0.000001")
    assert (run.data.metrics["loss"], run.data.metrics["accuracy"]) == (pytest.approx(1 / 6), pytest.approx(0.6))
    assert (run.data.metrics["gpu/allocated"], run.data.params["moorage/gpus_per_worker"]) == (0, "2")
    client = MlflowClient(tracking_uri=server.url)
    assert max(m.value for m in client.get_metric_history(run.info.run_id, "gpu/allocated")) == 2


def finished_note(view: LeaseView, server: Server) -> bool:
    from mlflow import MlflowClient

    run = view.lease.notes.get("mlflow.run_id")
    return run is not None and MlflowClient(tracking_uri=server.url).get_run(run).info.status == "FINISHED"
