"""The agent is killed with -9; the next one finds its jobs again. Agents in processes of their own."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from moorage.agent import AgentConfig, processes
from moorage.api.values import Order, Task, TaskPhase
from moorage.testing.scripted import ScriptedBroker, ScriptedServer

pytestmark = [pytest.mark.system, pytest.mark.path]

Start = Callable[[AgentConfig], Callable[[], None]]
MakeOrder = Callable[..., Order]

POLITE = (
    "import signal, sys, time\nsignal.signal(15, lambda *_: sys.exit(7))\nprint('ready', flush=True)\ntime.sleep(300)"
)
STUBBORN = "import signal, time\nsignal.signal(15, signal.SIG_IGN)\nprint('ready', flush=True)\ntime.sleep(300)"


def exited(task: Task) -> bool:
    return task.phase is TaskPhase.EXITED


def spawn(server: ScriptedServer, home: Path, **more: object) -> subprocess.Popen[bytes]:
    home.mkdir(exist_ok=True)
    return server.start(
        home / "agent.log",
        url="http://127.0.0.1:1",
        node="n1",
        state_dir=str(home),
        fake_gpus=4,
        stop_grace_s=1.0,
        **more,
    )


def test_a_killed_agents_job_is_adopted_and_its_exit_code_learned(
    broker: ScriptedBroker, server: ScriptedServer, home: Path, order: MakeOrder, until: Callable[..., None]
) -> None:
    go = home.parent / "go"
    script = (
        f"import os, sys, time\nprint('ready', flush=True)\nwhile not os.path.exists({str(go)!r}): time.sleep(0.02)\n"
    )
    script += "print('done'); open(os.environ['MOORAGE_MARKER'], 'w').write('1'); sys.exit(5)"
    broker.say("n1", order("python", "-c", script))
    agent = spawn(server, home)
    until(lambda: "ready" in broker.log("l1", 1), what="the job's start")
    incarnation = broker.reports["n1"].incarnation
    agent.kill()
    agent.wait()
    go.touch()
    until(lambda: (home / "allocations/l1.0/exit.json").exists(), what="the job's end without an agent")
    again = spawn(server, home)
    broker.wait("n1", lambda r: r.incarnation != incarnation)
    task = broker.wait_task("n1", "l1.0", exited)
    assert task.evidence is not None
    assert (task.evidence.exit_code, task.evidence.marker) == (5, "1")
    until(lambda: broker.log("l1", 1) == "ready\ndone\n", what="the log's rest")
    broker.say("n1")
    broker.wait_gone("n1", "l1.0")
    until(lambda: not (home / "allocations/l1.0").exists(), what="removing the folder")
    again.send_signal(signal.SIGTERM)
    assert again.wait(10) == 0


def test_a_running_job_is_adopted_not_started_again(
    broker: ScriptedBroker, server: ScriptedServer, home: Path, order: MakeOrder, until: Callable[..., None]
) -> None:
    broker.say("n1", order("python", "-c", POLITE))
    agent = spawn(server, home)
    until(lambda: "ready" in broker.log("l1", 1), what="the job's start")
    pids = {one.pid for one in processes.family(processes.scan(), str(home), "l1.0")}
    agent.kill()
    agent.wait()
    incarnation = broker.reports["n1"].incarnation
    again = spawn(server, home)
    first = broker.wait("n1", lambda r: r.incarnation != incarnation)
    assert [(task.allocation, task.phase) for task in first.tasks] == [("l1.0", TaskPhase.RUNNING)]
    assert {one.pid for one in processes.family(processes.scan(), str(home), "l1.0")} == pids
    broker.say("n1")
    broker.wait_gone("n1", "l1.0")
    again.terminate()
    again.wait(10)


def test_an_orphan_is_killed_before_the_first_report(
    broker: ScriptedBroker, server: ScriptedServer, home: Path, order: MakeOrder, until: Callable[..., None]
) -> None:
    broker.say("n1", order("python", "-c", STUBBORN))
    agent = spawn(server, home)
    until(lambda: "ready" in broker.log("l1", 1), what="the job's start")
    agent.kill()
    agent.wait()
    incarnation = broker.reports["n1"].incarnation
    # The record is lost: nobody can answer for these processes.
    (home / "allocations/l1.0/task.json").unlink()
    broker.say("n1")
    again = spawn(server, home)
    first = broker.wait("n1", lambda r: r.incarnation != incarnation)
    assert first.tasks == ()
    assert processes.family(processes.scan(), str(home), "l1.0") == []
    again.terminate()
    again.wait(10)


def test_one_agent_for_one_state_folder(
    broker: ScriptedBroker, server: ScriptedServer, config: AgentConfig, start_agent: Start, home: Path
) -> None:
    start_agent(config)
    broker.wait("n1", lambda r: True)
    second = spawn(server, home)
    assert second.wait(20) == 1
    assert "another agent uses it" in (home / "agent.log").read_text()
