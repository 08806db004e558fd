"""One lease's own Ray cluster on two agents of one host, told by a scripted broker; real raylets, fake GPUs.

agent a: l1.0 head + driver, l1.1 raylet on GPUs 1,3        agent b: l1.2 raylet on GPU 2
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from moorage.agent import processes
from moorage.api.values import Order, TaskPhase, Want
from moorage.core.job import DoneWhen, Job, JobKind
from moorage.core.lease import AllocationRole
from moorage.ray import cluster
from moorage.testing.scripted import ScriptedBroker, ScriptedServer

pytestmark = [pytest.mark.system, pytest.mark.path, pytest.mark.timeout(280)]

DRIVER = """
import json, os, sys, time
import ray
from shared import where
ray.init(log_to_driver=True, logging_level="ERROR")

@ray.remote(num_cpus=0)
def look():
    from shared import where
    print("printed by a worker")
    return where()

def on(allocation, gpus):
    options = {"num_gpus": gpus, "label_selector": {"moorage.io/allocation": allocation}}
    return ray.get(look.options(**options).remote(), timeout=60)

labels = {node["Labels"].get("moorage.io/allocation"): node["Labels"] for node in ray.nodes()}
print(json.dumps({"head": where(), "l1.1": on("l1.1", 2), "l1.2": on("l1.2", 1), "labels": labels}), flush=True)
while not os.path.exists(os.environ["GO"] + "1"):
    time.sleep(0.05)

@ray.remote(num_cpus=0, num_gpus=1, label_selector={"moorage.io/allocation": "l1.2"})
class Busy:
    def where(self):
        return where()

busy = Busy.remote()  # An idle raylet would leave as soon as it is drained.
print(json.dumps({"again": ray.get(busy.where.remote(), timeout=60)}), flush=True)
said = False
while not os.path.exists(os.environ["GO"] + "2"):
    time.sleep(0.05)
    if not said and ray._private.state.state.get_draining_nodes():
        said = True
        print(json.dumps({"draining": list(ray._private.state.state.get_draining_nodes().values())}), flush=True)
open(os.environ["MOORAGE_MARKER"], "w").write('{"ok": true}')
sys.exit(0)
"""
SHARED = """
import os

def where():
    devices = os.environ.get("CUDA_VISIBLE_DEVICES")
    return {"devices": sorted(devices.split(",")), "allocation": os.environ.get("MOORAGE_ALLOCATION"),
            "url": os.environ.get("MOORAGE_URL")}
"""


@pytest.fixture
def homes(tmp_path: Path) -> Iterator[dict[str, Path]]:
    made = {name: (tmp_path / name).resolve() for name in "ab"}
    for folder in made.values():
        folder.mkdir()
    yield made
    left = of(*made.values())
    for one in left:
        one.process.kill()
    shutil.rmtree(cluster.cluster_folder("l1", 1), ignore_errors=True)
    assert [(one.pid, one.name) for one in left] == []


@pytest.fixture
def agents(homes: dict[str, Path]) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    """Ended before their jobs are looked for."""
    made: dict[str, subprocess.Popen[bytes]] = {}
    yield made
    for agent in made.values():
        agent.kill()
        agent.wait()


def of(*homes: Path) -> list[processes.Seen]:
    """Every process that these agents started."""
    seen = processes.scan()
    return [
        one
        for home in homes
        for allocation in processes.allocations(seen, str(home))
        for one in processes.family(seen, str(home), allocation)
    ]


def raylets(home: Path) -> set[int]:
    return {one.pid for one in of(home) if one.name == "raylet"}


def test_a_lease_has_a_ray_cluster_of_its_own(
    broker: ScriptedBroker,
    server: ScriptedServer,
    homes: dict[str, Path],
    make_zip: Callable[[Mapping[str, str]], bytes],
    until: Callable[..., None],
    agents: dict[str, subprocess.Popen[bytes]],
    tmp_path: Path,
) -> None:
    def start(name: str) -> None:
        agents[name] = server.start(
            homes[name] / "agent.log",
            url="http://127.0.0.1:1",
            node=name,
            state_dir=str(homes[name]),
            fake_gpus=4,
            labels={"moorage.io/rack": "r1"},
        )

    def restart(name: str) -> None:
        """kill -9, and the next one: what runs must be adopted."""
        before = broker.reports[name].incarnation
        agents[name].kill()
        agents[name].wait()
        start(name)
        broker.wait(name, lambda r: r.incarnation != before, 20)

    code = broker.put_code(make_zip({"driver.py": DRIVER, "shared.py": SHARED}))
    job = Job(
        kind=JobKind.RAY,
        entrypoint=("python", "driver.py"),
        code=code,
        done_when=DoneWhen.MARKER,
        env={"GO": str(tmp_path / "go")},
        ray_labels={"moorage.io/gang": "g1"},
    )
    head = Order(
        allocation="l1.0",
        lease="l1",
        epoch=1,
        role=AllocationRole.HEAD,
        team="t",
        gpus=(),
        want=Want.RUN,
        job=job,
        env={"MOORAGE_URL": "http://broker"},
        ray_token="5" * 64,
    )
    one = replace(head, allocation="l1.1", role=AllocationRole.WORKER, gpus=(1, 3))
    two = replace(head, allocation="l1.2", role=AllocationRole.WORKER, gpus=(2,))
    broker.say("a", head, one)
    broker.say("b", two)
    start("a")
    start("b")

    # The head comes up, then raylets that are told where it is, then the driver.
    address = broker.wait_task("a", "l1.0", lambda t: t.address is not None, 90).address
    one, two = replace(one, head=address), replace(two, head=address)
    broker.say("b", two)
    broker.say("a", head, one)
    broker.wait_task("a", "l1.1", lambda t: t.phase is TaskPhase.RUNNING, 90)
    broker.wait_task("b", "l1.2", lambda t: t.phase is TaskPhase.RUNNING, 90)
    head = replace(head, driver=True)
    broker.say("a", head, one)
    until(lambda: '"labels"' in broker.log("l1", 1), 90, "the driver's first line")
    said = json.loads(next(line for line in broker.log("l1", 1).splitlines() if line.startswith("{")))
    assert said["head"] == {"devices": [""], "allocation": "l1.0", "url": "http://broker"}
    assert said["l1.1"] == {"devices": ["1", "3"], "allocation": "l1.1", "url": "http://broker"}
    assert said["l1.2"] == {"devices": ["2"], "allocation": "l1.2", "url": "http://broker"}
    assert (
        said["labels"]["l1.2"] | {"moorage.io/node": "b", "moorage.io/rack": "r1", "moorage.io/gang": "g1"}
        == (said["labels"]["l1.2"])
    )
    until(lambda: "printed by a worker" in broker.log("l1", 1), 20, "a worker's print in the lease's log")
    folder = cluster.cluster_folder("l1", 1)
    assert folder.is_dir()

    # Both agents are killed; the raylets, the head and the driver do not notice.
    before = {name: raylets(homes[name]) for name in "ab"}
    assert [len(before[name]) for name in "ab"] == [2, 1]
    restart("b")
    restart("a")
    assert {name: raylets(homes[name]) for name in "ab"} == before
    task = broker.wait_task("a", "l1.0", lambda t: t.driver)
    assert (task.phase, task.address) == (TaskPhase.RUNNING, address)
    (tmp_path / "go1").touch()
    until(lambda: '"again"' in broker.log("l1", 1), 60, "a task after the restarts")

    # A drain is told to Ray at once, and ends the raylet at its time.
    by = datetime.now(UTC) + timedelta(seconds=12)
    broker.say("b", replace(two, want=Want.DRAIN, drain_by=by))
    until(lambda: '"draining"' in broker.log("l1", 1), 11, "Ray's word that the node drains")
    draining = json.loads(next(line for line in broker.log("l1", 1).splitlines() if "draining" in line))["draining"]
    assert draining == [int(by.timestamp() * 1000)]
    assert raylets(homes["b"]) == before["b"]
    ended = broker.wait_task("b", "l1.2", lambda t: t.phase is TaskPhase.EXITED, 20)
    assert datetime.now(UTC) >= by
    assert ended.evidence is not None
    assert ended.evidence.agent_error == ""
    assert of(homes["b"]) == []
    assert folder.is_dir(), "the head still uses it"

    # The driver finishes; the head goes with it, and the other raylet when it is told.
    (tmp_path / "go2").touch()
    done = broker.wait_task("a", "l1.0", lambda t: t.phase is TaskPhase.EXITED, 30)
    assert done.evidence is not None
    assert (done.evidence.exit_code, done.evidence.marker) == (0, '{"ok": true}')
    broker.say("a", replace(head, want=Want.STOP), replace(one, want=Want.STOP))
    broker.wait_gone("a", "l1.1", 20)
    broker.wait_gone("a", "l1.0", 20)
    assert of(*homes.values()) == []
    assert not folder.exists()
    for agent in agents.values():
        agent.send_signal(signal.SIGTERM)
        assert agent.wait(10) == 0
