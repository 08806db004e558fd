"""What an owner asks for: workers, the resources of each, and constraints on where they may run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from enum import StrEnum

from moorage.core.invalid import Invalid, require_aware


class CapacityType(StrEnum):
    """How steady a node is, steadiest first."""

    RESERVED = "reserved"
    ON_DEMAND = "on-demand"
    SPOT = "spot"

    def tolerates(self, offered: CapacityType) -> bool:
        """Whether a job that asks for ``self`` may run on ``offered``: never on anything less steady."""
        order = list(CapacityType)
        return order.index(offered) <= order.index(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """Which domain all workers share. Level names: the policy's (`Policy.levels`), plus ``host`` and ``island``."""

    #: Level whose one domain must hold every worker; a request that cannot have that waits.
    required: str | None = None
    #: Level to try first; the lowest level that fits is taken, and the decision says which.
    preferred: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A gang: between ``workers[0]`` and ``workers[1]`` equal workers, and where they may be.

    Raises:
        Invalid: a field that can never be right; the field, its value and the fix are named.
    """

    #: (min, max). The gang starts with at least min or not at all; above min each worker can be given back.
    workers: tuple[int, int] = (1, 1)
    #: Whole GPUs of each worker, all on one node.
    gpus_per_worker: int = 1
    #: CPU cores of each worker; 0 reserves none.
    cpus_per_worker: float = 0
    #: Bytes of memory of each worker; 0 reserves none.
    memory_per_worker: int = 0
    #: Bytes that each GPU must have at least; None: any.
    gpu_memory: int | None = None
    #: Acceptable GPU models, for example ("H100", "A100"); empty: any.
    models: tuple[str, ...] = ()
    #: The least steady capacity that the job tolerates; steadier is used where it is cheaper or all there is.
    capacity: CapacityType = CapacityType.ON_DEMAND
    topology: Topology = Topology()
    #: Node labels that must match exactly.
    labels: Mapping[str, str] = field(default_factory=dict)
    #: Worker counts must be min + k * multiple_of (a tensor-parallel replica moves as a unit).
    multiple_of: int = 1
    #: Higher goes first.
    priority: int = 0
    #: Dollars that the lease may spend; the broker stops it in time. None: no limit.
    budget_usd: Decimal | None = None
    #: When the result is wanted: steers and warns, never stops.
    deadline: datetime | None = None
    #: When the lease is stopped, a checkpoint first.
    stop_at: datetime | None = None

    def __post_init__(self) -> None:
        low, high = self.workers
        if low < 1:
            raise Invalid("workers", self.workers, "min must be at least 1")
        if high < low:
            raise Invalid("workers", self.workers, f"max must not be below min; did you mean ({high}, {low})?")
        if self.gpus_per_worker < 1:
            raise Invalid("gpus_per_worker", self.gpus_per_worker, "give each worker at least 1 GPU")
        if self.cpus_per_worker < 0:
            raise Invalid("cpus_per_worker", self.cpus_per_worker, "must not be negative")
        if self.memory_per_worker < 0:
            raise Invalid("memory_per_worker", self.memory_per_worker, "must not be negative")
        if self.multiple_of < 1:
            raise Invalid("multiple_of", self.multiple_of, "must be at least 1")
        if self.budget_usd is not None and not (self.budget_usd.is_finite() and self.budget_usd > 0):
            raise Invalid("budget_usd", str(self.budget_usd), "give a positive amount of dollars, or none for no limit")
        require_aware("deadline", self.deadline)
        require_aware("stop_at", self.stop_at)

    @property
    def counts(self) -> range:
        """The worker counts that the gang may have, smallest first."""
        return range(self.workers[0], self.workers[1] + 1, self.multiple_of)

    @property
    def elastic(self) -> bool:
        """Whether the gang may have more than one size."""
        return len(self.counts) > 1
