"""The one place where state changes: draft, commit, swap, tell. One lock around it all: a single writer."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from threading import Condition, RLock
from typing import Any, TypeVar

from sqlalchemy import insert

from moorage.api.auth import Principal
from moorage.api.codec import dumps, loads
from moorage.api.errors import Conflict, Invalid, NotFound, Unavailable
from moorage.api.values import LeaseView, Orders
from moorage.broker import orders, reads, schema
from moorage.broker.clock import HearingClock, SteadyClock
from moorage.broker.draft import Draft, Finished, finished
from moorage.broker.ledger import Book
from moorage.broker.logs import Logs
from moorage.broker.memory import Memory
from moorage.broker.orders import Terms
from moorage.broker.store import Batch, LeaseRow, Store, stamp
from moorage.core.lease import Lease

log = logging.getLogger("moorage.broker")
T = TypeVar("T")
Callback = Callable[[frozenset[str]], None]

#: Longest client id.
CLIENT_ID_LIMIT = 200


class Keeper:
    """Memory, its lock and its database."""

    def __init__(
        self, store: Store, memory: Memory, clock: SteadyClock, hearing: HearingClock, terms: Terms, logs: Logs
    ) -> None:
        self.store, self.memory = store, memory
        self.clock, self.hearing = clock, hearing
        self.terms, self.logs = terms, logs
        self.lock = RLock()
        #: Set when this broker may not write any more: what every call then answers.
        self.refusal: str | None = None
        self.closed = False
        #: Called, under the lock, when something that `decide` depends on changed.
        self.stir: Callable[[], None] = lambda: None
        self._turned = Condition()
        self._turn = 0
        self._listeners: list[Callback] = []

    # --- changes

    @contextmanager
    def change(self, who: str, *, lazy: bool = False) -> Iterator[Draft]:
        """A draft that is committed at the end, or dropped on an error.

        `lazy`: if only heartbeats changed, they are kept in memory and stored with the next flush.
        """
        with self.lock:
            draft = self.draft(who)
            yield draft
            topics = self.settle(finished(draft), lazy=lazy)
        self.publish(topics)

    def draft(self, who: str) -> Draft:
        if self.refusal is not None:
            raise Unavailable(self.refusal)
        return Draft(self.memory, who, self.clock.now())

    def settle(self, done: Finished, *, lazy: bool = False) -> frozenset[str]:
        """Store the draft, then make it true; returns the topics that changed. Under the lock."""
        batch = self.memory.pending.followed_by(done.batch)
        stored = done.urgent or not lazy
        if stored:
            self._store(batch, done)
        self.memory.pending = Batch() if stored else batch
        topics = self._accept(done)
        return topics | {"events"} if stored and batch.events else topics

    def _store(self, batch: Batch, done: Finished) -> None:
        try:
            self.store.write(batch, self.memory.boot, done.draft.state.heard, done.draft.now)
        except Conflict as error:
            self.refusal = str(error)
            raise Unavailable(self.refusal) from error

    def _accept(self, done: Finished) -> frozenset[str]:
        memory, ordered = self.memory, _nodes_of(done)
        memory.state = done.draft.state
        memory.policy, memory.policy_revision = done.draft.policy, done.draft.policy_revision
        memory.entries.update(done.entries)
        memory.next_seq, memory.next_segment = done.next_seq, done.next_segment
        for old, new in done.leases:
            memory.index(old, new)
        memory.forget(done.ended)
        topics = {f"lease:{new.id}" for _, new in done.leases}
        # The end of a lease is the end of its log: who follows it learns so at once.
        topics |= {f"log:{lease.id}" for lease in done.ended}
        topics |= self.refresh_orders(ordered)
        if done.leases or done.nodes:
            memory.version += 1
            topics.add("fleet")
            if done.nodes or any(_is_news(old, new) for old, new in done.leases):
                self.stir()
        return frozenset(topics)

    def refresh_orders(self, nodes: Iterable[str]) -> set[str]:
        """Derive the orders of these nodes again; returns the topics of those that changed. Under the lock."""
        topics = set()
        for node in nodes:
            known = self.memory.orders.get(node)
            fresh = orders.orders_for(node, self.memory, self.terms, self.clock.now())
            if known is None or known.orders != fresh:
                revision = (known.revision if known else self.memory.first_revision) + 1
                self.memory.orders[node] = Orders(revision=revision, orders=fresh)
                topics.add(f"node:{node}")
        return topics

    # --- repeated calls

    def once(self, who: Principal, client_id: str, method: str, act: Callable[[Draft], str]) -> LeaseView:
        """`act` changes the lease whose id it returns; the same client id gets the first answer again."""

        def view(done: Finished, lease: str) -> LeaseView:
            return done.view(lease) if lease in done.draft.state.leases else self.view(lease)

        return self._once(who, client_id, method, LeaseView, act, view)

    def once_quiet(self, who: Principal, client_id: str, method: str, act: Callable[[Draft], None]) -> None:
        """The same for calls that answer nothing."""
        self._once(who, client_id, method, bool, act, lambda _done, _result: True)

    def once_value(self, who: Principal, client_id: str, method: str, kind: type[T], act: Callable[[Draft], T]) -> T:
        """The same for calls whose answer does not depend on the commit."""
        return self._once(who, client_id, method, kind, act, lambda _done, result: result)

    def _once(
        self,
        who: Principal,
        client_id: str,
        method: str,
        kind: type[T],
        act: Callable[[Draft], Any],
        answer: Callable[[Finished, Any], T],
    ) -> T:
        check_client_id(client_id)
        with self.lock:
            if (first := reads.answer(self.store, who.name, client_id)) is not None:
                return _first(first, client_id, method, kind)
            draft = self.draft(who.name)
            result = act(draft)
            done = finished(draft)
            said = answer(done, result)
            done.batch.statements.append(
                insert(schema.answer).values(
                    who=who.name,
                    client_id=client_id,
                    method=method,
                    at=stamp(draft.now),
                    body=dumps(said, kind).decode(),
                )
            )
            topics = self.settle(done)
        self.publish(topics)
        return said

    # --- reading

    def resolve(self, lease: str) -> Lease:
        """A lease by id or by a prefix that only one has, ended or not. Raises `NotFound`, `Conflict`."""
        with self.lock:
            found = self.memory.state.leases.get(lease)
        if found is not None:
            return found
        return self.row(self._whole(lease)).lease

    def _whole(self, prefix: str) -> str:
        if not prefix:
            raise Invalid("lease", prefix, "name a lease by its id or the beginning of it")
        ids = reads.lease_ids(self.store, prefix)
        if prefix in ids:
            return prefix
        if not ids:
            raise NotFound(f"there is no lease {prefix}")
        if len(ids) > 1:
            raise Conflict(f"more than one lease begins with {prefix}: give more of the id")
        return ids[0]

    def row(self, lease: str) -> LeaseRow:
        """A live lease as it is now, or an ended one from the database."""
        with self.lock:
            found, entry = self.memory.state.leases.get(lease), self.memory.entries.get(lease)
        if found is not None and entry is not None:
            return LeaseRow(found, entry.memo, entry.revision)
        row = reads.lease(self.store, lease)
        if row is None:
            raise NotFound(f"there is no lease {lease}")
        return row

    def view(self, lease: str) -> LeaseView:
        return self.views([self.row(lease)])[0]

    def views(self, rows: Iterable[LeaseRow]) -> list[LeaseView]:
        """Views with costs: live leases' from memory, ended ones' from the ledger."""
        rows, now = list(rows), self.clock.now()
        with self.lock:
            books = {row.lease.id: self.memory.entries[row.lease.id].book for row in rows if self._is_live(row)}
        ended = [row.lease.id for row in rows if row.lease.id not in books]
        by_lease: dict[str, Book] = {lease: Book() for lease in ended}
        for segment in reads.segments(self.store, ended) if ended else ():
            by_lease[segment.lease] = by_lease[segment.lease].with_segments([segment])
        books |= by_lease
        return [LeaseView(lease=r.lease, cost=books[r.lease.id].cost(now), revision=r.revision) for r in rows]

    def _is_live(self, row: LeaseRow) -> bool:
        return row.lease.id in self.memory.entries

    # --- waiting and telling

    def wait(self, probe: Callable[[], T | None], timeout: float) -> T | None:
        """What `probe` finds, asked again after every change; None at the time-out or when the broker closes."""
        end = time.monotonic() + timeout
        while True:
            seen = self._turn
            found = probe()
            if found is not None or self.closed:
                return found
            with self._turned:
                while self._turn == seen:
                    left = end - time.monotonic()
                    if left <= 0 or not self._turned.wait(left):
                        return None

    def publish(self, topics: frozenset[str]) -> None:
        """Wake who waits and tell who listens. Outside the lock."""
        if not topics:
            return
        with self._turned:
            self._turn += 1
            self._turned.notify_all()
        for callback in tuple(self._listeners):
            try:
                callback(topics)
            except Exception:
                log.exception("a listener failed")

    def listen(self, callback: Callback) -> Callable[[], None]:
        """See `api.Changes`."""
        self._listeners.append(callback)

        def stop() -> None:
            if callback in self._listeners:
                self._listeners.remove(callback)

        return stop

    def close(self) -> None:
        """Nothing can be changed any more, and every wait ends."""
        self.closed, self.refusal = True, "the broker is closed"
        self.publish(frozenset({"closed"}))

    def now(self) -> datetime:
        return self.clock.now()


def _is_news(old: Lease | None, new: Lease) -> bool:
    """Whether `decide` may answer otherwise now: another sentence about why a lease waits changes nothing."""
    return old is None or replace(old, reason=new.reason, spent_usd=new.spent_usd) != new


def check_client_id(client_id: str) -> None:
    if not 0 < len(client_id) <= CLIENT_ID_LIMIT:
        raise Invalid("client_id", client_id, f"give 1 to {CLIENT_ID_LIMIT} characters, new for each call")


def _first(first: tuple[str, str], client_id: str, method: str, kind: type[T]) -> T:
    if first[0] != method:
        raise Conflict(f"client id {client_id} was used for {first[0]}: make a new one for each call")
    return loads(kind, first[1])


def _nodes_of(done: Finished) -> set[str]:
    """Nodes whose orders may have changed."""
    touched = {node.id for _, node in done.nodes}
    for old, new in done.leases:
        touched |= {a.node for a in (*(old.live if old else ()), *new.live)}
    if done.draft.policy is not done.draft.memory.policy:
        touched |= set(done.draft.state.nodes)
    return touched
