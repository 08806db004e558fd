"""Runs one job, keeps its log and writes down how it ended. Outlives the agent; nothing but the standard library.

Run as a script: ``python child.py FOLDER LOG_BYTES WORD...`` in the job's folder and with the job's environment. Writes
``child.json`` (pids), ``log.<offset>`` (segments, the oldest go when all are larger than LOG_BYTES) and ``exit.json``.
"""

from __future__ import annotations

import io
import json
import os
import select
import signal
import subprocess
import sys
import time

SEGMENTS = 8
CHUNK = 64 << 10
#: Seconds for which a log is still read after the job itself ended, if others hold its pipe.
LINGER_S = 1.0


def write(folder: str, name: str, value: dict[str, object]) -> None:
    """All of the file or nothing of it, whenever we are killed."""
    path = os.path.join(folder, name)  # noqa: PTH118 - pathlib would double the start time of this small process.
    with open(path + ".part", "w") as file:  # noqa: PTH123
        json.dump(value, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(path + ".part", path)  # noqa: PTH105


class Log:
    """Segments named by the offset of their first byte, so that offsets stay true when old ones go."""

    def __init__(self, folder: str, most: int) -> None:
        self.folder, self.most = folder, most
        self.size = 0
        self.segments: list[int] = []
        self.file: io.FileIO | None = None
        self.lost = 0

    def append(self, data: bytes) -> None:
        """A full disk costs log, never the job."""
        try:
            file = self.file
            if file is None or self.size - self.segments[-1] >= self.most // SEGMENTS:
                file = self.roll()
            self.size += file.write(data)
        except OSError:
            self.lost += len(data)

    def roll(self) -> io.FileIO:
        """The next segment; the oldest goes."""
        if self.file is not None:
            self.file.close()
        self.file = io.FileIO(self.path(self.size), "a")
        self.segments.append(self.size)
        self.trim()
        return self.file

    def trim(self) -> None:
        while len(self.segments) > SEGMENTS:
            os.unlink(self.path(self.segments.pop(0)))  # noqa: PTH108

    def path(self, offset: int) -> str:
        return os.path.join(self.folder, f"log.{offset:015d}")  # noqa: PTH118


def pump(job: subprocess.Popen[bytes], log: Log) -> None:
    """Read what the job prints until it closed its output, or ended and nothing more came."""
    if job.stdout is None:
        return
    pipe = job.stdout.fileno()
    os.set_blocking(pipe, False)
    ended_at: float | None = None
    while ended_at is None or time.monotonic() - ended_at < LINGER_S:
        ready, _, _ = select.select([pipe], [], [], 0.2)
        data = os.read(pipe, CHUNK) if ready else b""
        if data:
            log.append(data)
        elif ready or ended_at is not None:
            return
        if ended_at is None and job.poll() is not None:
            ended_at = time.monotonic()


def main(folder: str, most: int, command: list[str]) -> None:
    """Until the job has ended and its log is written."""
    # The agent signals the job, not us; handlers (unlike SIG_IGN) are not inherited by it.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    try:
        job = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        write(folder, "exit.json", {"error": f"cannot start {command[0]}: {error.strerror}"})
        return
    write(folder, "child.json", {"supervisor": os.getpid(), "job": job.pid})
    log = Log(folder, most)
    pump(job, log)
    code = job.wait()
    ended = (code, None) if code >= 0 else (None, -code)
    write(folder, "exit.json", {"exit_code": ended[0], "signal": ended[1], "log_lost": log.lost})


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
