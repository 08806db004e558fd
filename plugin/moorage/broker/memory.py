"""The broker's state between two transactions. Everything here can be read again from the database."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from moorage.api.values import NodeReport, Orders
from moorage.broker.memo import Entry
from moorage.broker.store import Batch, owner_key
from moorage.core.lease import Lease
from moorage.core.policy import Policy
from moorage.core.state import State

#: A node heard within these seconds of the hearing clock is as good as heard now.
FRESH_S = 3.0


@dataclass(frozen=True, slots=True)
class Reported:
    """What a node's agent said last."""

    incarnation: str
    #: Allocations that it has.
    allocations: frozenset[str]
    #: The whole report, and the (lease, epoch) for whose attempts it speaks by saying that they run.
    report: NodeReport
    speaks: frozenset[tuple[str, int]] = frozenset()
    #: Revision of the orders after it.
    revision: int = 0
    #: Revision of the orders that it was given last.
    given: int = 0


@dataclass(slots=True)
class Memory:
    """Changed only by `Keeper`, under its lock and after the commit."""

    policy: Policy
    policy_revision: int
    #: Number of this start of the writer.
    boot: int
    state: State = field(default_factory=State)
    entries: dict[str, Entry] = field(default_factory=dict)
    #: Owner key -> live lease.
    owners: dict[str, str] = field(default_factory=dict)
    #: Node -> live leases that hold something there.
    homes: dict[str, set[str]] = field(default_factory=dict)
    orders: dict[str, Orders] = field(default_factory=dict)
    reported: dict[str, Reported] = field(default_factory=dict)
    next_seq: int = 1
    next_segment: int = 1
    #: Rises with every change that `decide` or a page would see.
    version: int = 0
    #: Heartbeats that are not stored yet.
    pending: Batch = field(default_factory=Batch)
    #: Nodes that said the same again since the last tick.
    beats: set[str] = field(default_factory=set)
    #: Node -> hearing clock of its stored row.
    stored: dict[str, float] = field(default_factory=dict)

    @property
    def first_revision(self) -> int:
        """Revisions of orders start here: higher than any that an earlier start of the writer gave out."""
        return self.boot << 32

    def leases_on(self, node: str) -> list[Lease]:
        """Live leases that hold something on the node."""
        return [self.state.leases[lease] for lease in sorted(self.homes.get(node, ()))]

    def says_the_same(self, report: NodeReport) -> bool:
        """Whether a report changes nothing but the time at which its node was heard."""
        known, node = self.reported.get(report.node), self.state.nodes.get(report.node)
        if known is None or node is None or node.heard is None or node.lost or report.orders_seen is None:
            return False
        same_orders = known.revision == self.orders_of(report.node).revision
        return same_orders and self.state.heard - node.heard <= FRESH_S and known.report == report

    def orders_of(self, node: str) -> Orders:
        """The node's orders; a node that never had any has none of the first revision."""
        return self.orders.get(node) or Orders(revision=self.first_revision, orders=())

    def index(self, old: Lease | None, new: Lease) -> None:
        """Keep `owners` and `homes` true after a lease changed."""
        before = {a.node for a in old.live} if old else set()
        after = {a.node for a in new.live}
        for node in before - after:
            self.homes[node].discard(new.id)
        for node in after - before:
            self.homes.setdefault(node, set()).add(new.id)
        key = owner_key(new.owner)
        if new.ended_at is not None:
            self.owners.pop(key, None)
        elif old is None:
            self.owners[key] = new.id

    def forget(self, ended: Iterable[Lease]) -> None:
        """Ended leases live on in the database only."""
        ids = [lease.id for lease in ended]
        if ids:
            self.state = self.state.without_leases(*ids)
        for lease in ids:
            self.entries.pop(lease, None)
