"""Every query of the database, by noun."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Executable, Select, func, select, update

from moorage.api.codec import dumps, loads
from moorage.api.values import Event, EventKind, PolicyRevision
from moorage.broker import schema
from moorage.broker.memo import Memo
from moorage.broker.store import LeaseRow, Store
from moorage.core.cost import Segment
from moorage.core.fleet import Node
from moorage.core.lease import AllocationRole, Lease, LeaseState
from moorage.core.policy import Policy

_ENDED = str(LeaseState.ENDED)
_Facts = dict[str, str | int | float | None]


def _rows(store: Store, query: Select[Any]) -> Sequence[Any]:
    with store.begin() as connection:
        return connection.execute(query).all()


# --- leases


def _lease_of(row: Any) -> LeaseRow:
    return LeaseRow(loads(Lease, row.body), loads(Memo, row.memo), row.revision)


def lease(store: Store, lease_id: str) -> LeaseRow | None:
    """A lease by its whole id, ended or not."""
    found = _rows(store, select(schema.lease).where(schema.lease.c.id == lease_id))
    return _lease_of(found[0]) if found else None


def update_body(changed: Lease, revision: int) -> Executable:
    """The statement that replaces an ended lease, for example with more notes."""
    body = dumps(changed).decode()
    return update(schema.lease).where(schema.lease.c.id == changed.id).values(body=body, revision=revision)


def live_leases(store: Store) -> list[LeaseRow]:
    return [_lease_of(row) for row in _rows(store, select(schema.lease).where(schema.lease.c.state != _ENDED))]


def lease_ids(store: Store, prefix: str, most: int = 2) -> list[str]:
    """Ids that begin so."""
    query = select(schema.lease.c.id).where(schema.lease.c.id.startswith(prefix, autoescape=True)).limit(most)
    return [row.id for row in _rows(store, query)]


def generations(store: Store, owner: str) -> int:
    """How many leases of these owner labels have ended."""
    query = select(func.count()).where(schema.lease.c.owner == owner, schema.lease.c.state == _ENDED)
    return int(_rows(store, query)[0][0])


def found(store: Store, owner: Mapping[str, str], team: str | None, live: bool, limit: int) -> list[LeaseRow]:
    """Leases whose labels contain `owner`, newest first."""
    query = select(schema.lease).order_by(schema.lease.c.submitted_at.desc(), schema.lease.c.id.desc()).limit(limit)
    for name, value in owner.items():
        label = schema.label.alias()
        query = query.where(
            select(label.c.lease)
            .where(label.c.lease == schema.lease.c.id, label.c.name == name, label.c.value == value)
            .exists()
        )
    if team is not None:
        query = query.where(schema.lease.c.team == team)
    if live:
        query = query.where(schema.lease.c.state != _ENDED)
    return [_lease_of(row) for row in _rows(store, query)]


def roles_on(store: Store, lease_id: str, epoch: int, node: str) -> set[AllocationRole]:
    """Roles of the allocations that an attempt had on a node."""
    a = schema.allocation
    query = select(a.c.role).where(a.c.lease == lease_id, a.c.epoch == epoch, a.c.node == node)
    return {AllocationRole(row.role) for row in _rows(store, query)}


# --- nodes, ledger, journal


def nodes(store: Store) -> list[Node]:
    return [loads(Node, row.body) for row in _rows(store, select(schema.node))]


def segments(store: Store, leases: Iterable[str]) -> list[Segment]:
    """Every segment of these leases, oldest first."""
    query = select(schema.segment.c.body).where(schema.segment.c.lease.in_(list(leases))).order_by(schema.segment.c.id)
    return [loads(Segment, row.body) for row in _rows(store, query)]


def newest(store: Store) -> tuple[int, int]:
    """The last journal seq and the last segment id; 0 where there is none."""
    seq = _rows(store, select(func.max(schema.journal.c.seq)))[0][0]
    segment = _rows(store, select(func.max(schema.segment.c.id)))[0][0]
    return seq or 0, segment or 0


def events(store: Store, since: int, lease_id: str | None, team: str | None, limit: int) -> list[Event]:
    """Journal rows after `since`, oldest first."""
    journal = schema.journal
    query = select(journal).where(journal.c.seq > since).order_by(journal.c.seq).limit(limit)
    if lease_id is not None:
        query = query.where(journal.c.lease == lease_id)
    if team is not None:
        query = query.where(journal.c.team == team)
    return [_event_of(row) for row in _rows(store, query)]


def _event_of(row: Any) -> Event:
    return Event(
        seq=row.seq,
        at=datetime.fromisoformat(row.at),
        kind=EventKind(row.kind),
        sentence=row.sentence,
        who=row.who,
        lease=row.lease,
        node=row.node,
        team=row.team,
        facts=loads(_Facts, row.facts),
    )


# --- policy, answers, code, facts


def policies(store: Store) -> list[PolicyRevision]:
    """Oldest first."""
    table = schema.policy
    query = select(table.c.revision, table.c.at, table.c.who).order_by(table.c.revision)
    return [
        PolicyRevision(revision=row.revision, at=datetime.fromisoformat(row.at), who=row.who)
        for row in _rows(store, query)
    ]


def policy(store: Store) -> tuple[int, Policy] | None:
    """The newest policy and its revision."""
    query = select(schema.policy).order_by(schema.policy.c.revision.desc()).limit(1)
    found = _rows(store, query)
    return (found[0].revision, loads(Policy, found[0].body)) if found else None


def answer(store: Store, who: str, client_id: str) -> tuple[str, str] | None:
    """Method and body of the first answer to a call."""
    table = schema.answer
    found = _rows(store, select(table).where(table.c.who == who, table.c.client_id == client_id))
    return (found[0].method, found[0].body) if found else None


def code(store: Store, digest: str) -> bytes | None:
    found = _rows(store, select(schema.code.c.bytes).where(schema.code.c.digest == digest))
    return bytes(found[0].bytes) if found else None


def has_code(store: Store, digest: str) -> bool:
    return bool(_rows(store, select(schema.code.c.digest).where(schema.code.c.digest == digest)))


def tokens(store: Store) -> Sequence[Any]:
    """Rows of the token table, oldest first."""
    return _rows(store, select(schema.token).order_by(schema.token.c.created_at, schema.token.c.id))
