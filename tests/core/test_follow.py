"""What the world did: heartbeats, starts, ends. And `apply` on the decisions that change little."""

from __future__ import annotations

from dataclasses import replace

import pytest
from core_builders import HEARD, POLICY, PROCESS, RAYLET, T0, at, fleet, lease, node, request, running, step, training

from moorage.core.apply import apply
from moorage.core.decision import Claim, Drop, Hold, Stop, Warn
from moorage.core.follow import gone, heard, started, thinned
from moorage.core.job import Observation, Phase, Progress
from moorage.core.lease import AllocationState, IllegalTransition, Lease, LeaseState, Outcome


def granted(**facts: object) -> Lease:
    state, _ = step(fleet(node("n1")).with_leases(lease("x", request(2), **facts)))
    return state.leases["x"]


def test_heard_makes_it_run() -> None:
    x = heard(granted(), Progress(phase=Phase.STARTING), POLICY, T0, 1001.0)
    assert (x.state, x.attempt_heard, x.best_step, x.observations) == (LeaseState.RUNNING, 1001.0, 0, ())
    assert heard(granted(), None, POLICY, T0, 1001.0).progress is None


@pytest.mark.parametrize("state", [LeaseState.QUEUED, LeaseState.ENDED])
def test_nobody_speaks_for_what_is_not_there(state: LeaseState) -> None:
    with pytest.raises(IllegalTransition):
        heard(lease("x", state=state), Progress(phase=Phase.TRAINING), POLICY, T0, HEARD)


def test_observations_only_while_training_with_something_new() -> None:
    x = granted()
    beats = [
        Progress(phase=Phase.RESTORING, step=4, samples_done=40, workers=2),
        Progress(phase=Phase.TRAINING, step=None, samples_done=40, workers=2),
        Progress(phase=Phase.TRAINING, step=5, samples_done=50, workers=2, loss=1.5, throughput=9.0),
        Progress(phase=Phase.TRAINING, step=5, samples_done=50, workers=2),
        Progress(phase=Phase.TRAINING, step=6, samples_done=60, workers=2),
        Progress(phase=Phase.TRAINING, step=3, samples_done=30, workers=2),
    ]
    for n, beat in enumerate(beats):
        x = heard(x, beat, POLICY, at(n), HEARD + n)
    assert [(o.step, o.samples, o.loss, o.throughput) for o in x.observations] == [
        (5, 50, 1.5, 9.0),
        (6, 60, None, None),
        (3, 30, None, None),
    ]
    assert x.best_step == 6


def test_observations_are_bounded_and_keep_their_beginning() -> None:
    policy = replace(POLICY, observations=10)
    x = granted()
    for n in range(1, 1000):
        x = heard(x, Progress(phase=Phase.TRAINING, step=n, samples_done=n, workers=1), policy, at(n), HEARD)
        assert len(x.observations) <= 10
    steps = [o.step for o in x.observations]
    assert steps[0] == 1
    assert steps[-1] == 999
    assert steps == sorted(steps)


def test_thinned_leaves_short_histories_alone() -> None:
    points = tuple(Observation(at=T0, step=n, samples=n, workers=1, loss=None, throughput=None) for n in range(5))
    assert thinned(points, 5) == points
    assert [o.step for o in thinned(points, 4)] == [0, 2, 3, 4]


def test_started_and_repeated() -> None:
    x = granted()
    x = started(started(x, "x.2"), "x.2")
    assert [a.state for a in x.allocations] == [AllocationState.RESERVED, AllocationState.HELD]
    assert x.state is LeaseState.GRANTED
    assert started(x, "x.99") == x


@pytest.mark.parametrize("job", [None, RAYLET])
def test_what_has_no_trainer_runs_when_it_started(job: object) -> None:
    state, _ = step(fleet(node("n1")).with_leases(lease("x", job=job)))
    assert started(state.leases["x"], "x.1").state is LeaseState.RUNNING


def test_gone_ends_a_stopping_lease_with_its_last_allocation() -> None:
    state = running(fleet(node("n1")), lease("x", request(2)))
    state = apply(state, Stop(lease="x", outcome=Outcome.STOPPED, reason="r", by=at(30)), POLICY, T0)
    x = gone(state.leases["x"], "x.1", at(1))
    assert (x.state, x.ended_at) == (LeaseState.STOPPING, None)
    x = gone(x, "x.1", at(1))
    x = gone(x, "x.2", at(2))
    assert (x.state, x.ended_at, x.outcome) == (LeaseState.ENDED, at(2), Outcome.STOPPED)


def test_a_second_stop_changes_nothing_but_may_hurry() -> None:
    state = running(fleet(node("n1")), lease("x", request(2)))
    first = apply(state, Stop(lease="x", outcome=Outcome.FAILED, reason="first", by=at(30)), POLICY, T0)
    later = apply(first, Stop(lease="x", outcome=Outcome.STOPPED, reason="second", by=at(90)), POLICY, T0)
    assert later == first
    forced = apply(first, Stop(lease="x", outcome=Outcome.STOPPED, reason="force"), POLICY, at(5)).leases["x"]
    assert (forced.reason, forced.stop_by) == ("first", at(5))
    assert {a.drain_by for a in forced.live} == {at(5)}


def test_small_decisions() -> None:
    state = running(fleet(node("n1")), lease("x", job=PROCESS))
    assert apply(state, Claim(lease="x", victims=(), reason=""), POLICY, T0) is state
    warned = apply(state, Warn(lease="x", key="budget", reason="much"), POLICY, T0)
    assert warned.leases["x"].warnings == {"budget": "much"}
    held = apply(state, Hold(lease="x", reasons=(), reason="waits"), POLICY, T0)
    assert held.leases["x"].reason == "waits"
    assert apply(held, Hold(lease="x", reasons=(), reason="waits"), POLICY, T0) is held
    assert state.leases["x"].reason != "waits", "nothing was changed in place"
    drained = apply(state, Drop(lease="x", allocation="x.1", reason="idle", by=at(9)), POLICY, T0)
    assert [(a.state, a.drain_by) for a in drained.leases["x"].live] == [(AllocationState.DRAINING, at(9))]


def test_freed_allocations_are_forgotten_at_the_next_grant() -> None:
    state = running(fleet(node("n1"), node("n2")), lease("x", request(2)))
    x = state.leases["x"]
    state = state.with_leases(replace(gone(gone(x, "x.1", T0), "x.2", T0), state=LeaseState.QUEUED))
    state, _ = step(state)
    assert [a.id for a in state.leases["x"].allocations] == ["x.3", "x.4"]


def test_short_since_follows_the_allocations_that_are_up() -> None:
    state = running(fleet(node("n1")), lease("x", request(2)))
    x = state.leases["x"]
    assert x.short_since is None
    short = gone(x, "x.2", at(3))
    assert short.short_since == at(3)
    assert heard(short, training(short), POLICY, at(9), HEARD).short_since == at(3)
