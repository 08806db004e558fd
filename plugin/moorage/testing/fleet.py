"""Fake fleets: real agents with fake GPUs on this machine, against a real broker."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from moorage.api.auth import Role
from moorage.client import Client
from moorage.core.invalid import Invalid

#: Seconds for every node to report, and for an agent to stop.
JOIN_S = 30.0
STOP_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeNode:
    """One node of a fake fleet. `labels` as the agent reports them, for example {"moorage.io/rack": "r1"}."""

    name: str
    gpus: int = 4
    labels: Mapping[str, str] = field(default_factory=dict)
    #: Metadata server to watch for notices. None: none.
    imds_url: str | None = None
    fake_sample_seconds: float | None = None


class FakeFleet:
    """``with FakeFleet(url, token, [FakeNode(name="n1")], folder): ...`` Agents join on enter; nothing is left on exit.

    Args:
        url: the broker.
        token: an operator's; each agent gets one of its own.
        folder: state of the agents.
        processes: a process per agent, which `kill` can kill; else a thread, which starts at once.
    """

    def __init__(
        self, url: str, token: str, nodes: Sequence[FakeNode], folder: Path, *, processes: bool = False
    ) -> None:
        self.url, self.folder, self.processes = url, folder.resolve(), processes
        self.nodes = {node.name: node for node in nodes}
        self._client = Client(url, token)
        self._tokens: dict[str, str] = {}
        self._agents: dict[str, _Thread | _Process] = {}

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            for name in self.nodes:
                self.start(name)
            self.wait_joined()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self, name: str) -> None:
        """Start the node's agent (again)."""
        if name not in self.nodes:
            raise Invalid("name", name, f"name one of: {', '.join(self.nodes)}")
        if name not in self._tokens:
            self._tokens[name] = self._client.make_token(f"agent-{name}", Role.AGENT, node=name)
        made = _Process if self.processes else _Thread
        self._agents[name] = made(self.url, self._tokens[name], self.nodes[name], self.folder / name)

    def stop(self, name: str) -> None:
        """End the agent; its jobs go on."""
        self._agents[name].stop()

    def kill(self, name: str) -> None:
        """SIGKILL to the agent; its jobs go on. Needs `processes`."""
        self._agents[name].kill()

    def take(self, name: str) -> None:
        """The node is gone: SIGKILL to its agent and to everything that it started. Needs `processes`."""
        self.kill(name)
        _end_jobs(self.folder / name)

    def wait_joined(self, timeout: float = JOIN_S) -> None:
        """Until the broker has a report of every node. Raises TimeoutError with those that are missing."""
        limit = time.monotonic() + timeout
        while missing := set(self.nodes) - {view.node.id for view in self._client.fleet().nodes}:
            if time.monotonic() > limit:
                raise TimeoutError(f"no report in {timeout} s from: {', '.join(sorted(missing))}")
            time.sleep(0.05)

    def close(self) -> None:
        """Agents first, else they would report what is then killed."""
        with ThreadPoolExecutor(max(1, len(self._agents))) as pool:
            list(pool.map(lambda agent: agent.stop(), self._agents.values()))
        for name in self.nodes:
            _end_jobs(self.folder / name)
        self._client.close()


class _Thread:
    def __init__(self, url: str, token: str, node: FakeNode, home: Path) -> None:
        from moorage.agent import AgentConfig, run

        config = AgentConfig(
            url=url,
            token=token,
            node=node.name,
            state_dir=home,
            labels=dict(node.labels),
            fake_gpus=node.gpus,
            fake_sample_seconds=node.fake_sample_seconds,
            imds_url=node.imds_url,
        )
        self._stop = threading.Event()
        self._thread = threading.Thread(target=run, args=(config, self._stop), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(STOP_S)

    def kill(self) -> None:
        raise Invalid("processes", value=False, fix="a thread cannot be killed; use FakeFleet(..., processes=True)")


class _Process:
    def __init__(self, url: str, token: str, node: FakeNode, home: Path) -> None:
        home.mkdir(parents=True, exist_ok=True)
        token_file = home / "agent.token"
        with os.fdopen(os.open(token_file, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600), "w") as file:
            file.write(token)
        words: list[Any] = [url, f"--token-file={token_file}", f"--node={node.name}", f"--state-dir={home}"]
        words += [f"--fake-gpus={node.gpus}", *(f"--label={key}={value}" for key, value in node.labels.items())]
        if node.imds_url is not None:
            words.append(f"--imds-url={node.imds_url}")
        if node.fake_sample_seconds is not None:
            words.append(f"--fake-sample-seconds={node.fake_sample_seconds}")
        with (home / "agent.log").open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "moorage.cli", "agent", "join", *words],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )

    def stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(STOP_S)


def _end_jobs(home: Path) -> None:
    """SIGKILL to everything that the agent of this state folder started, and Ray's folders with it."""
    import psutil

    from moorage.agent import processes, record

    limit = time.monotonic() + STOP_S
    while time.monotonic() < limit:
        seen = processes.scan()
        left = [one for a in processes.allocations(seen, str(home)) for one in processes.family(seen, str(home), a)]
        for one in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.process.kill()
        if not left:
            break
        time.sleep(0.05)
    for folder in (home / "allocations").glob("*"):
        known = record.load(folder)
        if known is not None and known.ray_folder and not processes.users_of(processes.scan(), known.ray_folder):
            shutil.rmtree(known.ray_folder, ignore_errors=True)
