"""What Ray wants, and what is asked of the broker for it. Pure: values in, values out.

::

    Gang, Singles (Ray's demand)  --gang_shape, single_shape-->  Shape  --submission-->  Submission (the broker's)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from hashlib import sha256

from moorage.api.values import Submission
from moorage.core.invalid import Invalid
from moorage.core.job import Job, JobKind, OwnerSilent
from moorage.core.request import CapacityType, Request, Topology

#: Label selectors that steer a lease. The lease's raylets carry them too, so that Ray finds them.
GANG = "moorage.io/gang"
REQUIRED = "moorage.io/required"
PREFERRED = "moorage.io/preferred"
PRIORITY = "moorage.io/priority"
CAPACITY = "moorage.io/capacity"
STEERING = frozenset({GANG, REQUIRED, PREFERRED, PRIORITY, CAPACITY})
ACCELERATOR = "ray.io/accelerator-type"

#: Owner labels of the hook's leases.
HEAD = "ray.head"
CLUSTER = "ray.cluster"
GROUP = "ray.placement_group"
RAY_JOB = "ray.job"
CLASS = "ray.class"
SHAPE = "ray.shape"
SLOT = "ray.slot"
SHARED = "shared"

#: Tells the agent how many CPUs one worker's raylet offers to Ray.
CPUS_PER_WORKER = "MOORAGE_CPUS_PER_WORKER"

#: Where gangs go that say nothing: one rack, if one has room.
RACK = Topology(preferred="rack")

_KNOWN = frozenset({"CPU", "GPU", "memory", "object_store_memory"})
_ACCELERATOR_RESOURCE = "accelerator_type:"


@dataclass(frozen=True, slots=True)
class Selector:
    """One constraint of a Ray label selector: the label's value is (or is not) one of `values`."""

    key: str
    values: tuple[str, ...]
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Bundle:
    """Resources that are taken from one Ray node."""

    resources: Mapping[str, float]
    selectors: tuple[Selector, ...] = ()


@dataclass(frozen=True, slots=True)
class Gang:
    """A placement group that Ray cannot place now."""

    #: 36 hex digits.
    id: str
    strategy: str
    bundles: tuple[Bundle, ...]
    #: It was placed and lost the bundles named here.
    rescheduling: bool = False

    @property
    def key(self) -> str | None:
        """Gang key of its label selectors; None: it does not bind its lease."""
        return gang_key(self.bundles)

    @property
    def job(self) -> str:
        """Hex id of the Ray job: the last four bytes of every placement group id."""
        return self.id[-8:]


@dataclass(frozen=True, slots=True)
class Singles:
    """`count` equal tasks or actors that wait outside of any placement group."""

    bundle: Bundle
    count: int


@dataclass(frozen=True, slots=True)
class Demand:
    """All that Ray cannot place now."""

    gangs: tuple[Gang, ...] = ()
    singles: tuple[Singles, ...] = ()


@dataclass(frozen=True, slots=True)
class RayNode:
    """A raylet as Ray sees it. `instance` is the allocation's id."""

    instance: str
    #: Milliseconds without work; 0 while something runs or is reserved on it.
    idle_ms: int = 0
    #: False: it joined so recently that the demand does not count it yet.
    settled: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """The Ray cluster that is served, and what its owner decided for all of its leases."""

    #: ``host:port`` of the head, as the raylets reach it.
    address: str
    head: str
    #: Ray's session name: another one is another cluster, with nothing left of the old one.
    session: str
    token_file: str | None = None
    team: str | None = None
    priority: int = 0
    budget_usd: Decimal | None = None
    capacity: CapacityType = CapacityType.ON_DEMAND
    topology: Topology = RACK

    @property
    def owner(self) -> Mapping[str, str]:
        """Labels that all leases of this session have."""
        return {HEAD: f"{self.head}@{self.address}", CLUSTER: self.session}


# --- shape: how many raylets of which size


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Equal raylets that hold all bundles of a demand."""

    workers: int
    gpus: int
    cpus: float = 0
    #: Bytes.
    memory: int = 0
    models: tuple[str, ...] = ()
    #: Exact node labels.
    labels: Mapping[str, str] = field(default_factory=dict)
    #: Steering labels.
    steering: Mapping[str, str] = field(default_factory=dict)


def gang_shape(gang: Gang) -> Shape:
    """One raylet per bundle with GPUs; bundles without one share those raylets, where the strategy allows.

    Raises:
        Invalid: bundles that no raylet of Moorage can hold; says which and why.
    """
    models, labels, steering = _wishes(gang.bundles)
    loads = _loads(gang)
    return Shape(
        workers=len(loads),
        gpus=max(1, *(math.ceil(_total(load, "GPU")) for load in loads)),
        cpus=max(_total(load, "CPU") for load in loads),
        memory=math.ceil(max(_total(load, "memory") for load in loads)),
        models=models,
        labels=labels,
        steering=steering,
    )


def single_shape(singles: Singles) -> Shape:
    """One raylet for one task or actor. Raises `Invalid` like `gang_shape`."""
    return gang_shape(Gang(id="", strategy="PACK", bundles=(singles.bundle,)))


def _loads(gang: Gang) -> list[list[Mapping[str, float]]]:
    """For each raylet, the bundles that it is to hold."""
    with_gpu = [b.resources for b in gang.bundles if b.resources.get("GPU", 0) > 0]
    others = [b.resources for b in gang.bundles if b.resources.get("GPU", 0) <= 0]
    if not with_gpu:
        raise Invalid("bundles", _said(gang.bundles), "ask for at least one GPU; Moorage starts no nodes without GPUs")
    match gang.strategy:
        case "STRICT_PACK":
            return [[*with_gpu, *others]]
        case "STRICT_SPREAD":
            return [[resources] for resources in (*with_gpu, *others)]
        case _:
            return [[resources, *others[i :: len(with_gpu)]] for i, resources in enumerate(with_gpu)]


def _total(load: Sequence[Mapping[str, float]], resource: str) -> float:
    return sum(resources.get(resource, 0) for resources in load)


def _wishes(bundles: Sequence[Bundle]) -> tuple[tuple[str, ...], dict[str, str], dict[str, str]]:
    """GPU models, exact labels and steering labels of all bundles together."""
    models: set[str] = set()
    labels: dict[str, str] = {}
    for bundle in bundles:
        models |= _models_of_resources(bundle)
        for selector in bundle.selectors:
            if selector.key == ACCELERATOR and not selector.negated:
                models |= set(selector.values)
            else:
                _add_exact(labels, selector)
    steering = {key: labels.pop(key) for key in list(labels) if key in STEERING}
    return tuple(sorted(models)), labels, steering


def _models_of_resources(bundle: Bundle) -> set[str]:
    """``accelerator_type:H100: 0.001`` is how Ray says ``accelerator_type="H100"``."""
    unknown = [r for r in bundle.resources if r not in _KNOWN and not r.startswith(_ACCELERATOR_RESOURCE)]
    if unknown:
        raise Invalid("bundles", unknown[0], "leave custom resources out; raylets of Moorage offer CPU, GPU and memory")
    return {r.removeprefix(_ACCELERATOR_RESOURCE) for r in bundle.resources if r.startswith(_ACCELERATOR_RESOURCE)}


def _add_exact(labels: dict[str, str], selector: Selector) -> None:
    said = f"{selector.key} {'not in' if selector.negated else 'in'} {', '.join(selector.values)}"
    if selector.negated or len(selector.values) != 1:
        raise Invalid("label_selector", said, "name exactly one value; only GPU models may be a choice")
    if labels.setdefault(selector.key, selector.values[0]) != selector.values[0]:
        raise Invalid("label_selector", said, "ask for the same value in every bundle: they are one gang")


def _said(bundles: Sequence[Bundle]) -> str:
    return "; ".join(str(dict(bundle.resources)) for bundle in bundles)


def gang_key(bundles: Sequence[Bundle]) -> str | None:
    keys = (s.values[0] for b in bundles for s in b.selectors if s.key == GANG and len(s.values) == 1 and not s.negated)
    return next(keys, None)


# --- submission


def submission(cluster: Cluster, owner: Mapping[str, str], shape: Shape, generation: int) -> Submission:
    """The broker's request for a shape. The client id is made of owner and generation, so a repeated call is one.

    Raises:
        Invalid: a steering label with an unknown value.
    """
    steering = shape.steering
    return Submission(
        owner=owner,
        request=Request(
            workers=(shape.workers, shape.workers),
            gpus_per_worker=shape.gpus,
            cpus_per_worker=shape.cpus,
            memory_per_worker=shape.memory,
            models=shape.models,
            labels=shape.labels,
            capacity=_capacity(steering, cluster.capacity),
            topology=_topology(steering, cluster.topology),
            priority=_priority(steering, cluster.priority),
            budget_usd=cluster.budget_usd,
        ),
        job=Job(
            kind=JobKind.RAYLET,
            head=cluster.address,
            head_token_file=cluster.token_file,
            # Nobody but the hook gives idle raylets back: without it they must not stay for ever.
            on_owner_silent=OwnerSilent.RELEASE,
            env={CPUS_PER_WORKER: f"{shape.cpus:g}"},
            ray_labels={**shape.labels, **steering},
        ),
        client_id=f"{_digest(owner)}/{generation}",
        team=cluster.team,
    )


def gang_owner(cluster: Cluster, gang: Gang) -> dict[str, str]:
    """Owner labels of a placement group's lease."""
    return {**cluster.owner, GROUP: gang.id, RAY_JOB: gang.job}


def shared_owner(cluster: Cluster, shape_id: str, slot: int) -> dict[str, str]:
    """Owner labels of one lease of the shared class."""
    return {**cluster.owner, CLASS: SHARED, SHAPE: shape_id, SLOT: str(slot)}


def shape_id(shape: Shape) -> str:
    """A name for a single's shape: the same demand finds its leases again, also after a restart."""
    wishes = (shape.models, sorted(shape.labels.items()), sorted(shape.steering.items()))
    return f"g{shape.gpus}-c{shape.cpus:g}-m{shape.memory}-{_digest(wishes)[:8]}"


def _digest(value: object) -> str:
    text = repr(sorted(value.items()) if isinstance(value, Mapping) else value)
    return sha256(text.encode()).hexdigest()[:32]


def _topology(steering: Mapping[str, str], default: Topology) -> Topology:
    if REQUIRED in steering:
        return Topology(required=steering[REQUIRED], preferred=steering.get(PREFERRED))
    return Topology(preferred=steering[PREFERRED]) if PREFERRED in steering else default


def _priority(steering: Mapping[str, str], default: int) -> int:
    text = steering.get(PRIORITY)
    if text is None:
        return default
    try:
        return int(text)
    except ValueError:
        raise Invalid(PRIORITY, text, "give a whole number") from None


def _capacity(steering: Mapping[str, str], default: CapacityType) -> CapacityType:
    text = steering.get(CAPACITY)
    if text is None:
        return default
    try:
        return CapacityType(text)
    except ValueError:
        raise Invalid(CAPACITY, text, f"give one of {', '.join(CapacityType)}") from None
