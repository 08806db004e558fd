"""A lease outlives Airflow's parts, and does not outlive its task: triggerers are killed and stopped for real."""

from __future__ import annotations

import contextlib
import json
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil
import pytest

from moorage.api.auth import Role
from moorage.api.values import LeaseView
from moorage.core.lease import LeaseState, Outcome
from moorage.core.policy import Policy
from moorage.testing.airflow import AirflowStandalone
from moorage.testing.fleet import FakeFleet, FakeNode
from moorage.testing.leaks import assert_nothing_leaked
from moorage.testing.served import ServedBroker

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]

#: `retries=0`: whatever fails the task fails its run.
DAGS = """
from datetime import timedelta

from airflow.sdk import DAG, task


@task.gpu(retries=0)
def work(folder):
    import os
    import time
    from pathlib import Path

    with Path(folder, "starts").open("a") as starts:
        starts.write(f"{os.getpid()}\\n")
    until = time.monotonic() + 280
    while not Path(folder, "go").exists():
        if time.monotonic() > until:
            raise TimeoutError("nobody said go")
        time.sleep(0.1)
    return os.getpid()


for name, limit in (("patient", None), ("hurried", timedelta(seconds=30))):
    with DAG(name, schedule=None, params={"folder": ""}, dagrun_timeout=limit):
        work("{{ params.folder }}")
"""
TASK = "work"
NODES = 2
GPUS = 2
#: A triggerer whose heartbeat is this old counts as dead; its triggers go to another at its next loop.
MISSED_S = 30
TAKEN_OVER_S = MISSED_S + 45
#: Longest time that a trigger's poll stays open.
POLL_S = 20
#: Seconds within which a task that ended by a person's or Airflow's act has given its GPUs back.
SOON_S = 15


def eventually(true: Callable[[], Any], limit_s: float, what: str) -> Any:
    """The first true answer. Fails the test after `limit_s` seconds."""
    until = time.monotonic() + limit_s
    while not (answer := true()):
        assert time.monotonic() < until, f"not within {limit_s:.0f} s: {what}"
        time.sleep(0.2)
    return answer


@dataclass
class Triggerer:
    """One triggerer: Airflow's number of it, and its process."""

    job: int
    process: psutil.Process

    def signal(self, number: signal.Signals) -> None:
        """To it and to all that it started, as when its host dies or stands still."""
        for process in [self.process, *self.process.children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        psutil.wait_procs([self.process], timeout=10)


@dataclass
class World:
    """Broker, agents, and an Airflow whose triggerers are known one by one."""

    airflow: AirflowStandalone
    served: ServedBroker
    folder: Path
    triggerers: list[Triggerer] = field(default_factory=list)

    def jobs(self) -> set[int]:
        """Of every triggerer that ever was."""
        return {job["id"] for job in self.airflow.get("/jobs?job_type=TriggererJob&limit=100")["jobs"]}

    def add_triggerer(self) -> Triggerer:
        known = self.jobs()
        process = self.airflow.start_triggerer()
        new = eventually(lambda: self.jobs() - known, 60, "another triggerer")
        self.triggerers.append(Triggerer(new.pop(), psutil.Process(process.pid)))
        return self.triggerers[-1]

    def standalones_own(self) -> None:
        """Airflow has just started: its one triggerer is its newest."""
        process = eventually(self.airflow.triggerers, 60, "a triggerer")[0]
        known = {triggerer.job for triggerer in self.triggerers}
        new = eventually(lambda: self.jobs() - known, 60, "its number")
        self.triggerers = [Triggerer(max(new), process)]

    def want(self, number: int) -> None:
        """As many triggerers."""
        while len(self.triggerers) > number:
            self.kill(self.triggerers[-1])
        while len(self.triggerers) < number:
            self.add_triggerer()

    def kill(self, triggerer: Triggerer) -> None:
        triggerer.kill()
        self.triggerers.remove(triggerer)

    def start(self, dag: str = "patient", *, watched: bool = True) -> Run:
        """A run whose task is deferred while its function runs, and (`watched`) whose trigger watches."""
        folder = self.folder / f"run-{time.time_ns()}"
        folder.mkdir()
        run = Run(self, dag, self.airflow.trigger(dag, {"folder": str(folder)}), folder)
        eventually(lambda: run.starts, 60, "the function runs")
        eventually(lambda: run.state == "deferred", 30, "the task is deferred")
        if watched:
            eventually(lambda: run.triggerer, 30, "its trigger is on a triggerer")
            run.wait_until_heard()
        return run

    def assert_nothing_leaked(self) -> None:
        assert_nothing_leaked(self.served.folder / "moorage.db", self.folder / "agents")


@dataclass
class Run:
    """One DAG run of one task, and its lease."""

    world: World
    dag: str
    id: str
    folder: Path

    @property
    def leases(self) -> Sequence[LeaseView]:
        """All that this run ever had."""
        return self.world.served.client.find({"airflow.run_id": self.id})

    @property
    def lease(self) -> LeaseView:
        """Its only one."""
        (only,) = self.leases
        return only

    @property
    def heard(self) -> float:
        return self.lease.lease.owner_heard or 0.0

    @property
    def task(self) -> dict[str, Any]:
        (only,) = self.world.airflow.task_instances(self.dag, self.id)
        return only

    @property
    def state(self) -> str | None:
        return self.task["state"]

    @property
    def triggerer(self) -> int | None:
        """Number of the triggerer that Airflow gave the trigger to."""
        trigger = self.task["trigger"]
        return trigger and trigger["triggerer_id"]

    @property
    def starts(self) -> list[str]:
        """Process ids of all starts of the function."""
        file = self.folder / "starts"
        return file.read_text().split() if file.exists() else []

    def holder(self) -> Triggerer:
        return next(known for known in self.world.triggerers if known.job == self.triggerer)

    def wait_until_heard(self, limit_s: float = 30) -> None:
        """A watcher of the lease says that it is there, more than once."""
        before = self.heard
        eventually(lambda: self.heard > before + 2, limit_s, "the lease is watched")

    def trigger_log(self, triggerer: Triggerer) -> str:
        """What this triggerer says of this task's trigger."""
        logs = (self.world.airflow.home / "logs").rglob(f"*.trigger.{triggerer.job}.log")
        return "".join(log.read_text() for log in logs if self.id in str(log))

    def assert_undisturbed(self, before: LeaseView) -> None:
        now = self.lease.lease
        assert (now.id, now.state, now.epoch) == (before.lease.id, LeaseState.RUNNING, 1), now.reason
        assert [a.id for a in now.live] == [a.id for a in before.lease.live]
        assert len(self.starts) == 1

    def finish(self) -> None:
        """The function is told to end: the run succeeds, by the one start of the one lease, and nothing is left."""
        (self.folder / "go").touch()
        state = self.world.airflow.wait_for_run(self.dag, self.id, 90)
        assert state == "success", self.world.airflow.task_log(self.dag, self.id, TASK)
        ended = self.lease.lease
        assert (ended.state, ended.outcome, ended.epoch) == (LeaseState.ENDED, Outcome.SUCCEEDED, 1), ended.reason
        assert [str(self.world.airflow.returned(self.dag, self.id, TASK))] == self.starts
        self.world.assert_nothing_leaked()

    def wait_until_stopped(self, limit_s: float) -> None:
        """The lease ends without success, and nothing is left."""
        eventually(lambda: self.lease.lease.state is LeaseState.ENDED, limit_s, "the lease ends")
        assert self.lease.lease.outcome is Outcome.STOPPED, self.lease.lease.reason
        self.world.assert_nothing_leaked()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("airflow-survival")
    for name in ("broker", "dags"):
        (folder / name).mkdir()
    (folder / "dags" / "survival.py").write_text(DAGS)
    nodes = [FakeNode(name=f"n{n}", gpus=GPUS) for n in range(NODES)]
    with (
        ServedBroker(folder / "broker") as served,
        FakeFleet(served.url, served.token, nodes, folder / "agents", processes=True),
        AirflowStandalone(folder / "home", folder / "dags", environment(served)) as airflow,
    ):
        world = World(airflow, served, folder)
        world.standalones_own()
        for dag in ("patient", "hurried"):
            airflow.wait_for_dag(dag)
        yield world
    assert airflow._family() == set()


def environment(served: ServedBroker) -> dict[str, str]:
    """Tasks are a team's; the API server is an operator."""
    tasks = served.client.make_token("tasks", Role.SUBMITTER, team="research")
    return {
        "AIRFLOW_CONN_MOORAGE_DEFAULT": json.dumps({"conn_type": "moorage", "host": served.url, "password": tasks}),
        "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": str(MISSED_S),
        "MOORAGE_URL": served.url,
        "MOORAGE_TOKEN": served.client.make_token("page", Role.OPERATOR),
    }


def test_a_triggerer_is_killed(world: World) -> None:
    """Another one goes on watching the same lease."""
    world.want(1)
    run = world.start()
    before, killed = run.lease, run.holder()
    world.kill(killed)
    world.add_triggerer()
    eventually(lambda: run.triggerer not in (None, killed.job), TAKEN_OVER_S, "the other has the trigger")
    run.wait_until_heard()
    run.assert_undisturbed(before)
    run.finish()


def test_a_triggerer_that_stood_still_frees_nothing(world: World) -> None:
    """It finds its trigger gone and takes that for a person's act, while another triggerer watches the lease."""
    world.want(2)
    run = world.start()
    before, stopped = run.lease, run.holder()
    (other,) = (known for known in world.triggerers if known is not stopped)
    stopped.signal(signal.SIGSTOP)
    try:
        eventually(lambda: run.triggerer == other.job, TAKEN_OVER_S, "the other has the trigger")
        eventually(lambda: "Lease" in run.trigger_log(other), 30, "the other watches")
        run.wait_until_heard()
    finally:
        stopped.signal(signal.SIGCONT)
    wrongly = told_off(run, stopped)
    quiet_until = time.monotonic() + Policy().unwatch_grace_s + 5
    while time.monotonic() < quiet_until:
        run.assert_undisturbed(before)
        time.sleep(0.3)
    run.finish()
    assert stopped.process.is_running()
    if not wrongly:
        pytest.skip("all held, but Airflow did not call on_kill on the triggerer that stood still")


def told_off(run: Run, triggerer: Triggerer) -> bool:
    """Whether the triggerer, going on, called `on_kill`, which then told the broker so without an error."""
    until = time.monotonic() + 30
    while "trigger completed" not in run.trigger_log(triggerer):
        if time.monotonic() > until:
            return False
        time.sleep(0.2)
    log = run.trigger_log(triggerer)
    assert "on_kill() raised" not in log, log
    assert "on_kill() timed out" not in log, log
    return "invoking on_kill" in log


def test_a_dag_runs_time_out_stops_the_lease(world: World) -> None:
    world.want(1)
    run = world.start("hurried")
    began = datetime.fromisoformat(world.airflow.get(f"/dags/hurried/dagRuns/{run.id}")["start_date"])
    stop_at = run.lease.lease.request.stop_at
    assert stop_at is not None
    assert (stop_at - began).total_seconds() == pytest.approx(30, abs=0.01)
    assert world.airflow.wait_for_run("hurried", run.id, 60) == "failed"
    run.wait_until_stopped(SOON_S)
    ended_at = run.lease.lease.ended_at
    assert ended_at is not None
    assert (ended_at - stop_at).total_seconds() < SOON_S


def test_the_whole_of_airflow_is_killed(world: World) -> None:
    """Started again on its home, it goes on with the same lease."""
    world.want(1)
    run = world.start()
    before, killed = run.lease, run.triggerer
    world.airflow.kill()
    assert world.airflow.triggerers() == []
    run.assert_undisturbed(before)
    world.airflow.start()
    world.standalones_own()
    eventually(lambda: run.triggerer not in (None, killed), TAKEN_OVER_S, "the new triggerer has the trigger")
    run.wait_until_heard()
    run.assert_undisturbed(before)
    run.finish()


@pytest.mark.parametrize("watched", [True, False], ids=["killed while it watches", "none from the start"])
def test_marked_failed_without_a_triggerer(world: World, watched: bool) -> None:
    """The API server lets the lease go."""
    world.want(1 if watched else 0)
    run = world.start(watched=watched)
    world.want(0)
    world.airflow.mark(run.dag, run.id, TASK, "failed")
    run.wait_until_stopped(SOON_S)
    assert world.airflow.wait_for_run(run.dag, run.id, 30) == "failed"


def test_marked_failed_while_its_triggerer_stands_still(world: World) -> None:
    """The API server lets the lease go as soon as the last poll of a host that never comes back is over."""
    world.want(1)
    run = world.start()
    stopped = run.holder()
    stopped.signal(signal.SIGSTOP)
    try:
        world.airflow.mark(run.dag, run.id, TASK, "failed")
        run.wait_until_stopped(2 * SOON_S + POLL_S)
    finally:
        world.kill(stopped)
