"""A change in the making: a verb works on a draft, `finished` says which rows it takes; only then it becomes true."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from sqlalchemy import Executable

from moorage.api.errors import Conflict
from moorage.api.values import Event, EventKind, LeaseView
from moorage.broker import journal, ledger
from moorage.broker.journal import Said
from moorage.broker.memo import Entry, Memo
from moorage.broker.memory import Memory
from moorage.broker.store import Batch, LeaseRow
from moorage.core.apply import apply
from moorage.core.cost import activity
from moorage.core.decision import Decision, Grant, Lose
from moorage.core.fleet import Node
from moorage.core.lease import Lease, LeaseState


class Draft:
    """What one verb, report or decision changes. The memory it starts from does not move meanwhile."""

    def __init__(self, memory: Memory, who: str, now: datetime) -> None:
        self.memory = memory
        self.who = who
        self.now = now
        self.state = memory.state
        self.policy, self.policy_revision = memory.policy, memory.policy_revision
        self.entries: dict[str, Entry] = {}
        #: Rows that the difference of values cannot tell.
        self.said: list[tuple[str | None, str | None, Said]] = []
        self.statements: list[Executable] = []

    def lease(self, lease: str) -> Lease:
        """A live lease. Raises `Conflict` for one that has ended."""
        found = self.state.leases.get(lease)
        if found is None or found.state is LeaseState.ENDED:
            raise Conflict(f"lease {lease} has ended")
        return found

    def put(self, lease: Lease) -> None:
        if self.state.leases.get(lease.id) is not lease:
            self.state = self.state.with_leases(lease)

    def put_node(self, node: Node) -> None:
        self.state = self.state.with_nodes(node)

    def entry(self, lease: str) -> Entry:
        return self.entries.get(lease) or self.memory.entries.get(lease) or Entry()

    def memo(self, lease: str) -> Memo:
        return self.entry(lease).memo

    def remember(self, lease: str, **changes: Any) -> None:
        """Change fields of the lease's memo."""
        entry = self.entry(lease)
        self.entries[lease] = replace(entry, memo=replace(entry.memo, **changes))

    def apply(self, decision: Decision) -> None:
        """Carry out a decision. Raises what `core.apply` raises."""
        before = self.state
        self.state = apply(before, decision, self.policy, self.now)
        match decision:
            case Grant():
                self.remember(decision.lease, level=decision.level)
            case Lose():
                node = self.state.nodes[decision.node]
                losers = [lease for lease in before.leases.values() if any(a.node == node.id for a in lease.live)]
                for lease, said in journal.lost_rows(node, decision.reason, losers):
                    self.say(said, lease=lease.id if lease else None, node=node.id)
            case _:
                pass

    def say(self, said: Said, *, lease: str | None = None, node: str | None = None) -> None:
        self.said.append((lease, node, said))

    def tell(self, kind: EventKind, sentence: str, lease: str | None = None, node: str | None = None) -> None:
        self.say(Said(kind, sentence), lease=lease, node=node)


@dataclass(slots=True)
class Finished:
    """A draft with its rows. `urgent`: it must be stored before it is acknowledged."""

    draft: Draft
    batch: Batch
    entries: dict[str, Entry]
    #: (before, after) of leases and nodes that changed in more than a heartbeat.
    leases: list[tuple[Lease | None, Lease]] = field(default_factory=list)
    nodes: list[tuple[Node | None, Node]] = field(default_factory=list)
    next_seq: int = 0
    next_segment: int = 0
    urgent: bool = False

    @property
    def ended(self) -> list[Lease]:
        return [new for _, new in self.leases if new.state is LeaseState.ENDED]

    def view(self, lease: str) -> LeaseView:
        """A lease that was live before the draft, as it is after it."""
        entry = self.entries.get(lease) or self.draft.memory.entries[lease]
        found = self.draft.state.leases[lease]
        return LeaseView(lease=found, cost=entry.book.cost(self.draft.now), revision=entry.revision)


def finished(draft: Draft) -> Finished:
    """Work out revisions, ledger cuts and journal rows."""
    memory = draft.memory
    done = Finished(draft, Batch(statements=draft.statements), dict(draft.entries))
    done.next_seq, done.next_segment = memory.next_seq, memory.next_segment
    repriced = _nodes(done)
    for old, new in list(_changed_leases(draft, repriced)):
        _lease(done, old, new)
    for lease, node, said in draft.said:
        _write(done, lease, node, said)
    done.urgent = bool(done.leases or done.nodes or draft.statements)
    return done


def _nodes(done: Finished) -> set[str]:
    """Rows of changed nodes; returns those whose price or GPU pool changed."""
    before, after = done.draft.memory.state.nodes, done.draft.state.nodes
    repriced: set[str] = set()
    if before is after:
        return repriced
    for node in after.values():
        old = before.get(node.id)
        if old is node:
            continue
        done.batch.nodes[node.id] = node
        if old is None or replace(old, heard=node.heard) != node:
            done.nodes.append((old, node))
        for said in journal.node_story(old, node):
            _write(done, None, node.id, said)
        if old and (old.pool, old.price, old.on_demand_price) != (node.pool, node.price, node.on_demand_price):
            repriced.add(node.id)
    return repriced


def _changed_leases(draft: Draft, repriced: set[str]) -> Iterator[tuple[Lease | None, Lease]]:
    before = draft.memory.state.leases
    touched = set(draft.entries).union(*(draft.memory.homes.get(node, ()) for node in repriced))
    for lease in draft.state.leases.values():
        old = before.get(lease.id)
        if old is not lease or lease.id in touched:
            yield old, lease


def _lease(done: Finished, old: Lease | None, new: Lease) -> None:
    draft = done.draft
    known = draft.memory.entries.get(new.id)
    entry = done.entries.get(new.id) or known or Entry()
    entry = replace(entry, book=_cut(done, new, entry))
    if old is None or known is None or _matters(old, new, known.memo, entry.memo):
        entry = _changed(done, old, new, entry)
    new = _settled(done, new, entry)
    done.entries[new.id] = entry
    done.batch.leases[new.id] = LeaseRow(new, entry.memo, entry.revision)


def _changed(done: Finished, old: Lease | None, new: Lease, entry: Entry) -> Entry:
    entry = logged(done, new, replace(entry, revision=entry.revision + 1))
    done.leases.append((old, new))
    for said in journal.lease_story(old, new, entry.memo):
        _write(done, new.id, None, said)
    _allocations(done.batch, old, new)
    return entry


def _settled(done: Finished, new: Lease, entry: Entry) -> Lease:
    """An ended lease keeps what it cost in all."""
    if new.state is not LeaseState.ENDED:
        return new
    new = replace(new, spent_usd=entry.book.cost(done.draft.now).total_usd)
    done.draft.put(new)
    done.leases[-1] = (done.leases[-1][0], new)
    return new


def _cut(done: Finished, new: Lease, entry: Entry) -> ledger.Book:
    draft = done.draft
    was = activity(new, draft.policy, draft.state.heard)
    segments = ledger.cut(new, entry.book, draft.state.nodes, was, draft.now, done.next_segment)
    if not segments:
        return entry.book
    done.next_segment = max(done.next_segment, 1 + max(s.id for s in segments))
    done.batch.segments.update({s.id: s for s in segments})
    return entry.book.with_segments(segments)


def _matters(old: Lease, new: Lease, before: Memo, after: Memo) -> bool:
    """Whether more changed than a heartbeat changes."""
    beat = replace(
        old,
        owner_heard=new.owner_heard,
        attempt_heard=new.attempt_heard,
        progress=new.progress,
        observations=new.observations,
        best_step=new.best_step,
        spent_usd=new.spent_usd,
    )
    return beat != new or before.without_beat() != after.without_beat()


def _allocations(batch: Batch, old: Lease | None, new: Lease) -> None:
    before = {a.id: a for a in old.allocations} if old else {}
    for a in new.allocations:
        known = before.get(a.id)
        if known is not a:
            batch.allocations[a.id] = a
        if a.gpus and known is None and a.live:
            batch.taken.append(a)
        elif a.gpus and known is not None and known.live and not a.live:
            batch.freed.append(a)


def logged(done: Finished, lease: Lease, entry: Entry) -> Entry:
    """The entry with its heartbeats written as one journal row."""
    if entry.unlogged is None or lease.progress is None:
        return entry
    said = journal.progress_row(lease, lease.progress, entry.unlogged.metrics)
    _write(done, lease.id, None, said, at=entry.unlogged.at)
    return replace(entry, unlogged=None)


def _write(done: Finished, lease_id: str | None, node: str | None, said: Said, at: datetime | None = None) -> None:
    lease = done.draft.state.leases.get(lease_id) if lease_id else None
    row = Event(
        seq=done.next_seq,
        at=at or done.draft.now,
        kind=said.kind,
        sentence=said.sentence,
        who=done.draft.who,
        lease=lease_id,
        node=node,
        team=lease.team if lease else None,
        facts={**said.facts, "epoch": lease.epoch} if lease else said.facts,
    )
    done.next_seq += 1
    done.batch.events.append(row)
