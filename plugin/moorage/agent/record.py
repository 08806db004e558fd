"""What an agent must know of an allocation after it was killed: one small file, written before any process starts."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from moorage.agent.names import RECORD
from moorage.api.codec import dumps, loads
from moorage.core.job import Evidence, JobKind
from moorage.core.lease import AllocationRole


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """No secrets and no environment: those come anew with each order."""

    allocation: str
    lease: str
    epoch: int
    role: AllocationRole
    kind: JobKind
    gpus: tuple[int, ...]
    #: The process job or the driver was started; it is never started twice.
    driver: bool = False
    #: Ray: how often its start was tried, whether it is up, its session, folder and address.
    tries: int = 0
    up: bool = False
    session: int | None = None
    ray_folder: str | None = None
    #: Head: where it listens. Worker: the head that it joined.
    address: str | None = None
    #: Ray's token file. None: authentication is off.
    token_file: str | None = None
    #: Ray was told that the raylet goes: it takes no new work.
    drained: bool = False
    #: How it ended. Set only when none of its processes is left.
    evidence: Evidence | None = None


def save(folder: Path, record: Record) -> None:
    """All of it or nothing, whenever we are killed."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_atomic(folder / RECORD, dumps(record))


def load(folder: Path) -> Record | None:
    """None: the agent died before it started anything. Raises `Invalid` for a file that cannot be read."""
    path = folder / RECORD
    return loads(Record, path.read_bytes()) if path.exists() else None


def write_atomic(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Written beside it, flushed to disk, and put in place."""
    part = path.with_name(f"{path.name}.part")
    with os.fdopen(os.open(part, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, mode), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
