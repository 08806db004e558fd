"""Which leases Ray's demand needs."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage.core.lease import Allocation, AllocationRole, AllocationState, Lease, LeaseState
from moorage.ray.demand import (
    Bundle,
    Cluster,
    Demand,
    Gang,
    RayNode,
    Selector,
    Singles,
    gang_owner,
    gang_shape,
    shape_id,
    shared_owner,
    single_shape,
    submission,
)
from moorage.ray.plan import Plan, plan

CLUSTER = Cluster(address="10.0.0.1:6379", head="head", session="session_1")
NOW = datetime(2026, 11, 30, 20, 0, tzinfo=UTC)
ONE = Singles(Bundle({"GPU": 1.0, "CPU": 1.0}), 1)


def group(name: str, n: int = 2, key: str | None = "same", *, rescheduling: bool = False, gpus: float = 2.0) -> Gang:
    selectors = (Selector("moorage.io/gang", (name if key == "same" else key,)),) if key else ()
    bundle = Bundle({"GPU": gpus, "CPU": 1.0}, selectors)
    return Gang(name * 28 + "01000000", "PACK", (bundle,) * n, rescheduling)


def lease(gang: Gang, state: LeaseState = LeaseState.RUNNING, up: int | None = None) -> Lease:
    made = submission(CLUSTER, gang_owner(CLUSTER, gang), gang_shape(gang), 1)
    return _lease(f"l-{gang.id[0]}", made.owner, made, state, len(gang.bundles) if up is None else up)


def shared(slot: int, state: LeaseState = LeaseState.QUEUED, up: int = 0) -> Lease:
    owner = shared_owner(CLUSTER, shape_id(single_shape(ONE)), slot)
    return _lease(f"s-{slot}", owner, submission(CLUSTER, owner, single_shape(ONE), 1), state, up)


def _lease(name, owner, made, state, up) -> Lease:  # type: ignore[no-untyped-def]
    allocations = tuple(
        Allocation(
            id=f"{name}.{n}",
            lease=name,
            epoch=1,
            node=f"n{n}",
            role=AllocationRole.WORKER,
            gpus=(0,),
            workers=1,
            state=AllocationState.HELD,
        )
        for n in range(up)
    )
    return Lease(
        id=name,
        owner=owner,
        generation=1,
        team="ml",
        request=made.request,
        job=made.job,
        submitted_at=NOW,
        state=state,
        allocations=allocations,
    )


def nodes(*leases: Lease, idle_ms: int = 0, settled: bool = True) -> list[RayNode]:
    return [RayNode(a.id, idle_ms, settled) for x in leases for a in x.live]


def planned(gangs=(), singles=(), leases=(), up=(), max_shared=4) -> Plan:  # type: ignore[no-untyped-def]
    return plan(Demand(tuple(gangs), tuple(singles)), CLUSTER, leases, up, max_shared=max_shared)


def wanted(what: Plan) -> list[str]:
    return [want.demand[0] for want in what.submit]


A, B = group("a"), group("b")
QUEUED_A, RUNNING_A = lease(A, LeaseState.QUEUED, up=0), lease(A)


@pytest.mark.parametrize(
    ("gangs", "leases", "up", "submits", "unwanted", "serving"),
    [
        # nothing asked, nothing there
        ([], [], [], [], [], []),
        # a new gang
        ([A], [], [], ["a"], [], []),
        # asked for already: queued, granted, or running
        ([A], [QUEUED_A], [], [], [], ["l-a"]),
        ([A], [RUNNING_A], nodes(RUNNING_A), [], [], ["l-a"]),
        # two gangs, one has its lease
        ([A, B], [QUEUED_A], [], ["b"], [], ["l-a"]),
        # the group is placed: nothing to do
        ([], [RUNNING_A], nodes(RUNNING_A), [], [], []),
        # the group went while its lease was queued, or before a raylet joined
        ([], [QUEUED_A], [], [], ["l-a"], []),
        ([], [RUNNING_A], [], [], ["l-a"], []),
        # a lease that is stopping is left alone
        ([], [replace(QUEUED_A, state=LeaseState.STOPPING)], [], [], [], []),
        # B does not go onto A's nodes
        ([B], [RUNNING_A], nodes(RUNNING_A, idle_ms=5), ["b"], [], []),
    ],
)
def test_gangs(gangs, leases, up, submits, unwanted, serving) -> None:  # type: ignore[no-untyped-def]
    what = planned(gangs, leases=leases, up=up)
    assert wanted(what) == submits
    assert what.unwanted == set(unwanted)
    assert list(what.serving) == serving


def test_a_rescheduling_group_waits_for_the_repair_of_its_old_lease() -> None:
    lost = replace(A, bundles=A.bundles[:1], rescheduling=True)
    short = lease(A, up=1)
    what = planned([lost], leases=[short], up=nodes(short))
    assert not what.submit
    assert what.serving == {"l-a": A.id}


def test_a_rescheduling_group_without_any_lease_is_asked_for() -> None:
    lost = replace(A, bundles=A.bundles[:1], rescheduling=True)
    what = planned([lost], leases=[])
    assert [(w.demand, w.shape.workers) for w in what.submit] == [(A.id, 1)]


@pytest.mark.parametrize(
    ("up", "idle_ms", "submits"),
    [(2, 0, ["b"]), (2, 900, []), (1, 0, [])],
    ids=["busy: a lease of its own", "idle: Ray places it there", "coming: Ray will place it there"],
)
def test_a_new_group_with_an_old_key_uses_the_lease_of_the_key(up: int, idle_ms: int, submits: list[str]) -> None:
    """Ray Train makes a new group with the same selector each time it restarts its workers."""
    first, second = group("a", key="run7"), group("b", key="run7")
    old = lease(first, up=up)
    assert wanted(planned([second], leases=[old], up=nodes(old, idle_ms=idle_ms))) == submits


def test_a_larger_group_with_an_old_key_needs_a_lease_of_its_own() -> None:
    first, second = group("a", key="run7"), group("b", n=3, key="run7")
    old = lease(first)
    assert wanted(planned([second], leases=[old], up=nodes(old, idle_ms=900))) == ["b"]


def test_a_group_without_a_key_is_asked_for_as_a_gang_and_marked() -> None:
    what = planned([group("a", key=None)])
    assert [(w.shape.workers, w.unbound) for w in what.submit] == [(2, True)]
    assert not planned([A]).submit[0].unbound


def test_what_can_never_be_served_is_said_and_not_asked_for() -> None:
    what = planned([group("a", gpus=0.0)], [Singles(Bundle({"CPU": 4.0}), 2)])
    assert not what.submit
    assert len(what.impossible) == 2
    assert all("at least one GPU" in sentence for sentence in what.impossible.values())


@pytest.mark.parametrize(
    ("count", "leases", "up", "slots"),
    [
        (1, [], [], ["0"]),
        (3, [], [], ["0", "1", "2"]),
        # bounded
        (99, [], [], ["0", "1", "2", "3"]),
        # one is coming
        (1, [shared(0)], [], []),
        (2, [shared(1)], [], ["0"]),
        # one joined just now: Ray may not count it yet
        (1, [shared(0, up=1)], nodes(shared(0, up=1), settled=False), []),
        # one is full and another is needed
        (1, [shared(0, up=1)], nodes(shared(0, up=1)), ["1"]),
        # all slots are taken
        (9, [shared(n, up=1) for n in range(4)], [RayNode(f"s-{n}.0") for n in range(4)], []),
    ],
)
def test_singles_get_leases_of_one_up_to_a_bound(count, leases, up, slots) -> None:  # type: ignore[no-untyped-def]
    what = planned(singles=[replace(ONE, count=count)], leases=leases, up=up)
    assert [want.owner["ray.slot"] for want in what.submit] == slots
    assert all(want.shape.workers == 1 and want.unbound for want in what.submit)


def test_shared_leases_that_are_not_needed_any_more_are_unwanted_newest_first() -> None:
    waiting = [shared(n) for n in range(3)]
    assert planned(singles=[ONE], leases=waiting).unwanted == {"s-1", "s-2"}
    assert planned(leases=waiting).unwanted == {"s-0", "s-1", "s-2"}


def test_a_task_that_waits_inside_a_group_or_for_a_gang_is_no_demand_of_its_own() -> None:
    inside = Singles(Bundle({"GPU_group_0_ab": 1.0}), 1)
    keyed = Singles(Bundle({"GPU": 1.0}, (Selector("moorage.io/gang", ("a",)),)), 4)
    assert not planned(singles=[inside, keyed], leases=[RUNNING_A], up=nodes(RUNNING_A)).submit


GANGS = st.lists(
    st.builds(
        group,
        st.sampled_from("abcdef"),
        st.integers(1, 3),
        st.sampled_from([None, "same", "k"]),
        rescheduling=st.booleans(),
    ),
    max_size=5,
    unique_by=lambda gang: gang.id,
)


@given(asked=GANGS, had=GANGS, count=st.integers(0, 9), data=st.data())
def test_each_gang_is_served_once_or_asked_for_once_and_shared_leases_are_bounded(  # type: ignore[no-untyped-def]
    asked, had, count, data
) -> None:
    leases = [lease(gang, data.draw(st.sampled_from(LeaseState)), up=data.draw(st.integers(0, 2))) for gang in had]
    leases = [x for x in leases if x.state is not LeaseState.ENDED]
    up = [node for node in nodes(*leases, idle_ms=data.draw(st.integers(0, 1))) if data.draw(st.booleans())]
    what = planned(asked, [replace(ONE, count=count)] if count else [], leases, up)
    gangs = [want.demand for want in what.submit if "ray.placement_group" in want.owner]
    assert sorted([*gangs, *what.serving.values()]) == sorted(gang.id for gang in asked)
    assert not what.unwanted & set(what.serving)
    assert len(what.submit) - len(gangs) == min(count, 4)


@given(asked=GANGS)
def test_once_asked_for_nothing_is_asked_for_again(asked) -> None:  # type: ignore[no-untyped-def]
    made = [lease(gang, LeaseState.QUEUED, up=0) for gang in asked]
    assert not planned(asked, leases=made).submit
