"""Processes of this host by what is in their environment. psutil everywhere, so that macOS works as Linux does."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import psutil

from moorage.agent.names import ALLOCATION_MARK, HOME_MARK
from moorage.ray.cluster import FOLDER_VARIABLE

_MARKS = (ALLOCATION_MARK, HOME_MARK, FOLDER_VARIABLE)


@dataclass(frozen=True, slots=True)
class Seen:
    """One living process of ours (same user) with its marks."""

    process: psutil.Process
    pid: int
    parent: int
    session: int
    name: str
    marks: Mapping[str, str]


def scan() -> list[Seen]:
    """Every process of this user that is alive; zombies are gone. About 10 ms for a few hundred."""
    user = os.getuid()
    seen = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            one = _look(process, user)
            if one is not None:
                seen.append(one)
    return seen


def _look(process: psutil.Process, user: int) -> Seen | None:
    with process.oneshot():
        if process.uids().real != user or process.status() == psutil.STATUS_ZOMBIE:
            return None
        return Seen(process, process.pid, process.ppid(), _session(process.pid), process.name(), _marks(process))


def _session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except PermissionError:  # macOS, for another session.
        return 0


def _marks(process: psutil.Process) -> dict[str, str]:
    try:
        environment = process.environ()
    except psutil.AccessDenied:
        return {}
    return {name: environment[name] for name in _MARKS if name in environment}


def family(seen: Iterable[Seen], home: str, allocation: str, sessions: frozenset[int] = frozenset()) -> list[Seen]:
    """The processes of one allocation.

    Those marked with it, their descendants and the others of their sessions (a process title overwrites the marks that
    the system shows), and Ray's workers of `sessions`, which outlive a killed raylet for a moment.
    """
    everyone = list(seen)
    marked = {s.pid for s in everyone if _is(s, home, allocation)}
    shared = {s.session for s in everyone if s.pid in marked} - {os.getsid(0), 0}
    members = {s.pid for s in everyone if s.session in shared or (s.session in sessions and s.name.startswith("ray:"))}
    return _with_descendants(everyone, (marked | members) - {os.getpid()})


def _is(one: Seen, home: str, allocation: str) -> bool:
    return one.marks.get(ALLOCATION_MARK) == allocation and one.marks.get(HOME_MARK) == home


def _with_descendants(everyone: list[Seen], pids: set[int]) -> list[Seen]:
    found = set(pids)
    grown = True
    while grown:
        more = {s.pid for s in everyone if s.parent in found} - found
        found |= more
        grown = bool(more)
    return [s for s in everyone if s.pid in found]


def allocations(seen: Iterable[Seen], home: str) -> set[str]:
    """Allocations that processes of this agent's are marked with."""
    return {s.marks[ALLOCATION_MARK] for s in seen if s.marks.get(HOME_MARK) == home and ALLOCATION_MARK in s.marks}


def users_of(seen: Iterable[Seen], folder: str) -> bool:
    """Whether a process of any agent on this host belongs to the Ray cluster of this folder."""
    return any(s.marks.get(FOLDER_VARIABLE) == folder for s in seen)


def carries(pid: int, home: str, allocation: str) -> bool:
    """Whether this pid is alive and marked with the allocation: a pid alone may be another's by now."""
    try:
        one = _look(psutil.Process(pid), os.getuid())
    except (psutil.Error, OSError):
        return False
    return one is not None and _is(one, home, allocation)


def send(targets: Iterable[Seen], number: signal.Signals) -> None:
    """Signal each; psutil checks the start time, so a pid that another got meanwhile is safe."""
    for one in targets:
        with contextlib.suppress(psutil.NoSuchProcess):
            one.process.send_signal(number)


def signal_group(pid: int, number: signal.Signals) -> None:
    """Signal the process group that `pid` leads; gone is fine."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, number)


#: Seconds in which a supervisor whose job is gone may still write down how it ended.
LAST_WORDS_S = 2.0


class Ending:
    """Ends an allocation's processes: `ask` once, then SIGKILL from `kill_at` on until none is left.

    The supervisor is spared until the job is gone: it writes down how the job ended.
    """

    def __init__(
        self,
        find: Callable[[], list[Seen]],
        *,
        kill_at: float,
        ask: Callable[[], None] | None = None,
        supervisor: Callable[[], int | None] = lambda: None,
    ) -> None:
        self._find, self._ask, self._supervisor = find, ask, supervisor
        self._kill_at = kill_at
        self._alone_since: float | None = None

    def hurry(self, kill_at: float) -> None:
        """Never later than this."""
        self._kill_at = min(self._kill_at, kill_at)

    def tick(self, now: float) -> bool:
        """Whether none is left. `now`: seconds of the monotonic clock."""
        left = self._find()
        if not left:
            return True
        if self._ask is not None:
            ask, self._ask = self._ask, None
            ask()
        if now >= self._kill_at:
            self._kill(left, now)
        return False

    def _kill(self, left: list[Seen], now: float) -> None:
        supervisor = self._supervisor()
        others = [one for one in left if one.pid != supervisor]
        if others:
            self._alone_since = None
            send(others, signal.SIGKILL)
        elif self._alone_since is None:
            self._alone_since = now
        elif now - self._alone_since > LAST_WORDS_S:
            send(left, signal.SIGKILL)
