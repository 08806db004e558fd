"""A running gang follows the bounds that its owner changes: always, but never past those who wait or the quota."""

from __future__ import annotations

from dataclasses import replace

import pytest
from core_builders import (
    POLICY,
    RAYLET,
    T0,
    at,
    fleet,
    hearing,
    lease,
    node,
    of_kind,
    places,
    request,
    run,
    running,
    step,
)

from moorage.core.apply import apply
from moorage.core.decision import Lose, Retarget, Retry, Warn
from moorage.core.lease import LeaseState, Why
from moorage.core.policy import Policy, Team
from moorage.core.state import State


def gang(*sizes: tuple[int, int], gpus: int = 4, nodes: int = 2, policy: Policy = POLICY) -> State:
    """`x` runs on n1 with the bounds of `sizes`, one after the other, each carried out."""
    state = running(fleet(*(node(f"n{i + 1}", gpus) for i in range(nodes))), lease("x", request(*sizes[0])))
    for low, high in sizes[1:]:
        state, _ = step(resized(state, low, high), policy)
        state = run(state, "x")
    return state


def resized(state: State, low: int, high: int) -> State:
    x = state.leases["x"]
    return state.with_leases(replace(x, request=replace(x.request, workers=(low, high))))


@pytest.mark.parametrize(
    ("before", "bounds", "sentence", "held"),
    [
        ([(1, 3)], (3, 3), "grow 1 -> 3 on n1: the min is 3 now", 3),
        ([(1, 3), (3, 3)], (2, 2), "shrink 3 -> 2: the max is 2 now", 2),
        ([(1, 1), (2, 2), (3, 3)], (1, 2), "shrink 3 -> 2: the max is 2 now", 2),
        ([(1, 1), (2, 2), (3, 3)], (1, 1), "shrink 3 -> 1: the max is 1 now", 1),
        ([(4, 4)], (2, 2), "shrink 4 -> 2: the max is 2 now; workers move to n2", 2),
        ([(1, 1), (4, 4)], (2, 3), "shrink 4 -> 3: the max is 3 now", 3),
    ],
)
def test_it_follows(before: list[tuple[int, int]], bounds: tuple[int, int], sentence: str, held: int) -> None:
    state, answer = step(resized(gang(*before), *bounds), Policy(frozen=True))
    (change,) = of_kind(answer, Retarget)
    assert change.reason == sentence
    assert change.why is (Why.GROW if "grow" in sentence else Why.SHRINK)
    assert sum(map(len, places(state, "x").values())) == held
    assert (state.leases["x"].epoch, state.leases["x"].state) == (1, LeaseState.RUNNING)
    assert of_kind(step(run(state, "x"))[1], Retarget) == [], "once"


@pytest.mark.parametrize("bounds", [(1, 3), (2, 4), (2, 2)])
def test_inside_its_bounds_it_stays(bounds: tuple[int, int]) -> None:
    assert of_kind(step(resized(gang((2, 2)), *bounds))[1], Retarget, Warn) == []


def test_a_whole_allocation_without_room_elsewhere_is_said_once_and_done_when_there_is() -> None:
    """Four workers are one allocation of n1, and n2 is taken."""
    state = running(gang((4, 4)), lease("y", request(1, gpus=4)))
    state, answer = step(resized(state, 2, 2))
    (told,) = of_kind(answer, Warn)
    assert told.reason == (
        "cannot shrink 4 -> 2 yet: an allocation goes as a whole, which leaves 0 workers, "
        "and nothing else is free for the min of 2"
    )
    state, answer = step(state)
    assert of_kind(answer, Warn, Retarget) == []
    assert answer.wake_at is not None
    state, answer = step(state.with_nodes(node("n3", 4)))
    assert of_kind(answer, Retarget)[0].reason == "shrink 4 -> 2: the max is 2 now; workers move to n3"
    assert places(state, "x") == {"n3": (0, 1)}


def test_a_higher_min_waits_for_those_who_wait_with_no_weaker_claim() -> None:
    state = gang((1, 1), nodes=1).with_leases(lease("big", request(1, gpus=4), submitted_at=at(1)))
    assert of_kind(step(resized(state, 3, 3))[1], Retarget) == []
    weaker = state.with_leases(lease("big", request(1, gpus=4, priority=-1), submitted_at=at(1)))
    assert of_kind(step(resized(weaker, 3, 3))[1], Retarget)


def test_a_higher_min_stays_within_the_quota() -> None:
    policy = Policy(teams=(Team(name="red", quota=3),))
    state = running(gang((1, 1)), lease("other"))
    assert of_kind(step(resized(state, 3, 3), policy)[1], Retarget) == []
    assert of_kind(step(resized(state, 2, 2), policy)[1], Retarget)


@pytest.mark.parametrize("repaired", [False, True])
def test_workers_that_were_lost_come_back_whoever_waits(repaired: bool) -> None:
    """What it had was granted to it; what its owner adds afterwards is not."""
    state = running(fleet(node("n1", 1), node("n2", 1)), lease("x", request(2)))
    state, _ = step(apply(state, Lose(node="n2", reason="gone"), POLICY, T0))
    assert state.leases["x"].target.why is Why.REPAIR
    if repaired:
        state, answer = step(hearing(state, 1).with_nodes(node("n3", 1, heard=state.heard + 1)), now=at(1))
        assert of_kind(answer, Retarget)[0].reason == "workers were lost: 1 worker moves to n3"
        state = resized(run(state, "x", at(2)), 3, 3)
    queue = lease("y", request(1, gpus=4), submitted_at=at(2))
    room = hearing(state, 1).with_leases(queue).with_nodes(node("n4", 1, heard=state.heard + 1), node("n5", 1))
    _, answer = step(room, now=at(3))
    assert [told.why for told in of_kind(answer, Retarget)] == ([] if repaired else [Why.REPAIR])


def test_more_than_can_be_had_is_stopped_whole_and_queued_after_a_while() -> None:
    state, _ = step(resized(gang((1, 1), nodes=1, gpus=2), 3, 3))
    state = run(state, "x")
    assert of_kind(step(hearing(state, 119), now=at(119))[1], Retry) == []
    assert of_kind(step(hearing(state, 120), now=at(120))[1], Retry)


def test_raylets_of_the_autoscaler_are_its_own_business() -> None:
    state = running(fleet(node("n1")), lease("x", request(1), RAYLET))
    assert of_kind(step(resized(state, 2, 2))[1], Retarget) == []
