"""A long-lived Ray head, the hook, a broker and agents with fake GPUs: all real processes.

::

    r1: n1 [0123]  n2 [0123]      r2: n3 [0123]  n4 [0123]
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from moorage.api.values import LeaseView
from moorage.client import Client
from moorage.core.lease import LeaseState
from moorage.ray.autoscaler import long_lived_head, own_ip
from moorage.ray.cluster import cluster_env, free_ports
from moorage.testing.fleet import FakeFleet, FakeNode

pytestmark = [pytest.mark.system, pytest.mark.timeout(280)]
GANG = Path(__file__).parents[2] / "ray_jobs" / "gang.py"
NODES = [FakeNode(name=f"n{i}", labels={"moorage.io/rack": "r1" if i < 3 else "r2"}) for i in range(1, 5)]


class Stage:
    """What the tests drive and look at."""

    def __init__(self, folder: Path, url: str, token: str) -> None:
        self.folder, self.url, self.client = folder, url, Client(url, token)
        self.ray_token = folder / "ray.token"
        with os.fdopen(os.open(self.ray_token, os.O_CREAT | os.O_WRONLY, 0o600), "w") as file:
            file.write(secrets.token_hex(32))
        self.env = cluster_env(os.environ, self.ray_token, None)
        self.env.pop("PYTHONDONTWRITEBYTECODE", None)
        (folder / "token").write_text(token)
        self._groups: list[int] = []
        ip = own_ip()
        port = free_ports(ip, 1)[0]
        self.address = f"{ip}:{port}"
        # Ray's sockets need a short path.
        self.temp = Path(tempfile.mkdtemp(prefix="mra", dir="/tmp"))
        self.port, self.ip = port, ip

    def begin(self) -> None:
        argv, env = long_lived_head(self.port, self.temp, "head-0", self.ray_token, ip=self.ip)
        env.pop("PYTHONDONTWRITEBYTECODE", None)
        head = self.start("head", argv, env)
        assert head.wait(90) == 0, self.log("head")
        self.hook = self.start_hook()

    def start(self, name: str, argv: list[str], env: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                argv, env=dict(env or self.env), stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )
        self._groups.append(process.pid)
        return process

    def start_hook(self) -> subprocess.Popen[bytes]:
        words = ["ray-autoscaler", f"--address={self.address}", "--head-id=head-0", "--idle-timeout=4"]
        where = [f"--url={self.url}", f"--token-file={self.folder / 'token'}", f"--ray-token-file={self.ray_token}"]
        return self.start("hook", [sys.executable, "-m", "moorage.cli", *words, *where])

    def gang(self, name: str, **options: object) -> subprocess.Popen[bytes]:
        words = [f"--{key}={value}" for key, value in options.items()]
        return self.start(name, [sys.executable, str(GANG), f"--address={self.address}", *words])

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def leases(self, live: bool = True) -> list[LeaseView]:
        """Oldest first."""
        return list(reversed(self.client.find({}, live=live)))

    def racks(self, view: LeaseView) -> set[str]:
        return {"r1" if a.node in ("n1", "n2") else "r2" for a in view.lease.allocations}

    def held(self) -> int:
        return sum(use.lease is not None for node in self.client.fleet().nodes for use in node.gpus)

    def until(self, what: str, holds: Callable[[], object], seconds: float = 90) -> float:
        began = time.monotonic()
        while not holds():
            logs = "\n".join(f"== {path.name}\n{path.read_text()[-3000:]}" for path in self.folder.glob("*.log"))
            assert time.monotonic() - began < seconds, f"not within {seconds} s: {what}\n{logs}"
            time.sleep(0.1)
        return time.monotonic() - began

    def close(self) -> None:
        for group in self._groups:
            try:
                os.killpg(group, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self.client.close()
        shutil.rmtree(self.temp, ignore_errors=True)


class BrokerProcess:
    """`moorage serve` on SQLite, which can be killed and started again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_ports("127.0.0.1", 1)[0]
        self.url = f"http://127.0.0.1:{self.port}"
        self.start()
        self.token = (folder / "token").read_text().strip()

    def start(self) -> None:
        ready = self.folder / "url"
        ready.unlink(missing_ok=True)
        words = [f"--database=sqlite:///{self.folder / 'moorage.db'}", f"--port={self.port}", f"--url-file={ready}"]
        argv = [sys.executable, "-m", "moorage.cli", "serve", *words, f"--first-token-file={self.folder / 'token'}"]
        with (self.folder / "serve.log").open("ab") as log:
            self.process = subprocess.Popen(argv, stdout=log, stderr=subprocess.STDOUT)
        limit = time.monotonic() + 30
        while not ready.exists():
            assert self.process.poll() is None, (self.folder / "serve.log").read_text()
            assert time.monotonic() < limit, (self.folder / "serve.log").read_text()
            time.sleep(0.05)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(10)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    made = BrokerProcess(tmp_path_factory.mktemp("broker"))
    yield made
    made.kill()


@pytest.fixture(scope="module")
def fleet(served: BrokerProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeFleet]:
    with FakeFleet(served.url, served.token, NODES, tmp_path_factory.mktemp("agents"), processes=True) as made:
        yield made


@pytest.fixture(scope="module")
def stage(served: BrokerProcess, fleet: FakeFleet, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    made = Stage(tmp_path_factory.mktemp("stage"), served.url, served.token)
    try:
        made.begin()
        yield made
    finally:
        made.close()


@pytest.mark.path
def test_a_gang_comes_whole_into_one_rack_and_is_given_back_when_idle(stage: Stage) -> None:
    gang = stage.gang("first", seconds=1)
    stage.until("the gang is done", lambda: gang.poll() is not None)
    said = stage.log("first")
    assert gang.returncode == 0, said
    bundles = [line for line in said.splitlines() if line.startswith("bundle ")]
    assert len(bundles) == 2
    assert len({line.split("rack ")[1][:2] for line in bundles} & {"r1", "r2"}) == 1, said
    devices = [(line.split("node ")[1][:2], line.split("GPUs ")[1].strip()) for line in bundles]
    assert len(set(devices)) == 2
    assert all(len(gpus.split(",")) == 2 for _, gpus in devices)
    (view,) = stage.leases(live=False)
    assert view.lease.owner["ray.placement_group"] in said
    assert stage.racks(view) <= {"r1"} or stage.racks(view) <= {"r2"}
    stage.until("nothing is left", lambda: not stage.leases() and stage.held() == 0)
    (over,) = stage.leases(live=False)
    assert (over.lease.state, over.lease.epoch) == (LeaseState.ENDED, 1)


def test_a_gang_waits_its_turn_while_hook_and_broker_are_killed(stage: Stage, served: BrokerProcess) -> None:
    """A takes r1, B takes r2; C waits for a rack, and does not slip onto the nodes of the others."""
    names = ["a", "b", "c"]
    before = len(stage.leases(live=False))
    gangs = []
    for name in names:
        gangs.append(stage.gang(name, gpus=4, seconds=6))
        stage.until(f"{name} is asked for", lambda: len(stage.leases(live=False)) == before + len(gangs))
    stage.until("A and B are granted", lambda: [x.lease.state.active for x in stage.leases()][:2] == [True, True])
    waits = stage.leases()[-1].lease
    assert waits.state is LeaseState.QUEUED
    os.killpg(stage.hook.pid, signal.SIGKILL)
    stage.hook.wait(10)
    served.kill()
    stage.hook = stage.start_hook()
    stage.until("the hook says that nobody answers", lambda: "the broker does not serve us" in stage.log("hook"))
    served.start()
    for name, gang in zip(names, gangs, strict=True):
        stage.until(f"{name} is done", lambda gang=gang: gang.poll() is not None, 150)
        assert gang.returncode == 0, stage.log(name)
    made = stage.leases(live=False)[before:]
    assert len(made) == 3, [x.lease.owner for x in made]
    assert [len(stage.racks(x)) for x in made] == [1, 1, 1]
    assert {x.lease.epoch for x in made} == {1}
    stage.until("nothing is left", lambda: not stage.leases() and stage.held() == 0)


def test_what_can_never_fit_is_said_to_the_driver_and_withdrawn(stage: Stage) -> None:
    before = len(stage.leases(live=False))
    gang = stage.gang("never", bundles=9, gpus=4)
    stage.until("the driver is told", lambda: "Moorage cannot serve" in stage.log("never"))
    assert len(stage.leases(live=False)) == before
    os.killpg(gang.pid, signal.SIGKILL)
    gang.wait(10)


def test_a_lost_node_is_replaced_for_its_group(stage: Stage, fleet: FakeFleet) -> None:
    """The group's work fails on the lost node; the lease is made whole, without a second one."""
    gang = stage.gang("hurt", gpus=3, seconds=60)
    stage.until("the gang is complete", lambda: "the gang is complete" in stage.log("hurt"))
    (view,) = stage.leases()
    lost = view.lease.live[0].node
    fleet.take(lost)
    stage.client.lose(lost, "test-lose")
    fleet.start(lost)

    def whole() -> bool:
        live = [a for a in stage.leases()[0].lease.live if a.state.value == "held"]
        return len(live) == 2 and {a.id for a in live} != {a.id for a in view.lease.live}

    stage.until("a raylet replaces the lost one", whole)
    assert [x.lease.id for x in stage.leases()] == [view.lease.id]
    os.killpg(gang.pid, signal.SIGKILL)
    gang.wait(10)
    stage.until("nothing is left", lambda: not stage.leases() and stage.held() == 0)


def test_plain_tasks_get_gpus_too_and_are_told_of_the_helper(stage: Stage) -> None:
    code = (
        "import ray, sys; ray.init(sys.argv[1]); f = ray.remote(num_gpus=1)(lambda: ray.get_gpu_ids());"
        "print('ran on', sorted(sum(ray.get([f.remote(), f.remote()]), [])))"
    )
    task = stage.start("task", [sys.executable, "-c", code, stage.address])
    stage.until("the tasks are done", lambda: task.poll() is not None)
    assert task.returncode == 0, stage.log("task")
    assert "ran on" in stage.log("task")
    assert "moorage.ray.placement_group" in stage.log("task") + stage.log("hook")
    owners = [x.lease.owner for x in stage.leases(live=False)]
    assert any(owner.get("ray.class") == "shared" for owner in owners)
    stage.until("nothing is left", lambda: not stage.leases() and stage.held() == 0)
