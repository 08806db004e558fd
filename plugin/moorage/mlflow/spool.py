"""The recorder's memory on disk: how far it read the journal, what is not sent yet, and which run is whose.

One SQLite file, one process (a file lock says so). The journal position and the operations that follow from it are
committed together, so a recorder that was killed goes on exactly where it was.
"""

from __future__ import annotations

import fcntl
import json
import logging
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TextIO

from moorage.api import codec
from moorage.api.errors import Conflict
from moorage.api.values import Event
from moorage.mlflow.operations import Operation, Worth, decode, encode, worth
from moorage.mlflow.tracked import Tracked

_log = logging.getLogger(__name__)

_SCHEMA = """
CREATE TABLE IF NOT EXISTS position (one INTEGER PRIMARY KEY CHECK (one = 1), seq INTEGER NOT NULL, at TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS operation (
    id INTEGER PRIMARY KEY AUTOINCREMENT, lease TEXT NOT NULL, worth INTEGER NOT NULL, body TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS operation_worth ON operation (worth, lease);
CREATE TABLE IF NOT EXISTS refused (id INTEGER PRIMARY KEY, body TEXT NOT NULL, why TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS tracked (lease TEXT PRIMARY KEY, done INTEGER NOT NULL, body TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS story (
    lease TEXT NOT NULL, seq INTEGER NOT NULL, body TEXT NOT NULL, PRIMARY KEY (lease, seq)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS run (
    lease TEXT NOT NULL, epoch INTEGER NOT NULL, id TEXT NOT NULL, experiment TEXT NOT NULL,
    noted INTEGER NOT NULL DEFAULT 0, PRIMARY KEY (lease, epoch));
"""

_EVERY_SECOND = """
DELETE FROM operation WHERE id IN (
    SELECT id FROM (SELECT id, row_number() OVER (PARTITION BY lease ORDER BY id) AS n FROM operation WHERE worth = ?)
    WHERE n % 2 = 0)
"""

#: Operations that wait at most, before the spool thins them out.
MAX_OPERATIONS = 100_000
#: Journal rows kept per lease for its table and timeline; the broker's journal keeps all of them.
MAX_STORY = 4_000
#: Refused operations kept for a person to look at, newest first.
MAX_REFUSED = 1_000
#: Finished leases whose run ids are remembered; older ones are found again by their tag.
MAX_DONE = 10_000


@dataclass(frozen=True, slots=True)
class Spooled:
    """One operation that is not sent yet."""

    id: int
    operation: Operation


@dataclass(frozen=True, slots=True)
class RunRow:
    """A run that exists in MLflow."""

    lease: str
    epoch: int
    id: str
    experiment: str


class Spool:
    """See the module. All methods may be called from any thread.

    Raises:
        Conflict: another process has this file.
    """

    def __init__(self, path: Path, *, max_operations: int = MAX_OPERATIONS) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file_lock = _lock_file(path)
        self._lock = threading.Lock()
        self._max = max_operations
        self._db = sqlite3.connect(path, timeout=10, check_same_thread=False, isolation_level=None)
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=NORMAL")
        self._db.executescript(_SCHEMA)
        self._story_rows: dict[str, int] = dict(
            self._db.execute("SELECT lease, count(*) FROM story GROUP BY lease").fetchall()
        )

    def close(self) -> None:
        with self._lock:
            self._db.close()
        self._file_lock.close()

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
            except BaseException:
                self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT")

    def _rows(self, sql: str, *args: object) -> list[tuple[str | int, ...]]:
        with self._lock:
            return self._db.execute(sql, args).fetchall()

    # --- the reader's side

    def position(self) -> tuple[int, str]:
        """Sequence number and time of the last journal row that was read; (0, "") before the first."""
        rows = self._rows("SELECT seq, at FROM position")
        return (int(rows[0][0]), str(rows[0][1])) if rows else (0, "")

    def tracked(self) -> dict[str, Tracked]:
        """Every lease that is not finished."""
        rows = self._rows("SELECT body FROM tracked WHERE done = 0")
        return {(one := Tracked(**json.loads(str(body)))).lease: one for (body,) in rows}

    def finished(self, lease: str) -> bool:
        """Whether everything about the lease was said."""
        return bool(self._rows("SELECT 1 FROM tracked WHERE lease = ? AND done = 1", lease))

    def story(self, lease: str) -> list[Event]:
        """The journal rows that its table and timeline are made of, oldest first."""
        rows = self._rows("SELECT body FROM story WHERE lease = ? ORDER BY seq", lease)
        return [codec.loads(Event, str(body)) for (body,) in rows]

    def commit(
        self,
        operations: Sequence[Operation],
        tracked: Iterable[Tracked] = (),
        story: Iterable[Event] = (),
        last: Event | None = None,
    ) -> None:
        """All of it or nothing. `last`: the journal was read up to this row."""
        with self._transaction() as db:
            db.executemany(
                "INSERT INTO operation (lease, worth, body) VALUES (?, ?, ?)",
                [(operation.lease, int(worth(operation)), encode(operation)) for operation in operations],
            )
            for one in tracked:
                _put_tracked(db, one)
            for event in story:
                self._put_story(db, event)
            if last is not None:
                db.execute("INSERT OR REPLACE INTO position VALUES (1, ?, ?)", (last.seq, last.at.isoformat()))
        self._bound()

    def _put_story(self, db: sqlite3.Connection, event: Event) -> None:
        lease = event.lease or ""
        count = self._story_rows.get(lease, 0)
        if count >= MAX_STORY:
            return
        if count == MAX_STORY - 1:
            _log.warning("lease %s has over %d journal rows: its MLflow table ends here", lease, MAX_STORY)
        db.execute("INSERT OR IGNORE INTO story VALUES (?, ?, ?)", (lease, event.seq, codec.dumps(event).decode()))
        self._story_rows[lease] = count + 1

    def forget_story(self, lease: str) -> None:
        with self._transaction() as db:
            db.execute("DELETE FROM story WHERE lease = ?", (lease,))
            self._story_rows.pop(lease, None)
            old = "SELECT lease FROM tracked WHERE done = 1 ORDER BY lease DESC LIMIT -1 OFFSET ?"
            db.execute(f"DELETE FROM run WHERE lease IN ({old})", (MAX_DONE,))  # noqa: S608 - a constant
            db.execute(f"DELETE FROM tracked WHERE lease IN ({old})", (MAX_DONE,))  # noqa: S608 - a constant

    # --- the bound

    def waiting(self) -> int:
        """Operations that are not sent yet."""
        return int(self._rows("SELECT count(*) FROM operation")[0][0])

    def _bound(self) -> None:
        before = self.waiting()
        if before <= self._max:
            return
        with self._transaction() as db:
            db.execute(
                "DELETE FROM operation WHERE worth = ? AND id NOT IN "
                "(SELECT max(id) FROM operation WHERE worth = ? GROUP BY lease)",
                (Worth.COST, Worth.COST),
            )
            if _count(db) > self._max // 2:
                db.execute(_EVERY_SECOND, (Worth.SERIES,))
        _log.warning(
            "MLflow has not answered for long: the spool held %d operations and was thinned to %d. Totals stay exact; "
            "curves of this time have fewer points. Start the tracking server, or look at its log",
            before,
            self.waiting(),
        )

    # --- the sender's side

    def head(self, limit: int) -> list[Spooled]:
        """The oldest operations."""
        rows = self._rows("SELECT id, body FROM operation ORDER BY id LIMIT ?", limit)
        return [Spooled(int(key), decode(str(body))) for key, body in rows]

    def sent(self, ids: Sequence[int]) -> None:
        with self._transaction() as db:
            db.executemany("DELETE FROM operation WHERE id = ?", [(key,) for key in ids])

    def refuse(self, spooled: Spooled, why: str) -> None:
        """MLflow will never take it: keep it aside, with the reason."""
        with self._transaction() as db:
            db.execute("DELETE FROM operation WHERE id = ?", (spooled.id,))
            db.execute("INSERT OR REPLACE INTO refused VALUES (?, ?, ?)", (spooled.id, encode(spooled.operation), why))
            db.execute(
                "DELETE FROM refused WHERE id NOT IN (SELECT id FROM refused ORDER BY id DESC LIMIT ?)", (MAX_REFUSED,)
            )

    def refused(self) -> list[tuple[Operation, str]]:
        return [(decode(str(body)), str(why)) for body, why in self._rows("SELECT body, why FROM refused ORDER BY id")]

    def run(self, lease: str, epoch: int) -> RunRow | None:
        rows = self._rows("SELECT lease, epoch, id, experiment FROM run WHERE lease = ? AND epoch = ?", lease, epoch)
        return _run_row(rows[0]) if rows else None

    def put_run(self, row: RunRow) -> None:
        with self._transaction() as db:
            db.execute(
                "INSERT OR REPLACE INTO run (lease, epoch, id, experiment) VALUES (?, ?, ?, ?)",
                (row.lease, row.epoch, row.id, row.experiment),
            )

    def without_run(self) -> bool:
        """Whether some lease that is not finished has no run yet."""
        joined = "tracked t LEFT JOIN run r ON r.lease = t.lease AND r.epoch = 0"
        return bool(self._rows(f"SELECT 1 FROM {joined} WHERE done = 0 AND r.id IS NULL LIMIT 1"))  # noqa: S608 - constants

    def unnoted(self) -> list[RunRow]:
        """Runs of leases that the broker was not told of yet."""
        sql = "SELECT lease, epoch, id, experiment FROM run WHERE epoch = 0 AND noted = 0 LIMIT 100"
        return [_run_row(row) for row in self._rows(sql)]

    def noted(self, lease: str) -> None:
        with self._transaction() as db:
            db.execute("UPDATE run SET noted = 1 WHERE lease = ? AND epoch = 0", (lease,))


def _lock_file(path: Path) -> TextIO:
    handle = path.with_suffix(path.suffix + ".lock").open("w")
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        handle.close()
        raise Conflict(f"spool {path} belongs to a recorder that runs; give this one another file") from error
    return handle


def _put_tracked(db: sqlite3.Connection, one: Tracked) -> None:
    row = (one.lease, int(one.done), json.dumps(asdict(one)))
    db.execute("INSERT OR REPLACE INTO tracked VALUES (?, ?, ?)", row)


def _count(db: sqlite3.Connection) -> int:
    return int(db.execute("SELECT count(*) FROM operation").fetchone()[0])


def _run_row(row: tuple[str | int, ...]) -> RunRow:
    return RunRow(str(row[0]), int(row[1]), str(row[2]), str(row[3]))
