"""Attempts that end without a word, lost nodes, notices, drains, repair; stops, warnings and drops."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

import pytest
from core_builders import (
    HEARD,
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
    training,
)

from moorage.core.apply import apply
from moorage.core.decision import Drop, Grant, Lose, Retarget, Retry, Stop, Warn
from moorage.core.follow import gone, heard, started
from moorage.core.job import OwnerSilent
from moorage.core.lease import AllocationState, LeaseState, Outcome, Why
from moorage.core.policy import Policy
from moorage.core.request import CapacityType
from moorage.core.state import State

SPOT = CapacityType.SPOT


def pools() -> State:
    """
    rack a: od1 [0123] 2.00   s1 [0123] 0.60 spot
    rack b: od2 [0123] 2.00   s2 [0123] 0.60 spot
    """
    return fleet(node("od1", 4, "a"), spot("s1", 4, "a"), node("od2", 4, "b"), spot("s2", 4, "b"))


def gang(low: int = 1, high: int = 4, **more: object) -> State:
    """A lease `x` that runs on s1, its head on od1."""
    return running(pools(), lease("x", request(low, high, capacity=SPOT, **more)))


# --- nodes


@pytest.mark.parametrize(
    ("silence", "facts", "now", "lost"),
    [
        (599.0, {}, 0, False),
        (600.0, {}, 0, True),
        (4.9, {"notice_deadline": at(0)}, 0, False),
        (5.0, {"notice_deadline": at(0)}, 0, True),
        (60.0, {"notice_deadline": at(1)}, 0, False),
        (9000.0, {"lost": True}, 0, False),
    ],
)
def test_when_a_node_is_lost(silence: float, facts: dict[str, object], now: float, lost: bool) -> None:
    state = fleet(node("n1", heard=HEARD - silence, **facts))
    after, answer = step(state, now=at(now))
    assert bool(of_kind(answer, Lose)) == lost
    assert after.nodes["n1"].lost == (lost or facts.get("lost", False))


def test_a_node_never_heard_is_not_lost() -> None:
    assert step(fleet(node("n1", heard=None)))[1].decisions == ()


def test_a_silent_node_on_which_training_goes_on_is_not_lost() -> None:
    """The agent died; the trainer still renews."""
    state = hearing(gang(), 700, "s1")
    assert of_kind(step(state, now=at(700))[1], Lose, Retry) == []


def test_a_wall_clock_jump_loses_nothing() -> None:
    state = gang()
    assert of_kind(step(state, now=at(86400))[1], Lose, Retry, Stop) == []


# --- attempts


def test_not_heard_after_its_grant() -> None:
    state, _ = step(pools().with_leases(lease("x")))
    late = hearing(state, POLICY.start_s)
    _, answer = step(late, now=at(POLICY.start_s))
    (retry,) = of_kind(answer, Retry)
    assert retry.reason == "attempt 1 was not heard within 180 s of its grant; tried again at once"
    assert (retry.interruption, retry.fault) == (True, False)


def test_silent_attempt() -> None:
    state = gang()
    state = state.with_nodes(*(replace(n, heard=HEARD + 60) for n in state.nodes.values())).hearing(HEARD + 60)
    after, answer = step(state, now=at(60))
    (retry,) = of_kind(answer, Retry)
    assert retry.reason == "attempt 1 was silent for 60 s; tried again at once"
    assert after.leases["x"].interruptions == 1
    assert all(a.state is AllocationState.DRAINING for a in after.leases["x"].live if a.epoch == 1)


def test_silence_of_a_process_on_a_stale_node_waits_for_the_attempts_own_limit() -> None:
    state = running(pools(), lease("p", request(1), PROCESS))
    quiet = state.hearing(HEARD + 30)
    assert of_kind(step(quiet, now=at(30))[1], Retry) == []


def test_lost_head() -> None:
    state, answer = step(hearing(gang(), 700, "od1", "x"), now=at(700))
    assert [d.node for d in of_kind(answer, Lose)] == ["od1"]
    (retry,) = of_kind(answer, Retry)
    assert retry.reason == "attempt 1 lost its Ray head on od1; tried again at once"
    assert state.leases["x"].epoch == 2, "granted again at once"


def test_a_driver_that_renews_keeps_its_silent_node() -> None:
    assert of_kind(step(hearing(gang(), 700, "od1"), now=at(700))[1], Lose, Retry) == []


def test_lost_process() -> None:
    state = running(pools(), lease("p", request(1), PROCESS))
    after, answer = step(hearing(state, 700, "od1", "p"), now=at(700))
    assert of_kind(answer, Retry)[0].reason == "attempt 1 lost its process on od1; tried again at once"
    assert places(after, "p") == {"od2": (0,)}


def test_lost_raylets_are_replaced_near_the_rest_and_start_again_when_all_are_lost() -> None:
    state = running(pools(), lease("g", request(2), RAYLET))
    first, second = state.leases["g"].live
    after, answer = step(state.with_leases(gone(state.leases["g"], first.id, T0)))
    (repair,) = of_kind(answer, Retarget)
    assert (repair.why, repair.reason) == (Why.REPAIR, f"raylets were lost: 1 more on {second.node}")
    assert repair.hold == (second.id, "g.3")
    # Not at once again: a raylet that dies at its start must not make a hot loop.
    again = after.with_leases(gone(after.leases["g"], "g.3", at(1)))
    assert step(again, now=at(1))[1].decisions == ()
    assert of_kind(step(again, now=at(20))[1], Retarget)[0].hold == (second.id, "g.4")
    none_left = state.with_leases(gone(gone(state.leases["g"], first.id, T0), second.id, T0))
    assert of_kind(step(none_left)[1], Retry)


def test_raylets_may_fall_below_min_when_they_are_given_back() -> None:
    state = running(pools(), lease("g", request(2), RAYLET))
    first, _ = state.leases["g"].live
    state = apply(state, Drop(lease="g", allocation=first.id, reason="idle"), POLICY, T0)
    one_left = state.with_leases(gone(state.leases["g"], first.id, T0))
    assert step(one_left)[1].decisions == ()


def test_raylets_given_back_end_the_lease() -> None:
    state = running(pools(), lease("g", request(1), RAYLET))
    (only,) = state.leases["g"].live
    state = apply(state, Drop(lease="g", allocation=only.id, reason="idle"), POLICY, T0)
    over = gone(state.leases["g"], only.id, at(1))
    assert (over.state, over.outcome, over.ended_at) == (LeaseState.ENDED, Outcome.SUCCEEDED, at(1))


def test_without_progress_it_gives_up() -> None:
    state, _ = step(pools().with_leases(lease("x", fruitless=19)))
    state = state.with_leases(replace(state.leases["x"], fruitless=19))
    _, answer = step(hearing(state, 200), now=at(200))
    (stop,) = of_kind(answer, Stop)
    assert stop.outcome is Outcome.FAILED
    assert stop.reason == (
        "gave up after 20 attempts without progress: attempt 1 was not heard within 180 s of its grant"
    )


# --- repair


def test_a_gang_below_min_is_repaired_then_stopped_whole() -> None:
    """x holds s1 [0123] s2 [0123]; every other GPU is taken. s2 goes."""
    base = running(pools(), lease("full", request(2, gpus=4)))
    state = running(base, lease("x", request(2, gpus=4, capacity=SPOT)))
    assert places(state, "x") == {"s1": (0, 1, 2, 3), "s2": (0, 1, 2, 3)}
    state = apply(state, Lose(node="s2", reason="gone"), POLICY, T0)
    assert state.leases["x"].short_since == T0
    state, answer = step(state)
    (told,) = of_kind(answer, Retarget)
    assert told.why is Why.REPAIR
    assert told.reason == "workers were lost: 1 of at least 2 left, and no replacement is free yet"
    state, answer = step(hearing(state, 60), now=at(60))
    assert of_kind(answer, Retarget, Retry) == []
    assert of_kind(step(state, now=at(900))[1], Retry) == [], "minutes in which nobody could be heard do not count"
    free = state.with_nodes(spot("s3", 4, "b", heard=state.heard))
    repaired, answer = step(free, now=at(61))
    assert of_kind(answer, Retarget)[0].reason == "workers were lost: 1 worker moves to s3"
    assert repaired.leases["x"].epoch == 1, "a repair keeps the attempt"
    assert repaired.leases["x"].short_since == T0, "the replacement is not up yet"
    up = started(repaired.leases["x"], repaired.leases["x"].live[-1].id, at(70))
    assert up.short_since is None
    _, answer = step(hearing(state, 60), now=at(120))
    assert of_kind(answer, Retry)[0].reason == "attempt 1 had fewer than 2 workers for 120 s; tried again at once"


def test_lost_extras_are_not_replaced_but_the_target_says_so() -> None:
    state = gang()
    grown = _grown(state, 3)
    grown = apply(grown, Lose(node="s1", reason="gone"), POLICY, T0)
    # All workers were on s1: the gang is short and moves to the other spot node.
    after, answer = step(grown)
    assert of_kind(answer, Retarget)[0].reason == "workers were lost: 1 worker moves to s2"
    assert places(after, "x") == {"s2": (0,)}


def _grown(state: State, workers: int) -> State:
    """x with more workers on s1, all running."""
    from moorage.core.columns import columns
    from moorage.core.extend import growth
    from moorage.core.gang import numbered, single_workers

    x = state.leases["x"]
    spots = growth(columns(state, POLICY), x, workers - x.workers)
    add = numbered(x, tuple(single_workers(x, spots)))
    hold = (*x.target.hold, *(a.id for a in add))
    state = apply(state, Retarget(lease="x", hold=hold, add=add, why=Why.GROW, reason="grow"), POLICY, T0)
    return run(state, "x")


# --- notices


def with_notice(state: State, name: str, seconds: float = 120) -> State:
    return state.with_nodes(replace(state.nodes[name], notice_deadline=at(seconds)))


def test_a_notice_moves_workers_to_the_same_capacity() -> None:
    """x: four workers on s1 (rack a); free: od1 in its rack, s2 in the other. Spot it was, spot it stays."""
    state = _grown(gang(), 4)
    after, answer = step(with_notice(state, "s1"))
    (move,) = of_kind(answer, Retarget)
    assert (move.why, move.by) == (Why.NOTICE, at(120))
    assert move.reason == "a notice: 4 workers move from s1 to s2"
    assert places(after, "x") == {"s2": (0, 1, 2, 3)}
    assert [a.workers for a in move.add] == [1, 1, 1, 1]
    assert step(after)[1].decisions == (), "once"


def test_a_notice_takes_on_demand_if_spot_is_full() -> None:
    state = running(_grown(gang(), 2), lease("y", request(1, gpus=4, capacity=SPOT)))
    after, answer = step(with_notice(state, "s1"))
    assert of_kind(answer, Retarget)[0].reason == "a notice: 2 workers move from s1 to od1"
    assert places(after, "x") == {"od1": (0, 1)}


def test_a_gang_that_was_not_heard_yet_is_made_whole_too() -> None:
    """Its driver starts when min is up: without a replacement it would wait for its start limit."""
    state, _ = step(pools().with_leases(lease("x", request(1, capacity=SPOT))))
    assert places(state, "x") == {"s1": (0,)}
    state = apply(state, Lose(node="s1", reason="gone"), POLICY, T0)
    after, answer = step(state)
    assert of_kind(answer, Retarget)[0].reason == "workers were lost: 1 worker moves to s2"
    assert (after.leases["x"].state, after.leases["x"].epoch) == (LeaseState.GRANTED, 1)


def test_a_notice_without_replacement_shrinks() -> None:
    """x: two workers on s1 and two on s2; everything else is taken."""
    state = running(gang(2, 4), lease("a", request(2, gpus=4)))
    state = running(state, lease("b", request(1, gpus=2, capacity=SPOT)))
    x = state.leases["x"]
    assert places(state, "x") == {"s1": (0, 1)}
    assert places(state, "b") == {"s1": (2, 3)}
    state = _grown(state, 4)
    assert places(state, "x") == {"s1": (0, 1), "s2": (0, 1)}
    full = running(state, lease("c", request(1, gpus=2, capacity=SPOT)))
    after, answer = step(with_notice(full, "s1"))
    (shrink,) = of_kind(answer, Retarget)
    assert shrink.reason == "a notice: shrink 4 -> 2 from s1; nothing is free to replace them, and the min is 2"
    assert places(after, "x") == {"s2": (0, 1)}
    assert x.epoch == after.leases["x"].epoch


def test_a_notice_below_min_keeps_what_there_is() -> None:
    state = running(gang(1, 1), lease("a", request(2, gpus=4)), lease("b", request(1, gpus=4, capacity=SPOT)))
    after, answer = step(with_notice(state, "s1"))
    assert of_kind(answer, Retarget, Retry, Stop) == []
    assert places(after, "x") == {"s1": (0,)}


def test_a_notice_of_the_heads_node_lets_it_run() -> None:
    state = running(fleet(node("n1"), node("n2")), lease("x"))
    _, answer = step(with_notice(state, "n1"))
    assert of_kind(answer, Retarget, Retry) == []


def test_a_drained_node_is_left() -> None:
    state = gang()
    after, answer = step(state.with_nodes(replace(state.nodes["s1"], draining=True)))
    (move,) = of_kind(answer, Retarget)
    assert (move.why, move.by, move.reason) == (Why.OPERATOR, None, "the node is drained: 1 worker moves from s1 to s2")
    assert places(after, "x") == {"s2": (0,)}


# --- drops


def test_what_is_let_go_is_dropped() -> None:
    state, _ = step(with_notice(gang(), "s1"))
    old, new = state.leases["x"].live[1:]
    x = started(state.leases["x"], new.id, T0)
    both = heard(x, training(x, using=(old.id, new.id)), POLICY, T0, HEARD)
    assert step(state.with_leases(both))[1].decisions == (), "the attempt still uses it"
    stale = heard(x, training(x, using=(), target_revision=1), POLICY, T0, HEARD)
    assert step(state.with_leases(stale))[1].decisions == (), "the attempt does not know the target yet"
    moved = heard(x, training(x, using=(new.id,)), POLICY, T0, HEARD)
    after, answer = step(state.with_leases(moved))
    (drop,) = of_kind(answer, Drop)
    assert (drop.allocation, drop.reason) == (old.id, f"the attempt let {old.id} go")
    dropped = {a.id: a for a in after.leases["x"].live}[old.id]
    assert (dropped.state, dropped.drain_by) == (AllocationState.DRAINING, T0)


def test_what_is_not_let_go_in_time_is_taken() -> None:
    state, answer = step(with_notice(gang(), "s1", 90))
    assert answer.wake_at is not None
    state = hearing(state, 90)
    _, answer = step(state, now=at(90))
    assert of_kind(answer, Drop)[0].reason == "x.2 was to be let go by now"


# --- stops


def test_stop_at() -> None:
    state = running(pools(), lease("x", request(1, stop_at=at(50))))
    _, answer = step(state)
    assert answer.wake_at is not None
    assert answer.wake_at <= at(50)
    after, answer = step(hearing(state, 50), now=at(50))
    (stop,) = of_kind(answer, Stop)
    assert (stop.outcome, stop.by, stop.reason) == (Outcome.STOPPED, at(80), "its stop_at, 12:00:50 UTC, has passed")
    stopping = after.leases["x"]
    assert (stopping.state, stopping.stop_by) == (LeaseState.STOPPING, at(80))
    assert {a.drain_by for a in stopping.live} == {at(80)}


def test_a_queued_lease_stops_at_once() -> None:
    state, _ = step(fleet().with_leases(lease("x", request(1, stop_at=at(0)))))
    assert (state.leases["x"].state, state.leases["x"].ended_at) == (LeaseState.ENDED, T0)


def test_the_budget_warns_once_and_stops_in_time() -> None:
    """Two GPUs at 2.00: 30 s of stopping cost 0.0333 USD."""
    state = running(fleet(node("n1")), lease("x", request(1, gpus=2, budget_usd=Decimal("1.00"))))

    def spent(amount: str) -> State:
        return state.with_leases(replace(state.leases["x"], spent_usd=Decimal(amount)))

    assert of_kind(step(spent("0.79"))[1], Warn, Stop) == []
    after, answer = step(spent("0.80"))
    assert of_kind(answer, Warn)[0].reason == "80 % of the budget of 1.00 USD is spent"
    assert of_kind(step(after)[1], Warn) == [], "once"
    assert of_kind(step(spent("0.9666"))[1], Stop) == []
    _, answer = step(spent("0.9667"))
    (stop,) = of_kind(answer, Stop)
    assert stop.reason == "its budget of 1.00 USD is used: 0.9667 spent, and the stop may cost 0.0333"


def test_the_budget_wakes_up_in_time() -> None:
    state = running(fleet(node("n1")), lease("x", request(1, gpus=2, budget_usd=Decimal("0.10"))))
    _, answer = step(state)
    assert answer.wake_at is not None
    # 0.10 - 0.0333 of stopping at 0.00111 per second: 60 s; silence of the attempt comes at 60 s as well.
    assert at(59) < answer.wake_at <= at(60.01)


def test_a_missed_deadline_warns_and_goes_on() -> None:
    state = running(pools(), lease("x", request(1, deadline=at(10))))
    after, answer = step(hearing(state, 10), now=at(10))
    assert of_kind(answer, Warn)[0].reason == "its deadline, 12:00:10 UTC, has passed; it goes on"
    assert after.leases["x"].state is LeaseState.RUNNING


RELEASE = replace(RAY, on_owner_silent=OwnerSilent.RELEASE)


@pytest.mark.parametrize(
    ("job", "quiet", "queued", "stopped"),
    [
        (RAY, 3599, True, False),
        (RAY, 3600, True, True),
        (RAY, 3600, False, False),
        (RELEASE, 3600, False, True),
        (None, 119, False, False),
        (None, 120, False, True),
        (None, 120, True, True),
    ],
)
def test_silent_owner(job: object, quiet: float, queued: bool, stopped: bool) -> None:
    nodes = () if queued else (node("n1"),)
    state = running(fleet(*nodes), lease("x", job=job)) if nodes else fleet().with_leases(lease("x", job=job))
    x = replace(state.leases["x"], owner_heard=state.heard)
    later = hearing(state.with_leases(x), quiet)
    _, answer = step(later, now=at(quiet))
    assert bool(of_kind(answer, Stop)) == stopped
    if stopped:
        assert of_kind(answer, Stop)[0].reason == f"its owner was silent for {quiet} s"


def test_stopping_leases_wait_for_their_agents_only() -> None:
    state = running(pools(), lease("x", request(1)))
    state = apply(state, Stop(lease="x", outcome=Outcome.STOPPED, reason="released", by=at(30)), POLICY, T0)
    _, answer = step(hearing(state, 60), now=at(60))
    assert answer.decisions == ()
    x = state.leases["x"]
    for allocation in x.live:
        x = gone(x, allocation.id, at(61))
    assert (x.state, x.outcome, x.ended_at) == (LeaseState.ENDED, Outcome.STOPPED, at(61))


def test_a_lost_node_ends_a_stopping_lease() -> None:
    state = running(fleet(node("n1")), lease("x", request(1)))
    state = apply(state, Stop(lease="x", outcome=Outcome.STOPPED, reason="released", by=at(30)), POLICY, T0)
    after, _ = step(hearing(state, 600, "n1"), now=at(600))
    assert after.leases["x"].state is LeaseState.ENDED


def test_frozen_stops_no_move_away_from_a_notice() -> None:
    state = with_notice(gang(), "s1")
    assert of_kind(step(state, Policy(frozen=True))[1], Retarget)


def test_nothing_else_is_granted_on_a_noticed_node() -> None:
    state = with_notice(fleet(node("n1")), "n1")
    assert of_kind(step(state.with_leases(lease("x")))[1], Grant) == []
