"""Preemption: a whole plan or nothing."""

from __future__ import annotations

from dataclasses import replace

from core_builders import POLICY, PROCESS, at, fleet, hearing, lease, node, of_kind, places, request, running, step

from moorage.core.decision import Claim, Grant, Hold, Retarget, Retry
from moorage.core.follow import gone
from moorage.core.lease import AllocationState, LeaseState, Why
from moorage.core.policy import Policy
from moorage.core.state import State


def full(*priorities: int) -> State:
    """n1 [0123] n2 [0123] in rack a, n3 [0123] n4 [0123] in rack b: one process of 4 GPUs on each, p0 on n1 ..."""
    state = fleet(node("n1", 4, "a"), node("n2", 4, "a"), node("n3", 4, "b"), node("n4", 4, "b"))
    for n, priority in enumerate(priorities):
        state = running(state, lease(f"p{n}", request(1, gpus=4, priority=priority), PROCESS, submitted_at=at(n)))
    return state


def urgent(low: int = 1, **more: object) -> object:
    return lease("u", request(low, gpus=4, priority=5, **more), submitted_at=at(100))


def test_the_weakest_claim_goes_and_may_checkpoint() -> None:
    state, answer = step(full(3, 1, 2, 4).with_leases(urgent()))
    (retry,) = of_kind(answer, Retry)
    assert (retry.lease, retry.preempted, retry.fault, retry.interruption) == ("p1", True, False, False)
    assert retry.reason == "makes room for 1 x 4 GPUs of lease u with priority 5"
    assert retry.by == at(POLICY.stop_grace_s)
    assert of_kind(answer, Claim)[0].victims == ("p1",)
    assert of_kind(answer, Hold)[-1].reason == "1 x 4 GPUs: waits for 4 GPUs that are given back on n2"
    victim = state.leases["p1"]
    assert (victim.state, victim.failures, victim.interruptions, victim.fruitless) == (LeaseState.QUEUED, 0, 0, 0)
    assert {(a.state, a.drain_by) for a in victim.live} == {(AllocationState.DRAINING, at(30))}


def test_never_an_equal_claim() -> None:
    _, answer = step(full(5, 5, 5, 6).with_leases(urgent()))
    assert of_kind(answer, Retry, Claim) == []


def test_a_plan_that_cannot_finish_touches_nobody() -> None:
    """Two of four in one rack could be had in no rack."""
    _, answer = step(full(1, 9, 1, 9).with_leases(urgent(2, required="rack")))
    assert of_kind(answer, Retry, Claim) == []
    assert of_kind(answer, Hold)[0].reason == (
        "2 x 4 GPUs in one rack: no rack has room for a worker now; 4 nodes are busy"
    )


def test_the_rack_with_the_whole_plan_is_found() -> None:
    """p0 (rack a) is the weakest, but only rack b can be had as a whole."""
    _, answer = step(full(0, 9, 1, 2).with_leases(urgent(2, required="rack")))
    assert sorted(of_kind(answer, Claim)[0].victims) == ["p2", "p3"]


def test_victims_that_turn_out_not_to_be_needed_are_spared() -> None:
    """s holds one GPU of n1, whose others are free; p holds n2. One worker of 4: s alone is enough, and is cheaper."""
    state = fleet(node("n1", 4), node("n2", 4))
    state = running(state, lease("p", request(1, gpus=4, priority=0), PROCESS))
    state = running(state, lease("s", request(1, priority=1), PROCESS))
    _, answer = step(state.with_leases(urgent()))
    assert len(of_kind(answer, Claim)[0].victims) == 1


def test_extras_of_elastic_gangs_go_first() -> None:
    from test_attempts import _grown

    state = running(fleet(node("s1", 8)), lease("x", request(2, 6)))
    state = _grown(state, 6)
    _, answer = step(state.with_leases(lease("u", request(4, priority=5), PROCESS)))
    (shrink,) = of_kind(answer, Retarget)
    assert of_kind(answer, Retry) == []
    assert (shrink.why, shrink.by) == (Why.PREEMPT, at(30))
    x = state.leases["x"]
    assert shrink.hold == x.target.hold[:4], "the two youngest go, no more"


def test_the_ratio_bounds_what_is_taken() -> None:
    """A gang of 8 GPUs for one GPU: more than twice what is needed."""
    state = running(fleet(node("n1", 8)), lease("big", request(1, gpus=8), PROCESS))
    one = state.with_leases(lease("u", request(1, priority=5), PROCESS))
    assert of_kind(step(one)[1], Retry) == []
    assert of_kind(step(one, Policy(preempt_ratio=8.0))[1], Retry)


def test_frozen_takes_nothing() -> None:
    assert of_kind(step(full(0, 0, 0, 0).with_leases(urgent()), Policy(frozen=True))[1], Retry, Claim) == []


def test_no_victims_on_silent_nodes() -> None:
    state = hearing(full(0, 9, 9, 9).with_leases(urgent()), 20, "n1")
    assert of_kind(step(state, now=at(20))[1], Retry, Claim) == []


def test_a_claim_keeps_its_gpus_until_they_are_free() -> None:
    """While p1 drains, nobody behind the claim gets its node, and nothing more is taken."""
    state, _ = step(full(3, 1, 2, 4).with_leases(urgent()))
    small = lease("small", request(1, priority=4), PROCESS, submitted_at=at(200))
    state = state.with_leases(small)
    state, answer = step(state, now=at(1))
    assert of_kind(answer, Retry, Claim, Grant) == []
    (allocation,) = state.leases["p1"].live
    state = state.with_leases(gone(state.leases["p1"], allocation.id, at(2)))
    state, answer = step(state, now=at(2))
    assert [g.lease for g in of_kind(answer, Grant)] == ["u"]
    assert places(state, "u") == {"n2": (0, 1, 2, 3)}


def test_free_gpus_are_kept_for_the_claim_too() -> None:
    """n1 [0123]: two free, two drain. A claim of four; a small lease behind it must not take the free two."""
    state = fleet(node("n1", 4))
    state = running(state, lease("half", request(1, gpus=2, priority=0), PROCESS))
    state = state.with_leases(urgent(), lease("small", request(1), PROCESS, submitted_at=at(101)))
    state, answer = step(state)
    assert [c.victims for c in of_kind(answer, Claim)] == [("half",)]
    assert of_kind(answer, Grant) == []
    assert state.leases["small"].state is LeaseState.QUEUED


def test_a_stuck_drain_on_a_silent_node_is_not_waited_for() -> None:
    state, _ = step(full(3, 1, 2, 4).with_leases(urgent()))
    silent = hearing(state, 20, "n2")
    _, answer = step(silent, now=at(20))
    assert of_kind(answer, Claim)[0].victims == ("p2",)


def test_least_unsaved_work_of_equal_claims() -> None:
    state = full(1, 1, 1, 1)
    fresh = replace(state.leases["p2"], granted_at=at(0))
    older = [replace(state.leases[p], granted_at=at(-500)) for p in ("p0", "p1", "p3")]
    _, answer = step(state.with_leases(fresh, *older, urgent()))
    assert of_kind(answer, Claim)[0].victims == ("p2",)
