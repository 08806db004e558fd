"""Money: exact, and what a second of a lease was."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from fractions import Fraction

import pytest
from core_builders import HEARD, POLICY, PROCESS, RAY, RAYLET, T0, at, fleet, lease, node, running
from hypothesis import given
from hypothesis import strategies as st

from moorage.core.cost import Cost, Segment, activity, cost
from moorage.core.follow import heard
from moorage.core.job import Activity, Job, Phase, Progress
from moorage.core.lease import Lease, LeaseState

PARTS = ("busy_usd", "idle_usd", "lost_usd", "overhead_usd", "unknown_usd")


def segment(
    seconds: float, what: Activity = Activity.BUSY, gpus: int = 1, price: str = "0.60", full: str = "2.00"
) -> Segment:
    return Segment(
        id=1, allocation="x.1", lease="x", epoch=1, team="red", node="n1", pool="spot", gpus=tuple(range(gpus)),
        activity=what, price=Decimal(price), on_demand_price=Decimal(full), start=T0, end=at(seconds),
    )  # fmt: skip


def test_nothing() -> None:
    assert cost((), T0) == Cost(saved_usd=Decimal("0.000000"), total_usd=Decimal("0.000000"), gpu_seconds=Decimal(0))


def test_a_quarter_of_an_hour_of_four_gpus() -> None:
    found = cost([segment(900, gpus=4)], at(900))
    assert (found.total_usd, found.busy_usd, found.saved_usd) == (Decimal("0.6"), Decimal("0.6"), Decimal("1.4"))
    assert found.gpu_seconds == 3600


def test_an_open_segment_counts_until_now() -> None:
    still = replace(segment(0), end=None)
    assert cost([still], at(1800)).total_usd == Decimal("0.3")
    assert cost([still], at(-5)).total_usd == 0, "a clock that went back owes nothing"


def test_thirds_add_up() -> None:
    third = [segment(1, what, price="0.01") for what in Activity]
    found = cost(third, at(1))
    assert sum(getattr(found, part) for part in PARTS) == found.total_usd
    # 5 s at 0.01 an hour: 0.0000138..., of which each fifth is 0.0000027...
    assert found.total_usd == Decimal("0.000014")
    assert sorted(getattr(found, part) for part in PARTS) == [Decimal("0.000002"), *[Decimal("0.000003")] * 4]


segments = st.builds(
    segment,
    seconds=st.floats(0, 1e6).map(lambda s: round(s, 6)),
    what=st.sampled_from(Activity),
    gpus=st.integers(0, 8),
    price=st.decimals(0, 100, places=4).map(str),
    full=st.decimals(0, 100, places=4).map(str),
)


@given(st.lists(segments, max_size=30))
def test_parts_always_add_up_and_the_total_is_exact(rows: list[Segment]) -> None:
    found = cost(rows, at(0))
    assert sum((getattr(found, part) for part in PARTS), Decimal(0)) == found.total_usd
    micro = timedelta(microseconds=1)
    exact = sum((Fraction(len(r.gpus) * ((r.end - r.start) // micro)) * Fraction(r.price) for r in rows), Fraction(0))
    assert abs(Fraction(found.total_usd) - exact / 3_600_000_000) <= Fraction(1, 2_000_000)


@given(st.lists(segments, max_size=10), st.lists(segments, max_size=10))
def test_more_segments_never_cost_less(some: list[Segment], more: list[Segment]) -> None:
    assert cost([*some, *more], T0).total_usd >= cost(some, T0).total_usd


# --- activity


def attempt(job: Job | None = RAY) -> Lease:
    return running(fleet(node("n1")), lease("x", job=job)).leases["x"]


def says(phase: Phase, step: int | None = 5) -> Lease:
    return heard(attempt(), Progress(phase=phase, step=step), POLICY, T0, HEARD)


@pytest.mark.parametrize(
    ("one", "silence", "expected"),
    [
        (says(Phase.TRAINING), 0, Activity.BUSY),
        (says(Phase.TRAINING), 15.1, Activity.UNKNOWN),
        (replace(says(Phase.TRAINING), best_step=6), 0, Activity.LOST),
        (says(Phase.TRAINING, None), 0, Activity.BUSY),
        (replace(says(Phase.RESTORING), best_step=6), 0, Activity.OVERHEAD),
        (says(Phase.CHECKPOINTING), 0, Activity.OVERHEAD),
        (replace(says(Phase.TRAINING), state=LeaseState.STOPPING), 0, Activity.OVERHEAD),
        (replace(says(Phase.TRAINING), state=LeaseState.QUEUED), 100, Activity.OVERHEAD),
        (replace(attempt(), progress=None), 0, Activity.OVERHEAD),
        (replace(attempt(), state=LeaseState.GRANTED, attempt_heard=None), 100, Activity.OVERHEAD),
        (attempt(None), 0, Activity.IDLE),
        (attempt(PROCESS), 0, Activity.BUSY),
        (attempt(PROCESS), 16, Activity.UNKNOWN),
        (attempt(RAYLET), 0, Activity.BUSY),
    ],
)
def test_activity(one: Lease, silence: float, expected: Activity) -> None:
    assert activity(one, POLICY, HEARD + silence) is expected
