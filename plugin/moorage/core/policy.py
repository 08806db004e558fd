"""What the operators decided: levels, GPU pools, teams, grace periods. One immutable value per revision."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal

from moorage.core.invalid import Invalid
from moorage.core.request import CapacityType


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """A topology level and the node labels that name its domain, first match wins. There is no standard for these."""

    #: What requests call it, for example ``rack``.
    name: str
    #: Node labels, the most telling first.
    labels: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """A GPU pool: nodes with one price and one capacity type."""

    #: What the ledger and the pages call it.
    name: str
    #: ``reserved``, ``on-demand`` or ``spot``.
    capacity: CapacityType = CapacityType.ON_DEMAND
    #: USD per GPU-hour.
    price: Decimal = Decimal(0)
    #: USD per GPU-hour of the same GPU on demand, for what was saved; None: the same as `price`.
    on_demand_price: Decimal | None = None
    #: Node labels that must all match; the first pool that matches wins.
    match: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.price < 0:
            raise Invalid(f"pools.{self.name}.price", str(self.price), "must not be negative")


@dataclass(frozen=True, slots=True, kw_only=True)
class Team:
    """Who pays."""

    #: As tokens name it.
    name: str
    #: GPUs that the team may hold at once; None: no limit.
    quota: int | None = None
    #: Its share of a full fleet, relative to the other teams'.
    weight: float = 1.0


#: Label families that clouds and topology tools put on nodes, broadest level first.
DEFAULT_LEVELS = (
    Level(name="zone", labels=("moorage.io/zone", "topology.kubernetes.io/zone")),
    Level(
        name="block",
        labels=(
            "moorage.io/block",
            "cloud.google.com/gce-topology-block",
            "topology.k8s.aws/network-node-layer-2",
            "network.topology.nvidia.com/spine",
        ),
    ),
    Level(
        name="rack",
        labels=(
            "moorage.io/rack",
            "cloud.google.com/gce-topology-subblock",
            "topology.k8s.aws/network-node-layer-3",
            "network.topology.nvidia.com/leaf",
        ),
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Elastic:
    """When a lease grows and shrinks. Rates are relative; seconds are wall clock."""

    #: Observations at the present size before it is judged.
    settle_observations: int = 5
    #: Seconds after a resize before the next voluntary one.
    cooldown_s: float = 10.0
    #: Grow only if the time saved on the work left exceeds this many times the cost of a resize.
    payback: float = 2.0
    #: Seconds that a resize stops training, until one was measured.
    resize_cost_s: float = 8.0
    #: Grow to n only if throughput(n) / (n x throughput(1)) stays above this.
    min_efficiency: float = 0.5
    #: The loss is flat when the last window of samples improved it by less than this share.
    flat_improvement: float = 0.02
    #: Width of that window, as a share of all samples.
    flat_window: float = 0.15
    #: A loss at or below this share of its first value cannot be told from flat by its ratio alone.
    flat_floor: float = 0.05
    #: After a shrink because the loss was flat, grow again only once it fell by this share below where it was flat.
    regrow_improvement: float = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """All of it. Seconds are counted on the broker's hearing clock where they measure silence."""

    #: Topology levels, broadest first.
    levels: tuple[Level, ...] = DEFAULT_LEVELS
    #: A node that no pool matches is in a pool ``default`` without a price.
    pools: tuple[Pool, ...] = ()
    #: Teams not named here exist with no quota and weight 1.
    teams: tuple[Team, ...] = ()
    #: When leases grow and shrink.
    elastic: Elastic = Elastic()
    #: Owner of a lease with a job silent for so long: `Job.on_owner_silent` applies.
    owner_grace_s: float = 3600.0
    #: Owner of a lease without a job silent for so long: it is released.
    owner_grace_jobless_s: float = 120.0
    #: `unwatch` releases after this, unless another watcher is there.
    unwatch_grace_s: float = 5.0
    #: Attempt silent (trainer and agent both): retry.
    attempt_silent_s: float = 60.0
    #: Node silent: no new grants there.
    node_stale_s: float = 15.0
    #: Node silent, and no progress of anything on it: it is lost, and what it held is freed.
    node_lost_s: float = 600.0
    #: A gang below its min is stopped whole after this.
    repair_s: float = 120.0
    #: A stop gives the attempt this long to checkpoint.
    stop_grace_s: float = 30.0
    #: An attempt that was granted must be heard within this.
    start_s: float = 180.0
    #: First pause before a retry; it doubles with each.
    retry_first_s: float = 2.0
    #: Longest pause before a retry.
    retry_max_s: float = 60.0
    #: Attempts in a row without a new step, whatever ended them (preemption aside), before the lease fails.
    fruitless_attempts: int = 20
    #: A node whose notice's deadline passed is lost after this much silence.
    notice_silent_s: float = 5.0
    #: GPU time of an attempt that was silent for longer is of unknown use.
    unknown_after_s: float = 15.0
    #: Warn when this share of a budget is spent.
    budget_warn: float = 0.8
    #: Elastic sizes and moves are thought over at most this often.
    rebalance_every_s: float = 2.0
    #: Length bound of `Lease.observations`.
    observations: int = 256
    #: fsspec URL below which jobs without a `storage` of their own put checkpoints. None: they cannot resume.
    storage: str | None = None
    #: Most GPUs that preemption may take, as a multiple of what the request needs.
    preempt_ratio: float = 2.0
    #: Voluntary disruption (preempt, grow, shrink, move) is stopped; grants go on.
    frozen: bool = False

    @property
    def level_names(self) -> tuple[str, ...]:
        """Every level that a request may name, broadest first."""
        return (*(level.name for level in self.levels), "host", "island")
