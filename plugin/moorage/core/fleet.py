"""Nodes as the placement engine knows them. What is not known is None, never zero, idle or free."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal

from moorage.core.request import CapacityType


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One device of a node."""

    #: Device index on its node, as CUDA_VISIBLE_DEVICES counts.
    index: int
    uuid: str
    #: Short model name, for example ``H100``.
    model: str
    #: Bytes of device memory.
    memory: int | None = None
    #: Number of the NVLink/NVSwitch island on its node; GPUs without a link are islands of one. None: not known.
    island: int | None = None
    #: None: the agent cannot tell.
    healthy: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One host: what its agent reported, what policy says about it, and what operators and clouds did to it."""

    id: str
    gpus: tuple[Gpu, ...] = ()
    #: CPU cores; None: not known.
    cpus: float | None = None
    #: Bytes of memory; None: not known.
    memory: int | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    #: Level name -> domain of that level, broadest level first, from policy over the labels.
    domains: Mapping[str, str] = field(default_factory=dict)
    #: GPU pool, its capacity type and its prices per GPU-hour in USD, from policy over the facts.
    pool: str = "default"
    capacity: CapacityType = CapacityType.ON_DEMAND
    price: Decimal = Decimal(0)
    on_demand_price: Decimal = Decimal(0)
    #: An operator's word: no new grants.
    cordoned: bool = False
    #: An operator's word: no new grants, and leases move away.
    draining: bool = False
    #: The cloud takes the node at this time. None: no notice.
    notice_deadline: datetime | None = None
    #: Declared lost: nothing on it counts any more, and it is used again only after a clean report.
    lost: bool = False
    #: Broker's hearing clock (seconds in which it could hear) at the last report. None: never heard.
    heard: float | None = None
