"""Nothing that a demo started survives it, however it ends.

```
make ── moorage demo (guard) ── session of its own: the demo ── broker, agents, Airflow, MLflow, Ray …
```

Guard and demo watch each other: when either ends, even by kill -9, the other ends everything below. Orphans come back
to the nearest of the two (child subreaper, Linux); elsewhere, and for what slipped through, every process carries the
demo's mark in its environment.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from types import FrameType
from typing import NoReturn

import psutil

#: Environment variable that every process of one demo carries.
MARK = "MOORAGE_DEMO"
_PR_SET_CHILD_SUBREAPER = 36
_SWEEP_S = 20.0


def guarded(mark: str, main: Callable[[], int]) -> int:
    """Run `main` in a session of its own and return its exit status, once nothing of it is left.

    Args:
        mark: value of `MARK` in the environment of everything that `main` starts.
        main: the demo; SIGINT and SIGTERM reach it as KeyboardInterrupt.
    """
    reader, writer = os.pipe()
    become_subreaper()
    child = os.fork()
    if child == 0:
        os.close(writer)
        _inner(mark, main, reader)
    os.close(reader)
    status = _wait(child)
    sweep(mark)
    os.close(writer)
    return status


def _inner(mark: str, main: Callable[[], int], reader: int) -> NoReturn:
    os.setsid()
    become_subreaper()
    threading.Thread(target=_die_with_guard, args=(mark, reader), daemon=True).start()
    signal.signal(signal.SIGTERM, _interrupt)
    status = 1
    try:
        status = main()
    except KeyboardInterrupt:
        status = 130
    except Exception:  # noqa: BLE001 (nothing above would print it: this process ends below)
        traceback.print_exc()
    finally:
        sweep(mark)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _die_with_guard(mark: str, reader: int) -> None:
    os.read(reader, 1)  # Returns only when the guard's end is closed: it is gone.
    sweep(mark)
    os._exit(1)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _wait(child: int) -> int:
    """Wait for the demo, handing on SIGINT and SIGTERM."""

    def hand_on(number: int, _frame: FrameType | None) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, hand_on)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    return 128 - code if code < 0 else code


def become_subreaper() -> None:
    """Take in orphaned descendants (Linux); elsewhere the mark alone finds them."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def sweep(mark: str, *, below: bool = True) -> None:
    """Kill every process that carries the mark, and `below` this one, until there is none (at most 20 s)."""
    until = time.monotonic() + _SWEEP_S
    while (found := list(survivors(mark, below=below))) and time.monotonic() < until:
        for process in found:
            with contextlib.suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(found, timeout=1)


def survivors(mark: str, *, below: bool = True) -> Iterator[psutil.Process]:
    """Living processes with the mark, or `below` this one."""
    family = {process.pid for process in psutil.Process().children(recursive=True)} if below else set()
    spared = {os.getpid(), os.getppid()}
    for process in psutil.process_iter(["status"]):
        if process.pid in spared or process.info["status"] == psutil.STATUS_ZOMBIE:
            continue
        if process.pid in family or carries(process, MARK, mark):
            yield process


def carries(process: psutil.Process, name: str, value: str) -> bool:
    """Whether a process was started with this environment variable; False if that cannot be read."""
    try:
        return bool(process.environ().get(name) == value)
    except (psutil.Error, OSError):
        return False
