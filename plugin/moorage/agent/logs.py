"""Ships job logs to the broker: from where the broker says, bounded in rate and memory, for as long as it takes."""

from __future__ import annotations

import json
import logging
import shutil
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from moorage.agent import joblog
from moorage.agent.record import write_atomic
from moorage.api.errors import Conflict, Invalid, MoorageError, NotFound

log = logging.getLogger(__name__)

#: Bytes of one call, and bytes a second of one job.
CHUNK = 256 << 10
RATE = 1 << 20
EVERY_S = 0.2
#: After a failed call: first and largest wait.
AGAIN_S, AGAIN_MOST_S = 1.0, 15.0
#: Seconds for which an ended job's log is kept for a broker that is away.
KEEP_S = 24 * 3600.0
SHIFT = "ship.json"


class LogSink(Protocol):
    """The part of `NodeApi` that takes logs."""

    def put_logs(self, node: str, lease: str, epoch: int, offset: int, text: bytes) -> int: ...


@dataclass
class Source:
    """One job's log. The broker's offset + `shift` is the offset here: it rises when bytes were dropped unshipped."""

    folder: Path
    lease: str
    epoch: int
    shift: int
    #: The broker's next offset. None: not asked yet.
    remote: int | None = None
    retired_at: float | None = None
    refused: bool = False
    allowance: float = RATE
    at: float = field(default_factory=time.monotonic)

    def refill(self) -> None:
        """A bucket that fills at RATE."""
        now = time.monotonic()
        self.allowance = min(RATE, self.allowance + (now - self.at) * RATE)
        self.at = now

    def done(self) -> bool:
        """Nothing more will be shipped."""
        if self.refused:
            return True
        return self.remote is not None and self.remote + self.shift >= joblog.end(self.folder)


class Shipper:
    """Owns the logs of ended allocations until they are shipped, then removes their folders."""

    def __init__(self, sink: LogSink, node: str) -> None:
        self._sink, self._node = sink, node
        self._lock = threading.Lock()
        self._sources: dict[str, Source] = {}
        self._wait = AGAIN_S
        self.failures = 0

    def track(self, allocation: str, folder: Path, lease: str, epoch: int) -> None:
        """Cheap to repeat."""
        with self._lock:
            if allocation not in self._sources:
                self._sources[allocation] = Source(folder, lease, epoch, _shift(folder))

    def shipped(self, allocation: str) -> bool:
        """Whether the broker has all that was written so far; True for a log that is not tracked."""
        with self._lock:
            source = self._sources.get(allocation)
        return source is None or source.done()

    def retire(self, allocation: str) -> None:
        """The allocation is forgotten: ship what is left, then remove its folder."""
        with self._lock:
            if allocation in self._sources:
                self._sources[allocation].retired_at = time.monotonic()

    def run(self, stop: threading.Event) -> None:
        """Until `stop`."""
        while not stop.is_set():
            stop.wait(EVERY_S if self.step() else self._backed_off())

    def step(self) -> bool:
        """Ship a little of each; whether the broker could be reached."""
        with self._lock:
            sources = dict(self._sources)
        for allocation, source in sources.items():
            try:
                self._ship(source)
            except (NotFound, Conflict, Invalid) as error:
                log.info("the log of %s is not wanted any more: %s", allocation, error)
                source.refused = True
            except MoorageError as error:
                self.failures += 1
                log.debug("log of %s: %s", allocation, error)
                self._expire(allocation, source)
                return False
            self._expire(allocation, source)
        self._wait = AGAIN_S
        return True

    def _backed_off(self) -> float:
        wait, self._wait = self._wait, min(self._wait * 2, AGAIN_MOST_S)
        return wait

    def _ship(self, source: Source) -> None:
        if source.refused:
            return
        if source.remote is None:
            source.remote = self._put(source, 0, b"")
        source.refill()
        while source.allowance >= 1:
            here = source.remote + source.shift
            start, data = joblog.read(source.folder, here, min(CHUNK, int(source.allowance)))
            if not data:
                return
            if start > here:
                data = self._skip(source, start - here) + data
            source.allowance -= len(data)
            source.remote = self._put(source, source.remote, data)

    def _skip(self, source: Source, lost: int) -> bytes:
        """Bytes went before they could be shipped: say so in their place."""
        line = f"\n[moorage: {lost} bytes of log were dropped on {self._node}]\n".encode()
        source.shift += lost - len(line)
        write_atomic(source.folder / SHIFT, json.dumps(source.shift).encode())
        return line

    def _put(self, source: Source, offset: int, data: bytes) -> int:
        return self._sink.put_logs(self._node, source.lease, source.epoch, offset, data)

    def _expire(self, allocation: str, source: Source) -> None:
        if source.retired_at is None:
            return
        if source.done() or time.monotonic() - source.retired_at > KEEP_S:
            shutil.rmtree(source.folder, ignore_errors=True)
            with self._lock:
                del self._sources[allocation]


def _shift(folder: Path) -> int:
    path = folder / SHIFT
    return int(json.loads(path.read_bytes())) if path.exists() else 0
