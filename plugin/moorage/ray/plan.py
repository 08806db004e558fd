"""Which leases Ray's demand needs, and which it does not need any more. Pure: values in, values out.

::

    gangs ----> own lease? ----> lease of its key with room? ----> submit
    singles --> leases of their shape that are coming? ----------> submit, into a free slot
    leases that gave Ray nothing and serve nothing --------------> unwanted
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from moorage.core.invalid import Invalid
from moorage.core.lease import Allocation, Lease, LeaseState
from moorage.ray.demand import (
    CLASS,
    GANG,
    GROUP,
    SHAPE,
    SHARED,
    SLOT,
    Cluster,
    Demand,
    Gang,
    RayNode,
    Shape,
    Singles,
    gang_owner,
    gang_shape,
    shape_id,
    shared_owner,
    single_shape,
    submission,
)


@dataclass(frozen=True, slots=True)
class Want:
    """A lease to ask for. `demand` names what it is for: a placement group's id, or a slot of the shared class."""

    demand: str
    owner: Mapping[str, str]
    shape: Shape
    #: The demand does not bind its lease: keeping it together is best effort.
    unbound: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """What follows from Ray's demand and the broker's leases at one moment."""

    submit: tuple[Want, ...] = ()
    #: Leases whose demand is gone and of which Ray has no raylet.
    unwanted: frozenset[str] = frozenset()
    #: Lease -> gang that waits for it: its raylets are not idle, they wait for each other.
    serving: Mapping[str, str] = field(default_factory=dict)
    #: Demand (a placement group's id, or the shared class and its resources) -> why it can never be served.
    impossible: Mapping[str, str] = field(default_factory=dict)


def plan(
    demand: Demand, cluster: Cluster, leases: Sequence[Lease], nodes: Sequence[RayNode], *, max_shared: int
) -> Plan:
    """Match demand to leases; what is left over is to be submitted.

    Args:
        leases: live leases of this cluster, in any order.
        nodes: raylets that Ray has.
        max_shared: most leases of the shared class at once.
    """
    return _Planner(cluster, leases, {node.instance: node for node in nodes}, max_shared).plan(demand)


@dataclass
class _Planner:
    cluster: Cluster
    leases: Sequence[Lease]
    nodes: Mapping[str, RayNode]
    max_shared: int
    wants: list[Want] = field(default_factory=list)
    impossible: dict[str, str] = field(default_factory=dict)

    def plan(self, demand: Demand) -> Plan:
        serving = self._match(demand.gangs)
        served = set(serving.values())
        for gang in demand.gangs:
            if gang.id not in served:
                self._want_gang(gang)
        needed = self._want_singles(demand.singles) | set(serving)
        unwanted = {x.id for x in self.leases if x.state is not LeaseState.STOPPING and not self._here(x)} - needed
        return Plan(tuple(self.wants), frozenset(unwanted), serving, self.impossible)

    # --- gangs

    def _match(self, gangs: Sequence[Gang]) -> dict[str, str]:
        """Lease id -> gang id: own leases first, then others that have room."""
        own = {lease.owner[GROUP]: lease.id for lease in self.leases if GROUP in lease.owner}
        serving = {own[gang.id]: gang.id for gang in gangs if gang.id in own}
        for gang in gangs:
            if gang.id in own:
                continue
            lease = next((x for x in self.leases if x.id not in serving and self._has_room(x, gang)), None)
            if lease is not None:
                serving[lease.id] = gang.id
        return serving

    def _has_room(self, lease: Lease, gang: Gang) -> bool:
        """Whether a lease that was asked for by another group will hold this one: same key, and not busy.

        A group that lost bundles is placed again on its old lease, which the broker repairs.
        """
        if lease.state is LeaseState.STOPPING or CLASS in lease.owner or _key(lease) != gang.key:
            return False
        missing = len(self._joined(lease)) < lease.request.workers[0]
        if gang.rescheduling:
            return missing
        idle = any(self.nodes[a.id].idle_ms > 0 for a in self._joined(lease))
        return gang.key is not None and (missing or idle) and _fits(lease, gang)

    def _want_gang(self, gang: Gang) -> None:
        owner = gang_owner(self.cluster, gang)
        try:
            shape = gang_shape(gang)
            submission(self.cluster, owner, shape, 1)
        except Invalid as error:
            self.impossible[gang.id] = str(error)
        else:
            self.wants.append(Want(gang.id, owner, shape, unbound=gang.key is None))

    # --- singles

    def _want_singles(self, singles: Sequence[Singles]) -> set[str]:
        """Want a lease for each single that no coming lease will hold; returns the coming leases that are needed."""
        free = self.max_shared - sum(CLASS in lease.owner for lease in self.leases)
        needed: set[str] = set()
        for name, (shape, count) in self._by_shape(singles).items():
            # Oldest first, so that what is withdrawn is what waited least.
            coming = sorted(x.id for x in self.leases if x.owner.get(SHAPE) == name and not self._settled(x))
            needed |= set(coming[:count])
            missing = max(0, min(count - len(coming), free))
            free -= missing
            for _, slot in zip(range(missing), self._free_slots(name), strict=False):
                want = f"{SHARED} {name}/{slot}"
                self.wants.append(Want(want, shared_owner(self.cluster, name, slot), shape, unbound=True))
        return needed

    def _by_shape(self, singles: Sequence[Singles]) -> dict[str, tuple[Shape, int]]:
        found: dict[str, tuple[Shape, int]] = {}
        for one in singles:
            shape = self._shape(one)
            if shape is not None:
                count = found.get(shape_id(shape), (shape, 0))[1] + one.count
                found[shape_id(shape)] = shape, count
        return found

    def _shape(self, one: Singles) -> Shape | None:
        """None: it waits for a gang that has its own lease, or it can never be served."""
        if any("_group_" in resource for resource in one.bundle.resources):
            return None
        try:
            shape = single_shape(one)
            submission(self.cluster, shared_owner(self.cluster, "", 0), shape, 1)
        except Invalid as error:
            self.impossible[f"{SHARED} task or actor {dict(one.bundle.resources)}"] = str(error)
            return None
        key = shape.steering.get(GANG)
        if key is not None and any(GROUP in x.owner and _key(x) == key for x in self.leases):
            return None
        return shape

    def _free_slots(self, name: str) -> Iterator[int]:
        taken = {lease.owner.get(SLOT) for lease in self.leases if lease.owner.get(SHAPE) == name}
        return (slot for slot in range(self.max_shared) if str(slot) not in taken)

    # --- raylets

    def _joined(self, lease: Lease) -> list[Allocation]:
        return [a for a in lease.live if a.id in self.nodes]

    def _here(self, lease: Lease) -> bool:
        return bool(self._joined(lease))

    def _settled(self, lease: Lease) -> bool:
        return any(self.nodes[a.id].settled for a in self._joined(lease))


def named(demand: str) -> str:
    """A demand as people know it."""
    return demand if demand.startswith(SHARED) else f"placement group {demand}"


def _key(lease: Lease) -> str | None:
    return lease.job.ray_labels.get(GANG) if lease.job else None


def _fits(lease: Lease, gang: Gang) -> bool:
    try:
        shape = gang_shape(gang)
    except Invalid:
        return False
    request = lease.request
    return request.workers[0] >= shape.workers and request.gpus_per_worker >= shape.gpus
