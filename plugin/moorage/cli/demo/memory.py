"""Peak memory of everything that a demo runs."""

from __future__ import annotations

import threading

import psutil


class PeakMemory:
    """Samples the sum over all descendants every few seconds, in a thread.

    Proportional set size where the system tells it (Linux): shared pages count once; else resident size, which counts
    them in each process.
    """

    def __init__(self, every_s: float = 5.0) -> None:
        self.bytes = 0
        self._every = every_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="peak-memory", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> int:
        """Bytes at the peak."""
        self._stop.set()
        self._thread.join(timeout=10)
        return self.bytes

    def _run(self) -> None:
        while not self._stop.wait(self._every):
            self.bytes = max(self.bytes, measure())


def measure() -> int:
    """Bytes now, of this process and everything below it."""
    me = psutil.Process()
    return sum(_size(process) for process in (me, *me.children(recursive=True)))


def _size(process: psutil.Process) -> int:
    try:
        full = process.memory_full_info()
        return int(getattr(full, "pss", full.rss))
    except (psutil.Error, OSError):
        return 0  # It ended between listing and looking: it holds nothing now.
