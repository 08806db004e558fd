"""A process job's life: started, told, stopped, adopted; with a scripted broker and real processes."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from moorage.agent import AgentConfig, processes
from moorage.api.values import Order, Task, TaskPhase, Want
from moorage.testing.scripted import ScriptedBroker

#: Real waits: `make test` runs them, `make check` does not.
pytestmark = pytest.mark.slow

Start = Callable[[AgentConfig], Callable[[], None]]
MakeOrder = Callable[..., Order]

SHOW = """
import json, os, sys
names = ["CUDA_VISIBLE_DEVICES", "MOORAGE_ALLOCATION", "MOORAGE_FAKE_SAMPLE_SECONDS", "A", "B", "S", "MOORAGE_TOKEN",
         "PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED"]
print(json.dumps({n: os.environ.get(n) for n in names} | {"cwd": os.listdir("."), "python": sys.executable}))
open(os.environ["MOORAGE_MARKER"], "w").write('{"answer": 42}')
sys.exit(3)
"""
#: Ends well on SIGTERM; says when it is ready.
POLITE = (
    "import signal, sys, time\nsignal.signal(15, lambda *_: sys.exit(7))\nprint('ready', flush=True)\ntime.sleep(300)"
)
STUBBORN = "import signal, time\nsignal.signal(15, signal.SIG_IGN)\nprint('ready', flush=True)\ntime.sleep(300)"


def exited(task: Task) -> bool:
    return task.phase is TaskPhase.EXITED


def test_the_end_is_told_after_the_last_words(
    broker: ScriptedBroker, config: AgentConfig, start_agent: Start, order: MakeOrder
) -> None:
    """Who learns that a job is over finds its whole log."""
    broker.say("n1", order("python", "-c", "print('x' * 300_000); print('last words')"))
    start_agent(config)
    broker.wait_task("n1", "l1.0", exited)
    assert broker.log("l1", 1).endswith("x\nlast words\n")


def test_environment_code_exit_code_and_marker(
    broker: ScriptedBroker,
    config: AgentConfig,
    start_agent: Start,
    order: MakeOrder,
    make_zip: Callable[[Mapping[str, str]], bytes],
    monkeypatch: pytest.MonkeyPatch,
    until: Callable[..., None],
) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setenv("MOORAGE_TOKEN", "the agent's own")
    monkeypatch.setenv("NODE_SECRET", "s3cret")
    digest = broker.put_code(make_zip({"show.py": SHOW}))
    job = {"code": digest, "env": {"A": "job", "B": "job"}, "secrets": {"S": "env:NODE_SECRET"}}
    broker.say("n1", order("python", "show.py", gpus=(3, 1), job=job, env={"B": "order"}))
    start_agent(replace(config, fake_sample_seconds=0.25))
    task = broker.wait_task("n1", "l1.0", exited)
    assert task.evidence is not None
    assert (task.evidence.exit_code, task.evidence.signal, task.evidence.agent_error) == (3, None, "")
    assert task.evidence.marker == '{"answer": 42}'
    until(lambda: broker.log("l1", 1).endswith("\n"), what="shipping the log")
    said = json.loads(broker.log("l1", 1))
    assert said["CUDA_VISIBLE_DEVICES"] == "1,3"
    assert said["MOORAGE_ALLOCATION"] == "l1.0"
    assert said["MOORAGE_FAKE_SAMPLE_SECONDS"] == "0.25"
    assert (said["A"], said["B"], said["S"]) == ("job", "order", "s3cret")
    assert said["MOORAGE_TOKEN"] is None
    assert said["PYTHONDONTWRITEBYTECODE"] is None
    assert said["cwd"] == ["show.py"]
    assert said["python"] == sys.executable


def test_report_is_complete(broker: ScriptedBroker, config: AgentConfig, start_agent: Start) -> None:
    start_agent(replace(config, labels={"moorage.io/rack": "r1"}, memory=1 << 30))
    report = broker.wait("n1", lambda r: r.orders_seen is not None)
    assert [(gpu.index, gpu.model, gpu.memory, gpu.healthy) for gpu in report.gpus] == [
        (i, "FAKE-GPU", None, True) for i in range(4)
    ]
    assert (report.cpus, report.memory, report.labels) == (2, 1 << 30, {"moorage.io/rack": "r1"})
    assert report.tasks == ()


@pytest.mark.parametrize(("script", "code", "number"), [(POLITE, 7, None), (STUBBORN, None, signal.SIGKILL)])
def test_stop_asks_then_kills(
    broker: ScriptedBroker,
    config: AgentConfig,
    start_agent: Start,
    order: MakeOrder,
    until: Callable[..., None],
    script: str,
    code: int | None,
    number: int | None,
) -> None:
    run = order("python", "-c", script)
    broker.say("n1", run)
    start_agent(config)
    until(lambda: "ready" in broker.log("l1", 1), what="the job's start")
    broker.say("n1", replace(run, want=Want.STOP))
    broker.wait_gone("n1", "l1.0")
    ended = next(t for report in broker.history for t in report.tasks if t.phase is TaskPhase.EXITED)
    assert ended.evidence is not None
    assert (ended.evidence.exit_code, ended.evidence.signal) == (code, number)


def test_without_an_order_it_is_stopped(
    broker: ScriptedBroker, config: AgentConfig, start_agent: Start, order: MakeOrder, until: Callable[..., None]
) -> None:
    broker.say("n1", order("python", "-c", POLITE))
    start_agent(config)
    until(lambda: "ready" in broker.log("l1", 1), what="the job's start")
    broker.say("n1")
    broker.wait_gone("n1", "l1.0")


def test_drain_gives_until_its_time(
    broker: ScriptedBroker, config: AgentConfig, start_agent: Start, order: MakeOrder, until: Callable[..., None]
) -> None:
    run = order("python", "-c", STUBBORN)
    broker.say("n1", run)
    start_agent(config)
    until(lambda: "ready" in broker.log("l1", 1), what="the job's start")
    by = datetime.now(UTC) + timedelta(seconds=0.8)
    broker.say("n1", replace(run, want=Want.DRAIN, drain_by=by))
    task = broker.wait_task("n1", "l1.0", exited)
    assert datetime.now(UTC) >= by
    assert task.evidence is not None
    assert task.evidence.signal == signal.SIGKILL
    # Said once, it is forgotten: a drain order for what is gone keeps nothing here.
    broker.wait_gone("n1", "l1.0")


def test_leftovers_of_the_job_are_killed_with_it(
    broker: ScriptedBroker, config: AgentConfig, start_agent: Start, order: MakeOrder
) -> None:
    fork = "import subprocess, sys\nsubprocess.Popen(['sleep', '300'], start_new_session=True)\nprint('bye')"
    broker.say("n1", order("python", "-c", fork))
    start_agent(config)
    task = broker.wait_task("n1", "l1.0", exited)
    assert task.evidence is not None
    assert task.evidence.exit_code == 0
    assert processes.family(processes.scan(), str(config.state_dir), "l1.0") == []


def test_what_cannot_run_is_the_agents_error(
    broker: ScriptedBroker, config: AgentConfig, start_agent: Start, order: MakeOrder
) -> None:
    broker.say("n1", order("python", "x.py", job={"code": "0" * 64}))
    start_agent(config)
    task = broker.wait_task("n1", "l1.0", exited)
    assert task.evidence is not None
    assert task.evidence.agent_error == "no code 000000000000"


def test_a_missing_secret_names_itself(
    broker: ScriptedBroker, config: AgentConfig, start_agent: Start, order: MakeOrder
) -> None:
    broker.say("n1", order("python", "x.py", job={"secrets": {"KEY": "env:NOT_SET_HERE"}}))
    start_agent(config)
    task = broker.wait_task("n1", "l1.0", exited)
    assert task.evidence is not None
    assert task.evidence.agent_error == (
        "secret KEY=env:NOT_SET_HERE: set NOT_SET_HERE in the environment of this node's agent"
    )


def test_a_command_that_is_not_there(
    broker: ScriptedBroker, config: AgentConfig, start_agent: Start, order: MakeOrder
) -> None:
    broker.say("n1", order("no-such-command"))
    start_agent(config)
    task = broker.wait_task("n1", "l1.0", exited)
    assert task.evidence is not None
    assert (task.evidence.exit_code, task.evidence.tail) == (
        127,
        "cannot start no-such-command: No such file or directory",
    )


def test_a_newer_attempt_waits_until_the_old_one_is_gone(
    broker: ScriptedBroker, config: AgentConfig, start_agent: Start, order: MakeOrder, until: Callable[..., None]
) -> None:
    broker.say("n1", order("python", "-c", STUBBORN))
    start_agent(config)
    until(lambda: "ready" in broker.log("l1", 1), what="the first attempt's start")
    broker.say("n1", order("python", "-c", POLITE, allocation="l1.1", epoch=2, gpus=(1,)))
    broker.wait_task("n1", "l1.1", lambda t: t.phase is TaskPhase.RUNNING)
    for report in broker.history:
        alive = {task.epoch for task in report.tasks if task.phase is not TaskPhase.EXITED}
        assert len(alive) <= 1, "two attempts of one lease had processes at once"


def test_the_same_gpu_is_never_used_twice(
    broker: ScriptedBroker, config: AgentConfig, start_agent: Start, order: MakeOrder, until: Callable[..., None]
) -> None:
    first = order("python", "-c", POLITE)
    broker.say("n1", first, order("python", "-c", POLITE, allocation="l2.0", lease="l2"))
    start_agent(config)
    until(lambda: "ready" in broker.log("l1", 1), what="the first start")
    report = broker.wait("n1", lambda r: bool(r.tasks))
    assert [task.allocation for task in report.tasks] == ["l1.0"]
    broker.say("n1", order("python", "-c", POLITE, allocation="l2.0", lease="l2"))
    until(lambda: "ready" in broker.log("l2", 1), what="the second start")


def test_a_broker_that_is_away_ends_no_job(
    broker: ScriptedBroker, config: AgentConfig, start_agent: Start, order: MakeOrder, until: Callable[..., None]
) -> None:
    count = "import time\nfor i in range(1000): print(i, flush=True); time.sleep(0.05)"
    broker.say("n1", order("python", "-c", count))
    start_agent(config)
    until(lambda: "3\n" in broker.log("l1", 1), what="the job's start")
    broker.go_away()
    pids = {one.pid for one in processes.family(processes.scan(), str(config.state_dir), "l1.0")}
    before = broker.log("l1", 1)
    until(lambda: len(broker.history) > 0 and _segments(config) > len(before) + 60, what="a longer log")
    assert {one.pid for one in processes.family(processes.scan(), str(config.state_dir), "l1.0")} == pids
    broker.come_back()
    until(lambda: len(broker.log("l1", 1)) > len(before) + 40, what="the log's rest")
    lines = broker.log("l1", 1).split()
    assert lines == [str(i) for i in range(len(lines))]


def _segments(config: AgentConfig) -> int:
    return sum(path.stat().st_size for path in config.state_dir.glob("allocations/l1.0/log.*"))


def test_a_killed_supervisor_is_said(
    broker: ScriptedBroker, config: AgentConfig, start_agent: Start, order: MakeOrder, until: Callable[..., None]
) -> None:
    broker.say("n1", order("python", "-c", POLITE))
    start_agent(config)
    until(lambda: "ready" in broker.log("l1", 1), what="the job's start")
    pids = json.loads((config.state_dir / "allocations/l1.0/child.json").read_text())
    os.kill(pids["supervisor"], signal.SIGKILL)
    task = broker.wait_task("n1", "l1.0", exited)
    assert task.evidence is not None
    assert task.evidence.agent_error == "the process that watches the job was killed"
    assert processes.family(processes.scan(), str(config.state_dir), "l1.0") == []
