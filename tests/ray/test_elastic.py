"""The elastic trainer on a real Ray cluster of its own, steered by a scripted broker over HTTP.

::

    FakeBroker  <--renew--  driver + controller (head)
                            raylet a (GPU 0)  raylet b (GPU 1)  raylet c (GPU 2)   <- started and killed by the test
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from moorage.api.codec import build, dumps
from moorage.api.values import Held, Renewal
from moorage.core.job import Phase, Progress
from moorage.ray.cluster import (
    ALLOCATION_LABEL,
    NODE_LABEL,
    Daemons,
    cluster_env,
    drain_command,
    free_ports,
    head_command,
    raylet_command,
)
from moorage.ray.trainer import EXIT_STOPPED

JOBS = Path(__file__).parents[2] / "ray_jobs"
LEASE = "0193-lease"

SCRIPT = """
import json, os, sys, time
import train_digits
from moorage.ray import ElasticTrainer

def train_loop(config, job):
    step = job.step
    def logged(**said):
        with open({log!r}, "a") as file:
            file.write(json.dumps(dict(t=time.time(), rank=job.rank, step=job.steps + 1, world=job.world_size,
                loss=said["loss"], devices=os.environ.get("CUDA_VISIBLE_DEVICES"))) + "\\n")
        if job.steps + 1 == config.get("fail_at"):
            raise ValueError("the loop is broken here")
        step(**said)
    job.step = logged
    return train_digits.train_loop(config, job)

config = dict(data=None, epochs=int(sys.argv[1]), rate=0.05, seed=0)
if len(sys.argv) > 2:
    config["fail_at"] = int(sys.argv[2])
print(ElasticTrainer(train_loop, config=config, workers=(1, 4), global_batch=64, checkpoint_every_s=5).fit())
"""


def eventually(what: Callable[[], Any], limit_s: float, say: str) -> Any:
    until = time.monotonic() + limit_s
    while time.monotonic() < until:
        found = what()
        if found:
            return found
        time.sleep(0.05)
    raise AssertionError(f"not within {limit_s:.0f} s: {say}")


class FakeBroker:
    """Answers `renew` with what the test says, and remembers what it heard."""

    def __init__(self) -> None:
        self.answer = Renewal(hold=(), target_revision=0)
        self.heard: list[tuple[float, Progress]] = []
        self.epoch = 1
        broker = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                said = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                stale = said["epoch"] != broker.epoch
                body = json.dumps({"detail": "attempt is over"}).encode() if stale else dumps(broker.answer)
                if not stale:
                    broker.heard.append((time.time(), build(Progress, said["progress"])))
                self.send_response(409 if stale else 200)
                self.send_header("Content-Type", "application/problem+json" if stale else "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args: Any) -> None:
                pass

        self.handler = Handler
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.server.server_port
        self._serve()

    def _serve(self) -> None:
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()

    def reopen(self) -> None:
        self.server = ThreadingHTTPServer(("127.0.0.1", self.port), self.handler)
        self._serve()

    def target(self, *held: Held, why: str = "grow", by: float | None = None) -> int:
        revision = self.answer.target_revision + 1
        when = None if by is None else datetime.fromtimestamp(by, UTC)
        self.answer = Renewal(hold=held, target_revision=revision, why=why, by=when)
        return revision

    @property
    def last(self) -> Progress:
        return self.heard[-1][1]


class Lease:
    """A head, raylets and a driver as an agent starts them, ended by process group."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.broker = FakeBroker()
        self.log = folder / "steps.jsonl"
        self.marker = folder / "marker.json"
        self.token = folder / "token"
        self.token.write_text("0" * 64)
        self.token.chmod(0o600)
        # Socket paths below it are limited to about 100 bytes.
        self.ray = Path("/tmp") / f"mrt-{os.getpid()}-{time.time_ns() % 100000}"
        self.groups: dict[str, subprocess.Popen[bytes]] = {}
        self.driver: subprocess.Popen[bytes] | None = None
        # A folder of its own, and workers start elsewhere: modules beside the script must travel.
        self.code = folder / "code"
        shutil.copytree(JOBS, self.code)
        (self.code / "script.py").write_text(SCRIPT.format(log=str(self.log)))
        self.head()

    def daemons(self, port: int, **labels: str) -> Daemons:
        return Daemons(python=sys.executable, ip="127.0.0.1", labels=labels, agent_port=port, log_monitor=False)

    def env(self, **more: str) -> dict[str, str]:
        own = {k: v for k, v in os.environ.items() if not k.startswith(("MOORAGE_", "RAY_"))}
        own.pop("PYTHONDONTWRITEBYTECODE", None)
        return cluster_env(own, self.token, None) | more

    def spawn(self, name: str, argv: list[str], **more: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(argv, env=self.env(**more), stdout=log, stderr=log, start_new_session=True)

    def start(self, name: str, argv: list[str], **more: str) -> None:
        self.groups[name] = process = self.spawn(name, argv, **more)
        assert process.wait(timeout=90) == 0, (self.folder / f"{name}.log").read_text()[-2000:]

    def head(self) -> None:
        port, client, agent = free_ports("127.0.0.1", 3)
        self.address = f"127.0.0.1:{port}"
        self.start("head", head_command(self.daemons(agent), port=port, client_port=client, folder=self.ray))

    def raylet(self, name: str, gpu: int, node: str | None = None) -> Held:
        (agent,) = free_ports("127.0.0.1", 1)
        daemons = self.daemons(agent, **{ALLOCATION_LABEL: name, NODE_LABEL: node or name})
        self.start(name, raylet_command(daemons, address=self.address, gpus=1, cpus=1), CUDA_VISIBLE_DEVICES=str(gpu))
        return Held(allocation=name, node=node or name, workers=1, gpus=(gpu,), ready=True)

    def kill(self, name: str) -> None:
        try:
            os.killpg(self.groups.pop(name).pid, signal.SIGKILL)
        except ProcessLookupError:
            # A raylet that drains and is idle has ended by itself.
            return

    def drain(self, name: str, deadline: float) -> None:
        argv = drain_command(sys.executable, self.address, name, int(deadline * 1000))
        assert subprocess.run(argv, env=self.env(), timeout=60, check=False).returncode == 0

    def train(self, *args: object, epoch: int = 1, sample_s: float | None = 0.003) -> None:
        more = {
            "RAY_ADDRESS": self.address,
            "MOORAGE_URL": f"http://127.0.0.1:{self.broker.port}",
            "MOORAGE_LEASE": LEASE,
            "MOORAGE_EPOCH": str(epoch),
            "MOORAGE_TOKEN": "t",
            "MOORAGE_STORAGE": str(self.folder / "store"),
            "MOORAGE_MARKER": str(self.marker),
        }
        if sample_s:
            more["MOORAGE_FAKE_SAMPLE_SECONDS"] = str(sample_s)
        argv = [sys.executable, str(self.code / "script.py"), *map(str, args)]
        self.driver = self.groups["driver"] = self.spawn("driver", argv, **more)

    def plain(self, *args: object) -> dict[str, Any]:
        """The same script undisturbed: one worker, no lease."""
        marker = self.folder / "plain.json"
        argv = [sys.executable, str(self.code / "script.py"), *map(str, args)]
        env = self.env(
            RAY_AUTH_MODE="disabled", MOORAGE_MARKER=str(marker), TMPDIR=str(self.folder), RAY_TMPDIR=str(self.ray)
        )
        with (self.folder / "plain.log").open("wb") as log:
            self.groups["plain"] = process = subprocess.Popen(
                argv, env=env, stdout=log, stderr=log, start_new_session=True
            )
            assert process.wait(timeout=120) == 0, self.said("plain")
        found: dict[str, Any] = json.loads(marker.read_text())
        return found

    def said(self, name: str = "driver") -> str:
        return (self.folder / f"{name}.log").read_text()[-6000:]

    def steps(self, rank: int = 0) -> list[dict[str, Any]]:
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [event for event in map(json.loads, lines) if event["rank"] == rank]

    def wait_for_step(self, step: int, limit_s: float = 90) -> None:
        def reached() -> bool:
            assert self.driver is None or self.driver.poll() is None, self.said()
            return any(event["step"] >= step for event in self.steps())

        eventually(reached, limit_s, f"step {step}: {self.said()}")

    def wait_for_use(self, revision: int, names: set[str], limit_s: float = 60) -> Progress:
        def used() -> Progress | None:
            heard = self.broker.last if self.broker.heard else None
            good = heard and heard.target_revision >= revision and set(heard.using) == names
            return heard if good else None

        found: Progress = eventually(used, limit_s, f"use of {names}: {self.broker.heard[-1:]} {self.said()}")
        return found

    def end(self, limit_s: float = 120) -> int:
        assert self.driver is not None
        return self.driver.wait(timeout=limit_s)

    def close(self) -> None:
        for name, process in reversed(self.groups.items()):
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
            finally:
                if name in ("driver", "plain"):
                    process.wait(timeout=10)
        self.broker.close()
        subprocess.run(["rm", "-rf", str(self.ray)], check=True)


@pytest.fixture
def lease(tmp_path: Path) -> Iterator[Lease]:
    made = Lease(tmp_path)
    yield made
    made.close()


def repeated(steps: list[dict[str, Any]]) -> list[int]:
    return sorted(step for step, times in Counter(event["step"] for event in steps).items() if times > 1)


def pause(steps: list[dict[str, Any]], world: int) -> float:
    """Seconds between the last step before the first change to `world` workers and the first after it."""
    at = next(i for i, event in enumerate(steps) if event["world"] == world and steps[i - 1]["world"] != world)
    return float(steps[at]["t"] - steps[at - 1]["t"])


@pytest.mark.system
@pytest.mark.path
@pytest.mark.timeout(400)
def test_grows_and_shrinks_without_repeating_a_step(lease: Lease) -> None:
    """1 -> 3 -> 2 workers, the broker away in between: the same losses and result as in one piece on one worker."""
    a = lease.raylet("L.1", 3, node="n1")
    lease.broker.target(a)
    lease.train(12)
    lease.wait_for_step(10)
    b, c = lease.raylet("L.2", 1, node="n1"), lease.raylet("L.3", 0, node="n2")
    grown = lease.broker.target(a, b, c)
    grew = lease.wait_for_use(grown, {"L.1", "L.2", "L.3"})
    assert grew.workers == 3
    lease.broker.close()
    far = max(event["step"] for event in lease.steps()) + 40
    lease.wait_for_step(far)
    lease.broker.reopen()
    shrunk = lease.broker.target(a, c, why="shrink")
    lease.wait_for_use(shrunk, {"L.1", "L.3"})
    lease.kill("L.2")
    assert lease.end() == 0, lease.said()

    steps = lease.steps()
    total = -(-1500 * 12 // 64)
    assert [event["step"] for event in steps] == list(range(1, total + 1))
    assert {event["world"] for event in steps} == {1, 2, 3}
    seen = {(event["world"], event["rank"]): event["devices"] for r in range(3) for event in lease.steps(r)}
    assert seen[3, 0] == seen[3, 1] == "1,3"
    assert seen[3, 2] == seen[2, 1] == "0"
    assert lease.broker.last.phase is Phase.DONE
    rates = {p.workers: p.throughput for _, p in lease.broker.heard if p.throughput and p.phase is Phase.TRAINING}
    assert rates[3] > 1.5 * rates[1], rates
    result = json.loads(lease.marker.read_text())
    losses = [event["loss"] for event in steps]
    lease.log.unlink()
    undisturbed = lease.plain(12)
    assert np.allclose(losses, [event["loss"] for event in lease.steps()], rtol=1e-6)
    assert result["accuracy"] == undisturbed["accuracy"] > 0.9
    with np.load(result["model"]) as model:
        assert model["w1"].shape == (64, 64)
    print({"1->3 pause s": pause(steps, 3), "3->2 pause s": pause(steps, 2), "rates": rates})


@pytest.mark.system
@pytest.mark.timeout(400)
def test_a_notice_a_loss_and_a_stop(lease: Lease) -> None:
    """Notice with a replacement: no step lost. SIGKILL without notice: back to the last checkpoint. Stop: code 75."""
    a, b = lease.raylet("L.1", 0), lease.raylet("L.2", 1)
    lease.broker.target(a, b)
    lease.train(45)
    lease.wait_for_step(15)
    deadline = time.time() + 25
    lease.drain("L.1", deadline)
    replacement = Held(allocation="L.3", node="L.3", workers=1, gpus=(0,), ready=False)
    lease.broker.target(b, replacement, why="notice", by=deadline)
    c = lease.raylet("L.3", 0)
    moved = lease.broker.target(b, c, why="notice", by=deadline)
    lease.wait_for_use(moved, {"L.2", "L.3"})
    assert time.time() < deadline
    lease.kill("L.1")
    assert repeated(lease.steps()) == []
    at = max(event["step"] for event in lease.steps())
    lease.wait_for_step(at + 20)

    killed = time.time()
    lease.kill("L.2")
    eventually(lambda: any(e["world"] == 1 and e["t"] > killed for e in lease.steps()), 60, lease.said())
    steps = lease.steps()
    back = next(event for event in steps if event["t"] > killed and event["world"] == 1)
    lost = max(event["step"] for event in steps if event["world"] == 2) - back["step"] + 1
    took = back["t"] - max(event["t"] for event in steps if event["world"] == 2)
    saved = max(p.checkpoint_step or 0 for t, p in lease.broker.heard if t < killed + 1)
    assert lost >= 0
    assert back["step"] >= saved + 1
    print({"lost steps after SIGKILL": lost, "stopped s": round(took, 1)})

    lease.broker.target(c, why="repair")
    lease.wait_for_step(back["step"] + 10)
    lease.broker.answer = replace(lease.broker.answer, stop="budget is spent")
    assert lease.end() == EXIT_STOPPED, lease.said()
    assert "stopped: budget is spent" in lease.said()
    assert not lease.marker.exists()
    last = max(event["step"] for event in lease.steps())
    assert lease.broker.last.checkpoint_step == last


@pytest.mark.system
@pytest.mark.timeout(300)
def test_a_broken_loop_fails_at_once_and_a_stale_attempt_stops(lease: Lease) -> None:
    a = lease.raylet("L.1", 0)
    lease.broker.target(a)
    lease.train(45, 40, sample_s=None)
    assert lease.end() == 1
    assert lease.said().rstrip().endswith("ValueError: the loop is broken here")
    assert "script.py" in lease.said()
    assert not lease.marker.exists()
    assert max(event["step"] for event in lease.steps()) == 40

    lease.broker.epoch = 2
    lease.train(45, epoch=1)
    assert lease.end() == EXIT_STOPPED
    assert "attempt is over" in lease.said()
