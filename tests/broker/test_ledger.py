"""Cuts of the ledger, and sums that are exact however often it is cut."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal

from hypothesis import given
from hypothesis import strategies as st

from moorage.broker.ledger import Book, cut
from moorage.core.cost import Segment, cost
from moorage.core.fleet import Node
from moorage.core.job import Activity, Job
from moorage.core.lease import Allocation, AllocationRole, AllocationState, Lease
from moorage.core.request import Request

T0 = datetime(2026, 1, 1, tzinfo=UTC)
BUSY, OVERHEAD = Activity.BUSY, Activity.OVERHEAD


def at(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


def allocation(number: int, gpus: tuple[int, ...] = (0,), state: AllocationState = AllocationState.HELD) -> Allocation:
    role = AllocationRole.WORKER if gpus else AllocationRole.HEAD
    return Allocation(id=f"L.{number}", lease="L", epoch=1, node="n1", role=role, gpus=gpus, workers=1, state=state)


def lease(*allocations: Allocation) -> Lease:
    job = Job(entrypoint=("x",))
    return Lease(
        id="L", owner={}, generation=1, team="t", request=Request(), job=job, submitted_at=T0, allocations=allocations
    )


def nodes(**changes: object) -> dict[str, Node]:
    return {"n1": Node(**{"id": "n1", "price": Decimal(2), "on_demand_price": Decimal(3), **changes})}  # type: ignore[arg-type]


def told(segments: list[Segment]) -> list[tuple[int, str, str, float, float | None]]:
    return [
        (
            s.id,
            s.allocation,
            str(s.activity),
            (s.start - T0).total_seconds(),
            (s.end - T0).total_seconds() if s.end else None,
        )
        for s in segments
    ]


def opened(*allocations: Allocation) -> Book:
    return Book().with_segments(cut(lease(*allocations), Book(), nodes(), BUSY, at(0), 1))


def test_an_allocation_with_gpus_opens_one_segment_and_a_head_none() -> None:
    segments = cut(lease(allocation(1, ()), allocation(2, (0, 1))), Book(), nodes(), OVERHEAD, at(0), 5)
    assert told(segments) == [(5, "L.2", "overhead", 0, None)]


def test_nothing_changed_cuts_nothing() -> None:
    assert cut(lease(allocation(1)), opened(allocation(1)), nodes(), BUSY, at(9), 7) == []


def test_another_activity_closes_and_opens_at_the_same_instant() -> None:
    segments = cut(lease(allocation(1)), opened(allocation(1)), nodes(), OVERHEAD, at(4), 7)
    assert told(segments) == [(1, "L.1", "busy", 0, 4), (7, "L.1", "overhead", 4, None)]


def test_another_price_closes_and_opens() -> None:
    segments = cut(lease(allocation(1)), opened(allocation(1)), nodes(price=Decimal(1)), BUSY, at(4), 7)
    assert [(s.price, s.end) for s in segments] == [(Decimal(2), at(4)), (Decimal(1), None)]


def test_a_freed_allocation_closes() -> None:
    freed = allocation(1, state=AllocationState.FREED)
    assert told(cut(lease(freed), opened(allocation(1)), nodes(), BUSY, at(4), 7)) == [(1, "L.1", "busy", 0, 4)]


def test_a_lost_nodes_segment_ends_when_its_notice_did() -> None:
    freed = allocation(1, state=AllocationState.FREED)
    gone = nodes(lost=True, notice_deadline=at(3))
    assert told(cut(lease(freed), opened(allocation(1)), gone, BUSY, at(9), 7)) == [(1, "L.1", "busy", 0, 3)]
    late = nodes(lost=True, notice_deadline=at(-3))
    assert told(cut(lease(freed), opened(allocation(1)), late, BUSY, at(9), 7)) == [(1, "L.1", "busy", 0, 0)]


moments = st.lists(
    st.tuples(st.integers(0, 10_000_000), st.sampled_from(list(Activity)), st.decimals("0", "9", places=4)), max_size=30
)


@given(moments)
def test_cached_sums_equal_the_sum_over_all_segments(steps: list[tuple[int, Activity, Decimal]]) -> None:
    book, every, now = Book(), {}, T0
    held = lease(allocation(1, (0, 1, 2)))
    for microseconds, activity, price in steps:
        now += timedelta(microseconds=microseconds)
        segments = cut(held, book, nodes(price=price), activity, now, len(every) + 1)
        every |= {segment.id: segment for segment in segments}
        book = book.with_segments(segments)
    later = now + timedelta(seconds=1)
    assert book.cost(later) == cost(every.values(), later)
    assert len(book.open) == min(1, len(steps))
