"""Reads the memory back from the database: at open, and in tests to see that both say the same."""

from __future__ import annotations

import secrets
from dataclasses import replace
from datetime import datetime

from sqlalchemy import Connection, insert, select, update

from moorage.api.codec import dumps
from moorage.broker import reads, schema
from moorage.broker.ledger import Book
from moorage.broker.memo import Entry
from moorage.broker.memory import Memory
from moorage.broker.store import Store, stamp
from moorage.core.lease import Lease
from moorage.core.policy import Policy
from moorage.core.state import State

SECRET = "secret"


def claim(store: Store, now: datetime) -> tuple[int, float, datetime]:
    """Become the database's writer: its new boot number, the stored hearing clock, and the last time it was written."""
    with store.begin() as connection:
        row = connection.execute(select(schema.writer).where(schema.writer.c.id == 1)).first()
        if row is None:
            first = {"id": 1, "boot": 1, "heard": 0.0, "at": stamp(now)}
            connection.execute(insert(schema.writer).values(**first))
            return 1, 0.0, now
        connection.execute(update(schema.writer).where(schema.writer.c.id == 1).values(boot=row.boot + 1))
        return row.boot + 1, row.heard, datetime.fromisoformat(row.at)


def secret(store: Store) -> bytes:
    """The server's secret, made once per database."""
    with store.begin() as connection:
        found = connection.execute(select(schema.meta.c.value).where(schema.meta.c.key == SECRET)).first()
        if found is not None:
            return bytes.fromhex(found.value)
        made = secrets.token_bytes(32)
        connection.execute(insert(schema.meta).values(key=SECRET, value=made.hex()))
        return made


def policy(store: Store, first: Policy | None, now: datetime) -> tuple[int, Policy]:
    """The newest stored policy; a database without one stores `first`, or the defaults."""
    found = reads.policy(store)
    if found is not None:
        return found
    chosen = first or Policy()
    with store.begin() as connection:
        _insert_policy(connection, chosen, now)
    return 1, chosen


def _insert_policy(connection: Connection, chosen: Policy, now: datetime) -> None:
    row = {"revision": 1, "at": stamp(now), "who": "broker", "body": dumps(chosen).decode()}
    connection.execute(insert(schema.policy).values(**row))


def memory(store: Store, boot: int, heard: float, chosen: tuple[int, Policy], now: datetime) -> Memory:
    """Live leases, nodes and ledgers as they were stored."""
    loaded = Memory(policy=chosen[1], policy_revision=chosen[0], boot=boot)
    rows = reads.live_leases(store)
    books = {row.lease.id: Book() for row in rows}
    for segment in reads.segments(store, books):
        books[segment.lease] = books[segment.lease].with_segments([segment])
    leases = {row.lease.id: _spent(row.lease, books[row.lease.id], now) for row in rows}
    loaded.entries = {
        row.lease.id: Entry(memo=row.memo, revision=row.revision, book=books[row.lease.id]) for row in rows
    }
    loaded.state = State({node.id: node for node in reads.nodes(store)}, leases, heard)
    for lease in leases.values():
        loaded.index(None, lease)
    seq, number = reads.newest(store)
    loaded.next_seq, loaded.next_segment = seq + 1, number + 1
    return loaded


def _spent(lease: Lease, book: Book, now: datetime) -> Lease:
    return replace(lease, spent_usd=book.cost(now).total_usd)
