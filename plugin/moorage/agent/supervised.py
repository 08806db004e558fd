"""A job's process under its supervisor (`child`): what survives the agent is in the allocation's folder."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moorage.agent import child, joblog, processes
from moorage.agent.names import CHILD, EXIT, MARKER, MARKER_BYTES
from moorage.core.job import Evidence


@dataclass(frozen=True, slots=True)
class Pids:
    supervisor: int
    job: int


class Supervised:
    """Started once by some agent, perhaps an earlier one."""

    def __init__(self, folder: Path, home: Path, allocation: str, log_bytes: int) -> None:
        self._folder, self._home, self._allocation, self._log_bytes = folder, str(home), allocation, log_bytes
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, argv: Sequence[str], env: Mapping[str, str], cwd: Path) -> None:
        """`env` must carry our marks. Raises OSError if not even the supervisor can be started."""
        own = [sys.executable, "-I", "-S", child.__file__, str(self._folder), str(self._log_bytes)]
        self._process = subprocess.Popen(
            [*own, *argv],
            env=dict(env),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    @property
    def pids(self) -> Pids | None:
        """None: the supervisor has not said yet, or never will."""
        said = self._read(CHILD)
        return Pids(said["supervisor"], said["job"]) if said else None

    def running(self) -> bool:
        """Whether the supervisor is alive."""
        if self._process is not None:
            return self._process.poll() is None
        pids = self.pids
        return pids is not None and processes.carries(pids.supervisor, self._home, self._allocation)

    def exited(self) -> bool:
        """Whether it is over: its end is written down, or nobody is left who could."""
        return (self._folder / EXIT).exists() or not self.running()

    def terminate(self) -> None:
        """SIGTERM to the job's process group. While its supervisor lives, the pid is the job's."""
        pids = self.pids
        if pids is not None and self.running():
            processes.signal_group(pids.job, signal.SIGTERM)

    def evidence(self) -> Evidence:
        """How it ended. Call when `exited`."""
        said = self._read(EXIT)
        if said is None:
            return Evidence(
                exit_code=None,
                tail=joblog.tail(self._folder),
                marker=self.marker()[0],
                agent_error="the process that watches the job was killed",
            )
        if "error" in said:
            return Evidence(exit_code=127, tail=str(said["error"]))
        marker, problem = self.marker()
        tail = "\n".join(line for line in (joblog.tail(self._folder), problem) if line)
        return Evidence(exit_code=said["exit_code"], signal=said["signal"], marker=marker, tail=tail)

    def marker(self) -> tuple[str | None, str]:
        """The completion marker, and why it was not taken."""
        path = self._folder / MARKER
        if not path.is_file():
            return None, ""
        with path.open("rb") as file:
            data = file.read(MARKER_BYTES + 1)
        if len(data) > MARKER_BYTES:
            return None, f"moorage: the completion marker is larger than {MARKER_BYTES} bytes and was not taken"
        return data.decode(errors="replace"), ""

    def _read(self, name: str) -> dict[str, Any] | None:
        try:
            said: dict[str, Any] = json.loads((self._folder / name).read_bytes())
        except FileNotFoundError:
            return None
        return said
