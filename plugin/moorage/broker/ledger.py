"""The ledger: one segment per allocation, price and activity; and exact sums that never walk closed segments again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal

from moorage.core.cost import Cost, Segment, cost
from moorage.core.fleet import Node
from moorage.core.job import Activity
from moorage.core.lease import Allocation, Lease

#: Activity, price and on-demand price.
Rate = tuple[Activity, Decimal, Decimal]
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Book:
    """A lease's ledger: open segments by allocation, and GPU-microseconds of the closed ones by rate."""

    open: Mapping[str, Segment] = field(default_factory=dict)
    closed: Mapping[Rate, int] = field(default_factory=dict)

    def with_segments(self, segments: Iterable[Segment]) -> Book:
        """Each segment closed (if it has an end) or opened, in order."""
        still, closed = dict(self.open), dict(self.closed)
        for segment in segments:
            if segment.end is None:
                still[segment.allocation] = segment
                continue
            if (known := still.get(segment.allocation)) and known.id == segment.id:
                del still[segment.allocation]
            rate = (segment.activity, segment.price, segment.on_demand_price)
            closed[rate] = closed.get(rate, 0) + len(segment.gpus) * ((segment.end - segment.start) // _MICROSECOND)
        return Book(still, closed)

    def cost(self, now: datetime) -> Cost:
        """The exact cost, open segments until `now`."""
        return cost([*_as_segments(self.closed), *self.open.values()], now)


def _as_segments(closed: Mapping[Rate, int]) -> Iterator[Segment]:
    """One segment of one GPU per rate: the sums are linear in GPU-microseconds, so nothing is rounded here."""
    for (activity, price, on_demand_price), gpu_time in closed.items():
        yield Segment(
            id=0,
            allocation="",
            lease="",
            epoch=0,
            team="",
            node="",
            pool="",
            gpus=(0,),
            activity=activity,
            price=price,
            on_demand_price=on_demand_price,
            start=_EPOCH,
            end=_EPOCH + gpu_time * _MICROSECOND,
        )


def cut(
    lease: Lease, book: Book, nodes: Mapping[str, Node], activity: Activity, now: datetime, next_id: int
) -> list[Segment]:
    """Segments that end or begin now so that the open ones say what is true; ends come before beginnings."""
    due = {a.id: a for a in lease.live if a.gpus}
    ended = [
        replace(segment, end=max(segment.start, _freed_at(segment, due, nodes, now)))
        for segment in book.open.values()
        if segment.allocation not in due or not _still(segment, nodes[segment.node], activity)
    ]
    closing = {segment.allocation for segment in ended}
    fresh = [a for a in due.values() if a.id in closing or a.id not in book.open]
    starts = {segment.allocation: segment.end for segment in ended}
    begun = [
        _opened(a, lease, nodes[a.node], activity, starts.get(a.id) or now, next_id + index)
        for index, a in enumerate(fresh)
    ]
    return [*ended, *begun]


def _still(segment: Segment, node: Node, activity: Activity) -> bool:
    """Whether the segment would be opened the same way now."""
    said = (segment.activity, segment.price, segment.on_demand_price, segment.pool)
    return said == (activity, node.price, node.on_demand_price, node.pool)


def _freed_at(segment: Segment, due: Mapping[str, Allocation], nodes: Mapping[str, Node], now: datetime) -> datetime:
    """Now; for a lost node with a notice, the notice's deadline if that is earlier: the cloud took it then."""
    node = nodes.get(segment.node)
    if segment.allocation in due or node is None or not node.lost or node.notice_deadline is None:
        return now
    return min(now, node.notice_deadline)


def _opened(a: Allocation, lease: Lease, node: Node, activity: Activity, start: datetime, number: int) -> Segment:
    return Segment(
        id=number,
        allocation=a.id,
        lease=lease.id,
        epoch=a.epoch,
        team=lease.team,
        node=a.node,
        pool=node.pool,
        gpus=a.gpus,
        activity=activity,
        price=node.price,
        on_demand_price=node.on_demand_price,
        start=start,
    )
