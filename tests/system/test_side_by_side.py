"""Three Ray clusters on one fleet: killing parts of one does nothing to the others, and starts nothing twice.

::

    A  train_digits.py, 1 -> 3 -> 2 workers; its agents, its driver and its Ray head are killed in turn
    B  another training, 2 workers, until it is told to end
    C  a long-lived Ray head with `moorage ray-autoscaler`, and a plain task that wants one GPU
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from moorage.agent.names import ALLOCATION_MARK, HOME_MARK, NODE_MARK
from moorage.api.ids import new_id
from moorage.api.values import EventKind, LeaseView
from moorage.cli.demo import hook
from moorage.cli.demo.parts import Part
from moorage.core.job import Phase
from moorage.core.lease import LeaseState, Outcome
from moorage.ray.demand import HEAD

if TYPE_CHECKING:
    from conftest import Fleet

pytestmark = [pytest.mark.system, pytest.mark.timeout(540)]

#: A: enough steps to be killed in the middle three times.
EPOCHS = "22"
#: All that the three may use: their GPUs and heads share hosts.
NODES = ("gpu-b1", "gpu-b2")

#: B: trains until the file of its argument is there; every worker leaves the loop after the same step.
UNTIL_TOLD = """\
import sys
from pathlib import Path

import numpy as np
import train_digits

from moorage.ray import ElasticTrainer


def train_loop(config, job):
    x, y, *_ = train_digits.load(None)
    state = job.restore() or train_digits.fresh(1)
    for batch in job.batches(len(x), epochs=1000, seed=1):
        loss, grads = train_digits.gradients(state["weights"], x[batch.local], y[batch.local])
        told = np.array(float(Path(config["file"]).exists()))
        loss, grads, told = job.all_reduce((loss, grads, told), weight=batch.weight)
        for name, grad in grads.items():
            state["weights"][name] = state["weights"][name] - 0.01 * grad
        job.step(loss=loss, state=lambda: state)
        if told > 0:
            break
    return {"steps": job.steps}


ElasticTrainer(train_loop, config={"file": sys.argv[1]}, workers=2, global_batch=64).fit()
"""

#: C: a task without labels; tells what it sees in one file, and ends once another is there.
PLAIN_TASK = """\
import json, os, sys, time
from pathlib import Path

import ray


@ray.remote(num_gpus=1)
def hold(seen, told):
    here = ray.get_runtime_context().get_node_id()
    labels = next(node["Labels"] for node in ray.nodes() if node["NodeID"] == here)
    found = {"devices": os.environ["CUDA_VISIBLE_DEVICES"], "pid": os.getpid(), "labels": labels}
    Path(seen + ".part").write_text(json.dumps(found))
    os.replace(seen + ".part", seen)
    until = time.monotonic() + 480
    while not os.path.exists(told) and time.monotonic() < until:
        time.sleep(0.2)
    return "done"


ray.init(sys.argv[1])
print(ray.get(hold.options(max_retries=0).remote(*sys.argv[2:])))
"""


@dataclass
class Witness:
    """Looks at the raylets of this test's agents, twice a second: who has which devices, in which process."""

    work: Path
    #: Allocation -> the raylets that were ever seen for it, as (pid, start time).
    raylets: dict[str, set[tuple[int, float]]] = field(default_factory=dict)
    #: What must never be seen.
    wrong: list[str] = field(default_factory=list)
    looks: int = 0

    @contextmanager
    def watching(self) -> Iterator[None]:
        end = threading.Event()

        def watch() -> None:
            while not end.wait(0.5):
                self.look()

        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        try:
            yield
        finally:
            end.set()
            thread.join(10)

    def look(self) -> None:
        owner: dict[tuple[str, str], str] = {}
        for process in psutil.process_iter(["name"]):
            if process.info["name"] != "raylet":
                continue
            try:
                env, key = process.environ(), (process.pid, process.create_time())
            except (psutil.Error, OSError):
                continue
            allocation = env.get(ALLOCATION_MARK)
            if allocation is None or not env.get(HOME_MARK, "").startswith(f"{self.work}/"):
                continue
            self.raylets.setdefault(allocation, set()).add(key)
            for gpu in filter(None, env["CUDA_VISIBLE_DEVICES"].split(",")):
                other = owner.setdefault((env[NODE_MARK], gpu), allocation)
                if other != allocation:
                    self.wrong.append(f"GPU {gpu} of {env[NODE_MARK]}: {other} and {allocation}")
        self.looks += 1


@dataclass(frozen=True)
class Untouched:
    """What killing parts of another lease must not change."""

    epoch: int
    allocations: tuple[tuple[str, str, str], ...]
    processes: tuple[tuple[int, float], ...]
    told: tuple[str, ...]

    @classmethod
    def of(cls, fleet: Fleet, lease: str) -> Untouched:
        view = fleet.get(lease).lease
        processes = (*fleet.processes_of(lease, "gcs_server"), *fleet.processes_of(lease, "raylet/raylet"))
        assert processes, f"{lease} has no Ray"
        kinds = set(EventKind) - {EventKind.PROGRESS}
        return cls(
            epoch=view.epoch,
            allocations=tuple((a.id, a.node, str(a.state)) for a in view.live),
            processes=tuple(sorted((p.pid, p.create_time()) for p in processes)),
            told=tuple(event.sentence for event in fleet.journal(lease, *kinds)),
        )


@dataclass
class Demand:
    """C: the head, its hook and the plain task."""

    address: str
    token: Path
    task: Part
    seen: Path
    told: Path

    def lease(self, fleet: Fleet) -> LeaseView | None:
        return next((view for view in fleet.client.find({}) if HEAD in view.lease.owner), None)


@contextmanager
def demand(fleet: Fleet) -> Iterator[Demand]:
    with hook.ray_folder() as folder:
        address, token = hook.start_head(fleet.parts, fleet.work, folder)
        hook.start_autoscaler(fleet.parts, fleet.work, fleet.broker, address, token)
        script, seen, told = (fleet.work / name for name in ("plain.py", "plain.seen", "plain.told"))
        script.write_text(PLAIN_TASK)
        argv = [sys.executable, str(script), address, str(seen), str(told)]
        env = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)}
        part = Part("plain task", argv, fleet.work / "plain.log", lambda: None, env, expendable=True)
        yield Demand(address, token, fleet.parts.start(part), seen, told)


def trains_with(fleet: Fleet, lease: str, workers: int, steps: int = 10, limit_s: float = 90) -> int:
    """Wait until it has done `steps` steps with so many workers; the newest step."""
    first: list[int] = []

    def enough() -> bool:
        view = fleet.get(lease).lease
        assert view.state is not LeaseState.ENDED, view.reason
        progress = view.progress
        if progress is None or progress.workers != workers or progress.phase is not Phase.TRAINING:
            return False
        first.append(progress.step or 0)
        return first[-1] >= first[0] + steps

    fleet.eventually(enough, limit_s, f"{steps} steps with {workers} workers: {fleet.get(lease).lease.reason}")
    return first[-1]


def kill(processes: list[psutil.Process]) -> None:
    assert processes
    for process in processes:
        process.kill()


def kill_agents(fleet: Fleet, lease: str) -> None:
    """Each agent in turn, until the broker misses it; training goes on. What it keeps is not only of this lease."""
    for node in NODES:
        part = fleet.part(node)
        fleet.kill(part)
        fleet.eventually(lambda node=node: condition(fleet, node) != "ready", 30, f"{node} is missed")
        trains_with(fleet, lease, 2, steps=5)
        restarts = agent_restarts(fleet, node)
        fleet.restart(part)
        fleet.eventually(lambda node=node, n=restarts: agent_restarts(fleet, node) > n, 30, f"{node} reports again")
        fleet.eventually(lambda node=node: condition(fleet, node) == "ready", 30, f"{node} is ready again")
        trains_with(fleet, lease, 2, steps=5)


def condition(fleet: Fleet, node: str) -> str:
    return next(view.condition for view in fleet.client.fleet().nodes if view.node.id == node)


def agent_restarts(fleet: Fleet, node: str) -> int:
    ((count,),) = fleet.rows(
        f"SELECT count(*) FROM journal WHERE node = '{node}' AND sentence LIKE '%restarted its agent'"
    )
    return int(count)


def refused(fleet: Fleet, lease: str, auth: dict[str, str]) -> None:
    """Somebody with another token, or none, cannot drain a raylet of the lease."""
    (server,) = fleet.processes_of(lease, "gcs_server")
    words = " ".join(server.cmdline())
    ip, port = (words.partition(f"--{name}=")[2].split()[0] for name in ("node-ip-address", "gcs_server_port"))
    worker = next(a for a in fleet.get(lease).lease.live if a.gpus)
    argv = [sys.executable, "-m", "moorage.ray.drain", f"--address={ip}:{port}", f"--allocation={worker.id}"]
    env = {**os.environ, **auth}
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    later = f"--deadline-ms={int(1000 * (time.time() + 600))}"
    tried = subprocess.run([*argv, later], env=env, capture_output=True, text=True, timeout=60, check=False)
    assert tried.returncode not in (0, 3), tried.stdout + tried.stderr
    assert "auth" in (tried.stdout + tried.stderr).lower()


def kill_driver(fleet: Fleet, lease: str) -> None:
    kill(fleet.processes_of(lease, "train_digits.py"))


def kill_ray_head(fleet: Fleet, lease: str) -> None:
    kill(fleet.processes_of(lease, "gcs_server"))


def start_trainings(fleet: Fleet, told: Path) -> tuple[str, str]:
    """Leases A and B, both training."""
    script = {"until_told.py": UNTIL_TOLD}
    b = fleet.train(str(told), workers=(2, 2), name="b", script="until_told.py", more=script).lease.id
    a = fleet.train("--epochs", EPOCHS, workers=(1, 1), name="a").lease.id
    trains_with(fleet, b, 2)
    trains_with(fleet, a, 1)
    return a, b


def resize(fleet: Fleet, lease: str) -> None:
    """1 -> 3 -> 2, as its owner says."""
    for workers in (3, 2):
        fleet.client.resize(lease, (workers, workers), new_id())
        trains_with(fleet, lease, workers)


def look_at_task(fleet: Fleet, c: Demand) -> tuple[str, int]:
    """The lease of C's task, which sees exactly that lease's GPU; and the task's pid."""
    fleet.eventually(c.seen.exists, 60, "the plain task runs")
    seen = json.loads(c.seen.read_text())
    view = c.lease(fleet)
    assert view is not None
    (raylet,) = view.lease.live
    assert seen["labels"]["moorage.io/allocation"] == raylet.id
    assert seen["devices"] == ",".join(map(str, raylet.gpus))
    return view.lease.id, int(seen["pid"])


def check_witnesses(fleet: Fleet, witness: Witness, a: str, leases: tuple[str, ...]) -> None:
    """Nothing was started twice, and nothing but what was asked for happened to A."""
    assert not witness.wrong
    assert witness.looks > 50
    assert {allocation: pids for allocation, pids in witness.raylets.items() if len(pids) != 1} == {}
    for lease in leases:
        told = fleet.journal(lease, EventKind.ALLOCATION)
        held = [event.facts["allocation"] for event in told if event.facts["state"] == "held"]
        assert held
        assert len(held) == len(set(held)), held
    resizes = [(event.facts["from"], event.facts["to"]) for event in fleet.journal(a, EventKind.RESIZED)]
    assert resizes == [(1, 3), (3, 2)]
    assert len(fleet.journal(a, EventKind.RETRIED)) == 2


def test_clusters_side_by_side(fleet: Fleet) -> None:
    witness = Witness(fleet.work)
    told = fleet.work / "b.told"
    for node in ("gpu-a1", "gpu-a2"):
        fleet.client.cordon(node, on=True, client_id=new_id())
    with demand(fleet) as c, witness.watching():
        a, b = start_trainings(fleet, told)
        resize(fleet, a)
        demanded, task = look_at_task(fleet, c)
        refused(fleet, a, {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(c.token)})
        refused(fleet, a, {"RAY_AUTH_MODE": "disabled"})
        others = {lease: Untouched.of(fleet, lease) for lease in (b, demanded)}
        on_b1 = {x.lease for lease in (a, b, demanded) for x in fleet.get(lease).lease.live if x.node == "gpu-b1"}
        assert on_b1 == {a, b, demanded}, "one agent keeps something of each"

        for killing, epoch in ((kill_agents, 1), (kill_driver, 2), (kill_ray_head, 3)):
            killing(fleet, a)
            fleet.eventually(lambda epoch=epoch: fleet.get(a).lease.epoch == epoch, 60, f"epoch {epoch}")
            trains_with(fleet, a, 2)
            assert {lease: Untouched.of(fleet, lease) for lease in others} == others
            assert psutil.pid_exists(task)
            fleet.assert_never_granted_twice()

        told.touch()
        c.told.touch()
        ended = [fleet.wait_until_ended(lease, 120).lease for lease in (a, b, demanded)]
        assert [(x.outcome, x.epoch) for x in ended] == [(Outcome.SUCCEEDED, n) for n in (3, 1, 1)], ended
        assert json.loads(ended[0].result or "{}")["accuracy"] > 0.9
        assert c.task.process is not None
        assert c.task.process.wait(30) == 0, c.task.log.read_text()
        fleet.assert_nothing_leaked()
    check_witnesses(fleet, witness, a, (a, b, demanded))
