"""An agent against a scripted broker, in a thread or a process, and what it must leave behind: nothing."""

from __future__ import annotations

import io
import threading
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from moorage.agent import AgentConfig, processes
from moorage.agent.run import serve
from moorage.api.values import Order, Want
from moorage.core.job import Job
from moorage.core.lease import AllocationRole
from moorage.testing.scripted import ScriptedBroker, ScriptedServer, wait_until


@pytest.fixture
def broker() -> ScriptedBroker:
    return ScriptedBroker()


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """A state folder; in the end no process may carry its mark."""
    folder = (tmp_path / "state").resolve()
    yield folder
    left = [one for one in processes.scan() if one.marks.get("MOORAGE_AGENT_HOME", "").startswith(str(folder))]
    for one in left:
        one.process.kill()
    assert [(one.pid, one.name, dict(one.marks)) for one in left] == []


@pytest.fixture
def config(home: Path) -> AgentConfig:
    return AgentConfig(
        url="http://127.0.0.1:1", node="n1", state_dir=home, fake_gpus=4, cpus=2, stop_grace_s=0.3, report_every_s=0.2
    )


@pytest.fixture
def start_agent(broker: ScriptedBroker) -> Iterator[Callable[[AgentConfig], Callable[[], None]]]:
    """Start one in a thread; the answer stops it. What still runs is stopped in the end."""
    stops: list[Callable[[], None]] = []

    def start(config: AgentConfig) -> Callable[[], None]:
        stop = threading.Event()
        thread = threading.Thread(target=serve, args=(config, broker, stop))
        thread.start()

        def end() -> None:
            stop.set()
            thread.join(10)
            assert not thread.is_alive()

        stops.append(end)
        return end

    yield start
    broker.come_back()
    for node in list(broker.reports):
        broker.say(node)
    for node, report in list(broker.reports.items()):
        if report.tasks and stops:
            broker.wait(node, lambda r: not r.tasks, 20)
    for end in stops:
        end()


@pytest.fixture
def server(broker: ScriptedBroker) -> ScriptedServer:
    return ScriptedServer(broker)


@pytest.fixture
def order() -> Callable[..., Order]:
    def make(*words: str, want: Want = Want.RUN, gpus: tuple[int, ...] = (0,), **more: Any) -> Order:
        job = Job(entrypoint=words or ("python", "-c", "pass"), **more.pop("job", {}))
        known: dict[str, Any] = {"allocation": "l1.0", "lease": "l1", "epoch": 1, "role": AllocationRole.PROCESS}
        return Order(**(known | {"team": "t", "gpus": gpus, "want": want, "job": job} | more))

    return make


def zipped(files: Mapping[str, str]) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return made.getvalue()


@pytest.fixture
def make_zip() -> Callable[[Mapping[str, str]], bytes]:
    return zipped


@pytest.fixture
def until() -> Callable[..., None]:
    return wait_until
