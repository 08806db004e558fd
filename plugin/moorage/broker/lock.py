"""The writer's lock: whoever holds it is the only writer of the database; it is freed by the kernel or the server."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path
from typing import Protocol

from sqlalchemy import Connection, text

from moorage.api.errors import Conflict
from moorage.broker.store import Store

#: Key of the advisory lock in PostgreSQL: "moorage" in ASCII.
ADVISORY_KEY = 0x6D6F6F72616765
#: Seconds between a standby's tries.
RETRY_S = 0.2


class Lock(Protocol):
    """Held until `release`, or until the process ends."""

    def release(self) -> None: ...


class _Lock(Lock, Protocol):
    def take(self) -> bool:
        """Whether it is held now; does not wait."""
        ...


def take(store: Store, wait: bool, timeout: float | None = None) -> Lock:
    """Take the lock. With `wait`, stand by until the writer is gone (or `timeout` seconds).

    Raises:
        Conflict: another broker holds it.
    """
    lock = _lock_of(store)
    end = None if timeout is None else time.monotonic() + timeout
    while not lock.take():
        if not wait or (end is not None and time.monotonic() >= end):
            raise Conflict(f"another broker writes {store.url.render_as_string()}: stop it, or start as its standby")
        time.sleep(RETRY_S)
    return lock


def _lock_of(store: Store) -> _Lock:
    if store.in_memory:
        return _NoLock()
    if store.url.get_backend_name() == "sqlite":
        return _FileLock(Path(f"{store.url.database}.lock"))
    return _AdvisoryLock(store)


class _NoLock:
    """A database in memory is nobody else's."""

    def take(self) -> bool:
        return True

    def release(self) -> None:
        return


class _FileLock:
    """`flock` on a file beside the database; it holds the writer's process id, for people."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: int | None = None

    def take(self) -> bool:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
            return False
        os.truncate(file, 0)
        os.write(file, f"{os.getpid()}\n".encode())
        self._file = file
        return True

    def release(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


class _AdvisoryLock:
    """A session lock of a connection of its own: a writer that is cut off from the database loses it."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._connection: Connection | None = None

    def take(self) -> bool:
        connection = self._store.engine.connect().execution_options(isolation_level="AUTOCOMMIT")
        if connection.execute(text("SELECT pg_try_advisory_lock(:key)"), {"key": ADVISORY_KEY}).scalar():
            self._connection = connection
            return True
        connection.close()
        return False

    def release(self) -> None:
        if self._connection is not None:
            # Back in the pool it would go on holding the lock.
            self._connection.invalidate()
            self._connection.close()
            self._connection = None
