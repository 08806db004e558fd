"""Ray's daemons of one allocation: start them, find them again, know whether they live."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from enum import Enum, auto
from pathlib import Path

import psutil

from moorage.agent import joblog
from moorage.agent.host import StartLock
from moorage.agent.processes import Seen, send

log = logging.getLogger(__name__)

RAYLET = "raylet"
GCS = "gcs_server"


class Start(Enum):
    WAITING = auto()
    UP = auto()
    FAILED = auto()


class RayStart:
    """One `ray start`: waits for the host's lock, runs in a session of its own, and is judged by its exit code.

    Args:
        command: argv and environment, asked when the lock is held, so that ports are chosen late.
        started: told the session of the daemons before anything can go wrong.
    """

    def __init__(
        self,
        lock: StartLock,
        command: Callable[[], tuple[Sequence[str], Mapping[str, str]]],
        started: Callable[[int], None],
        folder: Path,
        output: Path,
        limit_s: float,
    ) -> None:
        self._lock, self._command, self._started = lock, command, started
        self._folder, self._output, self._limit_s = folder, output, limit_s
        self._process: subprocess.Popen[bytes] | None = None
        self._killed_at: float | None = None
        self.error = ""

    def tick(self) -> Start:
        """How it stands."""
        if self._process is None:
            self._begin()
            return Start.WAITING
        code = self._process.poll()
        if code is None:
            self._bound(self._process)
            return Start.WAITING
        if code == 0:
            return Start.UP
        took = f"took longer than {self._limit_s:.0f} s" if self._killed_at else f"exited {code}"
        self.error = f"ray start {took}: {joblog.file_tail(self._output)}"
        return Start.FAILED

    def _begin(self) -> None:
        descriptor = self._lock.take()
        if descriptor is None:
            return
        try:
            argv, env = self._command()
            with self._output.open("wb") as output:
                self._process = subprocess.Popen(
                    argv,
                    env=dict(env),
                    cwd=self._folder,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    pass_fds=(descriptor,),
                )
        finally:
            os.close(descriptor)
        self._began = time.monotonic()
        self._started(self._process.pid)

    def _bound(self, process: subprocess.Popen[bytes]) -> None:
        if time.monotonic() - self._began > self._limit_s:
            self._killed_at = self._killed_at or time.monotonic()
            process.kill()


class Daemons:
    """The daemons that must live. A process object knows its start time, so a pid cannot mislead."""

    #: One look may miss a process; so many in a row do not.
    LOOKS = 3

    def __init__(self, names: Sequence[str], find: Callable[[], list[Seen]]) -> None:
        self._names, self._find = names, find
        self._processes: dict[str, psutil.Process] = {}
        self._missed = 0

    def dead(self) -> str | None:
        """The name of one that is not alive. None: all are, as far as can be told."""
        missing = [name for name in self._names if name not in self._processes]
        if missing:
            self._processes |= {one.name: one.process for one in self._find() if one.name in missing}
            missing = [name for name in missing if name not in self._processes]
            self._missed = self._missed + 1 if missing else 0
        if self._missed >= self.LOOKS:
            return missing[0]
        return next((name for name, process in self._processes.items() if not _alive(process)), None)

    def terminate(self) -> None:
        """SIGTERM to the raylet: it tells the head that it goes, and exits."""
        send([one for one in self._find() if one.name == RAYLET], signal.SIGTERM)


def _alive(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
