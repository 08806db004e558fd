"""Grants: order, quota, back-off, heads, allocations per kind of job; and the sentences of those that wait."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from core_builders import (
    POLICY,
    PROCESS,
    RAY,
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
    spot,
    step,
)

from moorage.core.decision import Code, Grant, Hold
from moorage.core.job import Job
from moorage.core.lease import AllocationRole, LeaseState
from moorage.core.policy import Policy, Team
from moorage.core.request import CapacityType, Request
from moorage.core.state import State


def two() -> State:
    """n1 [0123] n2 [0123], both in rack a"""
    return fleet(node("n1", 4, "a"), node("n2", 4, "a"))


def shape(grant: Grant) -> list[tuple[str, str, tuple[int, ...], int]]:
    return [(a.role.value, a.node, a.gpus, a.workers) for a in grant.allocations]


KINDS: list[tuple[str, Job | None, Request, list[tuple[str, str, tuple[int, ...], int]]]] = [
    (
        "ray: a head, and one allocation per node for the gang",
        RAY,
        request(3, gpus=2),
        [("head", "n1", (), 0), ("worker", "n1", (0, 1, 2, 3), 2), ("worker", "n2", (0, 1), 1)],
    ),
    ("elastic ray starts at min", RAY, request(1, 4), [("head", "n1", (), 0), ("worker", "n1", (0,), 1)]),
    (
        "raylets: one allocation per worker, at max",
        RAYLET,
        request(1, 2, gpus=2),
        [("worker", "n1", (0, 1), 1), ("worker", "n1", (2, 3), 1)],
    ),
    ("a process: one allocation holds all workers", PROCESS, request(2, gpus=2), [("process", "n1", (0, 1, 2, 3), 2)]),
    (
        "an elastic process takes the most that one node has",
        PROCESS,
        request(1, 8),
        [("process", "n1", (0, 1, 2, 3), 4)],
    ),
    ("without a job", None, request(1, gpus=2), [("process", "n1", (0, 1), 1)]),
]


@pytest.mark.parametrize(("job", "wants", "expected"), [k[1:] for k in KINDS], ids=[k[0] for k in KINDS])
def test_allocations(job: Job | None, wants: Request, expected: list[object]) -> None:
    state, answer = step(two().with_leases(lease("x", wants, job)))
    (grant,) = of_kind(answer, Grant)
    assert shape(grant) == expected
    granted = state.leases["x"]
    assert (granted.state, granted.epoch, granted.target.revision) == (LeaseState.GRANTED, 1, 1)
    assert granted.target.hold == tuple(f"x.{n + 1}" for n in range(len(expected)))
    assert granted.workers == sum(row[3] for row in shape(grant))


def test_a_process_never_spans_nodes() -> None:
    _, answer = step(two().with_leases(lease("x", request(8), PROCESS)))
    (hold,) = of_kind(answer, Hold)
    assert hold.reason == "8 x 1 GPUs: largest free host is n1 with 4"


def test_the_head_goes_to_the_steadiest_node() -> None:
    """rack a: od1 [0123]  s1 [0123] spot; rack b: od2 [0123]"""
    state = fleet(node("od1", 4, "a"), node("od2", 4, "b"), spot("s1", 4, "a"))
    wants = request(1, gpus=4, capacity=CapacityType.SPOT)
    state, answer = step(
        state.with_leases(lease("x", wants), lease("y", replace(wants, workers=(2, 2), gpus_per_worker=1)))
    )
    heads = {g.lease: g.allocations[0].node for g in of_kind(answer, Grant)}
    assert places(state, "x") == {"s1": (0, 1, 2, 3)}
    assert heads["x"] == "od1", "on-demand, in the rack of the gang"
    assert heads["y"] == "od1", "near its gang, though another head is there"


def test_heads_spread() -> None:
    """n1 n2 in rack a are equal but for the head that n1 has"""
    _, answer = step(two().with_leases(lease("x", request(1)), lease("y", request(1), submitted_at=at(1))))
    assert [g.allocations[0].node for g in of_kind(answer, Grant)] == ["n1", "n2"]


def test_epochs_and_ids_go_on_after_a_retry() -> None:
    state = running(two(), lease("x", request(1, gpus=2)))
    state = hearing(state, 700, "n1", "x")  # n1 is lost, and with it head and worker
    state, _ = step(state, now=at(700))
    again = state.leases["x"]
    assert (again.state, again.epoch) == (LeaseState.GRANTED, 2)
    assert [a.id for a in again.live] == ["x.3", "x.4"]
    assert {a.node for a in again.live} == {"n2"}
    assert again.progress is None
    assert again.best_step == 1


# --- order


def test_priority_then_share_then_age() -> None:
    """n1 [0]: one GPU for many"""
    teams = Policy(teams=(Team(name="blue", weight=2.0),))
    base = fleet(node("n1", 1), node("n2", 4))
    base = running(
        base, lease("r", request(1, gpus=2), team="red"), lease("b", request(1, gpus=2), team="blue"), policy=teams
    )
    waiting = [
        lease("old-red", team="red", submitted_at=T0 - timedelta(hours=1)),
        lease("blue", team="blue", submitted_at=at(5)),
        lease("urgent", request(1, priority=5), team="red", submitted_at=at(9)),
        lease("green", team="green", submitted_at=at(9)),
    ]
    _, answer = step(base.with_leases(*waiting), teams)
    tried = [d.lease for d in of_kind(answer, Grant, Hold)]
    assert tried == ["urgent", "green", "blue", "old-red"], "priority; holds nothing; holds 2 for weight 2; holds 2"


def test_small_ones_pass_a_large_one_that_does_not_fit() -> None:
    state = running(two(), lease("r", request(1, gpus=4)))
    state, _ = step(state.with_leases(lease("big", request(2, gpus=4)), lease("small", submitted_at=at(3))))
    assert state.leases["big"].state is LeaseState.QUEUED
    assert places(state, "small") == {"n2": (0,)}


# --- those that wait say why, word for word


def test_quota() -> None:
    policy = Policy(teams=(Team(name="red", quota=3),))
    state = running(two(), lease("r", request(1, gpus=2)), policy=policy)
    _, answer = step(state.with_leases(lease("x", request(1, gpus=2))), policy)
    (hold,) = of_kind(answer, Hold)
    assert hold.reason == "1 x 2 GPUs: team red may hold 3 GPUs and holds 2"
    assert [r.code for r in hold.reasons] == [Code.QUOTA]


def test_quota_bounds_what_an_elastic_request_gets() -> None:
    policy = Policy(teams=(Team(name="red", quota=3),))
    state, _ = step(two().with_leases(lease("x", request(1, 4), PROCESS)), policy)
    assert places(state, "x") == {"n1": (0, 1, 2)}


def test_back_off_keeps_its_sentence_and_wakes() -> None:
    waits = lease("x", not_before=at(8), reason="attempt 1 exited 3; retry 1 of 2 at 12:00:08 UTC")
    state, answer = step(two().with_leases(waits))
    (hold,) = of_kind(answer, Hold)
    assert (hold.reason, hold.reasons[0].code) == (waits.reason, Code.BACK_OFF)
    assert answer.wake_at == at(8)
    state, _ = step(state, now=at(8))
    assert state.leases["x"].state is LeaseState.GRANTED


def test_an_empty_fleet_waits() -> None:
    _, answer = step(fleet().with_leases(lease("x", request(2, gpus=8))))
    assert of_kind(answer, Hold)[0].reason == "2 x 8 GPUs: no node has joined the fleet yet"
    assert answer.wake_at is None


SENTENCES = [
    (
        "racks",
        fleet(
            node("n1", 8, "r07"),
            node("n2", 4, "r07"),
            node("n3", 8, "r08"),
            node("d1", 8, "r09", draining=True),
            node("d2", 8, "r09", draining=True),
            node("d3", 8, "r09", draining=True),
            node("q", 8, "r10", heard=900.0),
        ),
        request(3, gpus=4, required="rack", models=("H100",)),
        None,
    ),
    (
        "too big for the rack",
        fleet(node("n1", 8, "r07"), node("n2", 4, "r07"), node("d", 8, "r9", draining=True), node("q", 8, heard=900.0)),
        request(2, gpus=8, required="rack"),
        (
            "2 x 8 GPUs in one rack: largest free rack is r07 with 8; "
            "1 node is draining, 1 has a stale report, 1 has too few GPUs for one worker"
        ),
    ),
    (
        "several of each",
        fleet(
            *(node(f"d{i}", draining=True) for i in range(3)),
            *(node(f"c{i}", cordoned=True) for i in range(2)),
            node("l", lost=True),
        ),
        request(1),
        "1 x 1 GPU: none of 1 worker would fit now; 1 node is lost, 3 are draining, 2 are cordoned",
    ),
    (
        "models",
        fleet(node("a", model="A100"), node("b", 2)),
        request(4, models=("H100", "H200")),
        "4 x 1 H100 or H200: 2 of 4 workers would fit now; 1 node has another GPU model",
    ),
    (
        "nothing in any rack",
        fleet(node("a", 4), node("b", 4)),
        request(2, gpus=4, required="rack"),
        "2 x 4 GPUs in one rack: no rack has room for a worker now",
    ),
    (
        "spot for one who wants it steadier",
        fleet(spot("s1"), spot("s2")),
        request(1, gpus=4),
        "1 x 4 GPUs: none of 1 worker would fit now; 2 nodes are less steady than asked for",
    ),
]


@pytest.mark.parametrize(("state", "wants", "sentence"), [s[1:] for s in SENTENCES], ids=[s[0] for s in SENTENCES])
def test_sentences(state: State, wants: Request, sentence: str | None) -> None:
    after, answer = step(state.with_leases(lease("x", wants)))
    if sentence is None:
        assert of_kind(answer, Grant)
        return
    assert [h.reason for h in of_kind(answer, Hold)] == [sentence]
    assert after.leases["x"].reason == sentence


def test_busy_nodes_are_counted() -> None:
    state = running(two(), lease("r", request(2, gpus=3)))
    _, answer = step(state.with_leases(lease("x", request(1, gpus=2))))
    assert of_kind(answer, Hold)[0].reason == "1 x 2 GPUs: none of 1 worker would fit now; 2 nodes are busy"


def test_ended_leases_are_left_alone() -> None:
    over = lease("x", state=LeaseState.ENDED)
    assert step(two().with_leases(over))[1].decisions == ()


def test_grants_keep_roles_and_wake_for_the_start() -> None:
    state, answer = step(two().with_leases(lease("x", request(1, 2))))
    assert [a.role for a in state.leases["x"].live] == [AllocationRole.HEAD, AllocationRole.WORKER]
    _, answer = step(state)
    assert answer.decisions == ()
    assert answer.wake_at == at(POLICY.start_s)
    state = run(state, "x")
    assert state.leases["x"].state is LeaseState.RUNNING
