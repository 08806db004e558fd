"""What a lease costs: ledger segments, and exact sums over them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from moorage.core.job import Activity


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Dollars and GPU-seconds of a lease. busy + idle + lost + overhead + unknown = total, exactly."""

    total_usd: Decimal = Decimal(0)
    busy_usd: Decimal = Decimal(0)
    idle_usd: Decimal = Decimal(0)
    lost_usd: Decimal = Decimal(0)
    overhead_usd: Decimal = Decimal(0)
    unknown_usd: Decimal = Decimal(0)
    #: The same GPU-seconds at the on-demand price of then, minus `total_usd`.
    saved_usd: Decimal = Decimal(0)
    gpu_seconds: Decimal = Decimal(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """One allocation at one price and one activity for one interval. Closed ones never change. `end` None: open."""

    id: int
    allocation: str
    lease: str
    epoch: int
    team: str
    node: str
    pool: str
    gpus: tuple[int, ...]
    activity: Activity
    #: USD per GPU-hour, paid and on demand.
    price: Decimal
    on_demand_price: Decimal
    start: datetime
    end: datetime | None = None
