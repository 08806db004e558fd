"""All that `decide` sees: an immutable fleet and its leases.

A change returns another state and copies only what changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from moorage.core.fleet import Node
from moorage.core.lease import Lease


@dataclass(frozen=True, slots=True)
class State:
    """Nodes and leases that are not ended, and the broker's hearing clock (seconds in which it could hear)."""

    nodes: Mapping[str, Node] = field(default_factory=dict)
    leases: Mapping[str, Lease] = field(default_factory=dict)
    heard: float = 0.0

    def with_nodes(self, *nodes: Node) -> State:
        return replace(self, nodes={**self.nodes, **{node.id: node for node in nodes}})

    def with_leases(self, *leases: Lease) -> State:
        """With these leases; how long a gang is short is counted from here, on the hearing clock."""
        return replace(self, leases={**self.leases, **{lease.id: self._stamped(lease) for lease in leases}})

    def _stamped(self, lease: Lease) -> Lease:
        if (lease.short_since is None) == (lease.short_heard is None):
            return lease
        return replace(lease, short_heard=None if lease.short_since is None else self.heard)

    def without_leases(self, *ids: str) -> State:
        return replace(self, leases={key: value for key, value in self.leases.items() if key not in ids})

    def hearing(self, heard: float) -> State:
        return replace(self, heard=heard)
