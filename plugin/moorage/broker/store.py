"""The database: one engine, and the one transaction that writes a batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime
from threading import RLock
from typing import Any

from sqlalchemy import Connection, Engine, Executable, StaticPool, Table, create_engine, delete, event, insert, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError

from moorage.api.codec import dumps
from moorage.api.errors import Conflict, Invalid, Unavailable
from moorage.api.values import Event
from moorage.broker import schema
from moorage.broker.memo import Memo
from moorage.core.cost import Segment
from moorage.core.fleet import Node
from moorage.core.lease import Allocation, Lease

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class LeaseRow:
    """A lease as it is stored."""

    lease: Lease
    memo: Memo
    revision: int


@dataclass(slots=True)
class Batch:
    """Rows of one transaction; later values of the same key replace earlier ones."""

    leases: dict[str, LeaseRow] = field(default_factory=dict)
    nodes: dict[str, Node] = field(default_factory=dict)
    allocations: dict[str, Allocation] = field(default_factory=dict)
    segments: dict[int, Segment] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    #: Allocations whose GPUs become taken, or free.
    taken: list[Allocation] = field(default_factory=list)
    freed: list[Allocation] = field(default_factory=list)
    #: Tokens, answers, policies.
    statements: list[Executable] = field(default_factory=list)

    def followed_by(self, later: Batch) -> Batch:
        """Both, in this order."""
        return Batch(
            leases={**self.leases, **later.leases},
            nodes={**self.nodes, **later.nodes},
            allocations={**self.allocations, **later.allocations},
            segments={**self.segments, **later.segments},
            events=[*self.events, *later.events],
            taken=[*self.taken, *later.taken],
            freed=[*self.freed, *later.freed],
            statements=[*self.statements, *later.statements],
        )


def stamp(at: datetime) -> str:
    """A time as text that sorts by time."""
    return at.astimezone(UTC).isoformat(timespec="microseconds")


def _url(text: str) -> URL:
    """Raises `Invalid` for what is no URL, or one of another database."""
    shown = "(not shown)" if "@" in text else text
    try:
        url = make_url(text)
    except ArgumentError:
        raise Invalid("database", shown, "give a URL, for example sqlite:///moorage.db") from None
    if url.get_backend_name() not in ("sqlite", "postgresql"):
        raise Invalid("database", shown, "use SQLite or PostgreSQL, for example sqlite:///moorage.db")
    return url


class Store:
    """SQLite or PostgreSQL. `write` is called by one thread at a time; reads come from any."""

    def __init__(self, url: str) -> None:
        self.url = _url(url)
        self.in_memory = _in_memory(self.url)
        self.engine = _engine(self.url, self.in_memory)
        # A database in memory has one connection for all threads.
        self._guard = RLock() if self.in_memory else nullcontext()

    @contextmanager
    def opening(self) -> Iterator[None]:
        """Raises `Unavailable` with the database's own words for what it refuses inside; then it is closed."""
        try:
            yield
        except DBAPIError as error:
            self.close()
            why = str(error.orig).partition("\n")[0]
            raise Unavailable(f"the database {self.url.render_as_string()} cannot be used: {why}") from error
        except BaseException:
            self.close()
            raise

    @contextmanager
    def begin(self) -> Iterator[Connection]:
        """A transaction: committed at the end, rolled back on an error."""
        with self._guard, self.engine.begin() as connection:
            yield connection

    def close(self) -> None:
        self.engine.dispose()

    def write(self, batch: Batch, boot: int, heard: float, at: datetime) -> None:
        """All of it or nothing.

        Raises:
            Conflict: another writer owns the database now; nothing was written.
            sqlalchemy.exc.IntegrityError: a GPU would be held twice, or the like; nothing was written.
        """
        with self.begin() as connection:
            _fence(connection, boot, heard, at)
            self._leases(connection, batch.leases.values())
            self._upsert(connection, schema.allocation, [_allocation_row(a) for a in batch.allocations.values()])
            _holds(connection, batch)
            self._segments(connection, batch.segments.values())
            self._upsert(connection, schema.node, [_node_row(n) for n in batch.nodes.values()])
            if batch.events:
                connection.execute(insert(schema.journal), [_event_row(e) for e in batch.events])
            for statement in batch.statements:
                connection.execute(statement)

    def _leases(self, connection: Connection, rows: Iterable[LeaseRow]) -> None:
        leases = list(rows)
        self._upsert(connection, schema.lease, [_lease_row(row) for row in leases])
        labels = [
            {"lease": row.lease.id, "name": name, "value": value}
            for row in leases
            if row.revision == 1
            for name, value in row.lease.owner.items()
        ]
        self._upsert(connection, schema.label, labels)

    def _segments(self, connection: Connection, segments: Iterable[Segment]) -> None:
        """Ends before beginnings: an allocation has one open segment at most. Closed ones are left alone."""
        rows = sorted(segments, key=lambda s: (s.end is None, s.id))
        self._upsert(connection, schema.segment, [_segment_row(s) for s in rows], only=schema.segment.c.end.is_(None))

    def _upsert(self, connection: Connection, table: Table, rows: list[Row], only: Any = None) -> None:
        if not rows:
            return
        dialect = postgresql if connection.dialect.name == "postgresql" else sqlite
        statement = dialect.insert(table)
        keys = [column.name for column in table.primary_key]
        changes = {column.name: statement.excluded[column.name] for column in table.columns if column.name not in keys}
        connection.execute(statement.on_conflict_do_update(index_elements=keys, set_=changes, where=only), rows)


def _in_memory(url: URL) -> bool:
    return url.get_backend_name() == "sqlite" and url.database in (None, "", ":memory:")


def _engine(url: URL, in_memory: bool) -> Engine:
    if url.get_backend_name() != "sqlite":
        return create_engine(url, pool_pre_ping=True)
    options: dict[str, Any] = {"poolclass": StaticPool} if in_memory else {}
    engine = create_engine(url, connect_args={"check_same_thread": False}, **options)
    event.listen(engine, "connect", _connected)
    event.listen(engine, "begin", _begin)
    return engine


def _connected(connection: Any, _record: object) -> None:
    """Readers never wait for the writer, and what was acknowledged survives a power cut."""
    # The driver's own transactions would leave schema changes out of them.
    connection.isolation_level = None
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON", "busy_timeout=10000"):
        connection.execute(f"PRAGMA {pragma}").close()


def _begin(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN")


def _fence(connection: Connection, boot: int, heard: float, at: datetime) -> None:
    mine = (schema.writer.c.id == 1) & (schema.writer.c.boot == boot)
    if connection.execute(update(schema.writer).where(mine).values(heard=heard, at=stamp(at))).rowcount != 1:
        raise Conflict("another broker has taken over this database: this one writes nothing any more")


def _holds(connection: Connection, batch: Batch) -> None:
    hold = schema.gpu_hold
    for a in batch.freed:
        connection.execute(delete(hold).where(hold.c.allocation == a.id))
    rows = [{"node": a.node, "gpu": gpu, "allocation": a.id} for a in batch.taken for gpu in a.gpus]
    if rows:
        connection.execute(insert(hold), rows)


def owner_key(owner: Mapping[str, str]) -> str:
    """Owner labels as canonical JSON."""
    return dumps(dict(sorted(owner.items())), dict[str, str]).decode()


def _lease_row(row: LeaseRow) -> Row:
    lease = row.lease
    return {
        "id": lease.id,
        "owner": owner_key(lease.owner),
        "generation": lease.generation,
        "team": lease.team,
        "state": str(lease.state),
        "submitted_at": stamp(lease.submitted_at),
        "revision": row.revision,
        "body": dumps(lease).decode(),
        "memo": dumps(row.memo).decode(),
    }


def _allocation_row(a: Allocation) -> Row:
    return {
        "id": a.id,
        "lease": a.lease,
        "epoch": a.epoch,
        "node": a.node,
        "role": str(a.role),
        "state": str(a.state),
        "gpus": ",".join(map(str, a.gpus)),
    }


def _node_row(node: Node) -> Row:
    return {"id": node.id, "body": dumps(node).decode()}


def _segment_row(segment: Segment) -> Row:
    return {
        "id": segment.id,
        "allocation": segment.allocation,
        "lease": segment.lease,
        "team": segment.team,
        "node": segment.node,
        "start": stamp(segment.start),
        "end": stamp(segment.end) if segment.end else None,
        "body": dumps(segment).decode(),
    }


def _event_row(e: Event) -> Row:
    return {
        "seq": e.seq,
        "at": stamp(e.at),
        "kind": str(e.kind),
        "who": e.who,
        "lease": e.lease,
        "node": e.node,
        "team": e.team,
        "sentence": e.sentence,
        "facts": dumps(dict(e.facts), dict[str, str | int | float | None]).decode(),
    }
