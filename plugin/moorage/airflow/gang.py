"""What `GpuTrainOperator` and `GpuLeaseOperator` ask for alike: a gang of workers, and where it may be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from moorage.airflow import options
from moorage.airflow.leased import LeasedOperator

if TYPE_CHECKING:
    from moorage.core.request import Request, Topology

#: Arguments that become the `Request`, under its own names.
ASKED = (
    "workers",
    "gpus_per_worker",
    "cpus_per_worker",
    "memory_per_worker",
    "gpu_memory",
    "models",
    "capacity",
    "topology",
    "labels",
    "multiple_of",
    "priority",
    "budget_usd",
    "deadline",
)


class GangOperator(LeasedOperator):
    """An operator with the arguments of a `Request`; each may be a template.

    Args:
        workers: (min, max), or one number. Above min, workers come and go by what measured throughput and loss say.
        gpus_per_worker, cpus_per_worker, memory_per_worker, gpu_memory: of each worker; memory in bytes.
        models: acceptable GPU models; None: any.
        capacity: the least steady capacity tolerated: ``reserved``, ``on-demand`` or ``spot``.
        topology: ``{"required": level}`` or ``{"preferred": level}``.
        labels: node labels that must match.
        multiple_of: worker counts must be min + k * multiple_of.
        priority: higher goes first.
        budget_usd: dollars after which the broker stops the lease.
        deadline: when the result is wanted (a `timedelta` counts from submission): steers and warns, never stops.
            What stops is `execution_timeout` and the DAG's `dagrun_timeout`.
    """

    def __init__(
        self,
        *,
        workers: int | str | tuple[int, int] = 1,
        gpus_per_worker: int | str = 1,
        cpus_per_worker: float | str = 0,
        memory_per_worker: int | str = 0,
        gpu_memory: int | str | None = None,
        models: Sequence[str] | str | None = None,
        capacity: str = "on-demand",
        topology: Mapping[str, str] | Topology | str | None = None,
        labels: Mapping[str, str] | None = None,
        multiple_of: int | str = 1,
        priority: int | str = 0,
        budget_usd: Decimal | float | str | None = None,
        deadline: datetime | timedelta | str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.workers, self.gpus_per_worker, self.multiple_of = workers, gpus_per_worker, multiple_of
        self.cpus_per_worker, self.memory_per_worker, self.gpu_memory = cpus_per_worker, memory_per_worker, gpu_memory
        self.models, self.capacity, self.topology, self.labels = models, capacity, topology, labels
        self.priority, self.budget_usd, self.deadline = priority, budget_usd, deadline

    def request(self, now: datetime, stop_at: datetime | None) -> Request:
        """The request, from rendered fields. Raises `Invalid`."""
        return options.request({**{name: getattr(self, name) for name in ASKED}, "stop_at": stop_at}, now)
