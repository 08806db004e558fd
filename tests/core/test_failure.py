"""How an attempt ended, and what follows, word for word."""

from __future__ import annotations

from dataclasses import replace

import pytest
from core_builders import POLICY, RAY, T0, at, fleet, lease, node, running

from moorage.core.apply import apply
from moorage.core.decision import Retry, Stop
from moorage.core.failure import CAUSES, Fault, back_off, cause, judge
from moorage.core.job import DoneWhen, Evidence, Job
from moorage.core.lease import Lease, LeaseState, Outcome

MARKED = replace(RAY, done_when=DoneWhen.MARKER)


def attempt(job: Job = RAY, **facts: object) -> Lease:
    return replace(running(fleet(node("n1")), lease("x", job=job)).leases["x"], **facts)


def judged(one: Lease, **evidence: object) -> Retry | Stop:
    return judge(one, Evidence(**{"exit_code": None, **evidence}), POLICY, T0)


@pytest.mark.parametrize(
    ("job", "evidence", "outcome", "reason"),
    [
        (RAY, {"exit_code": 0}, Outcome.SUCCEEDED, "finished"),
        (MARKED, {"exit_code": 0, "marker": '{"accuracy": 0.97}'}, Outcome.SUCCEEDED, "finished"),
        (
            MARKED,
            {"exit_code": 0, "tail": "bye\n"},
            Outcome.FAILED,
            "attempt 1 exited 0 without finishing: no completion marker; last line: bye",
        ),
        (
            RAY,
            {"exit_code": 3, "tail": "one\nValueError: no data\n\n"},
            Outcome.FAILED,
            "attempt 1 exited 3; last line: ValueError: no data",
        ),
        (RAY, {"exit_code": 127}, Outcome.FAILED, "attempt 1 found no such program"),
        (RAY, {"signal": 11}, Outcome.FAILED, "attempt 1 crashed (SIGSEGV)"),
        (RAY, {"signal": 42}, Outcome.FAILED, "attempt 1 died by signal 42"),
        (
            RAY,
            {"exit_code": 1, "tail": "torch.OutOfMemoryError: CUDA out of memory. Tried 2 GiB"},
            Outcome.FAILED,
            "attempt 1 ran out of GPU memory; last line: torch.OutOfMemoryError: CUDA out of memory. Tried 2 GiB",
        ),
    ],
)
def test_ends(job: Job, evidence: dict[str, object], outcome: Outcome, reason: str) -> None:
    stop = judged(attempt(job), **evidence)
    assert isinstance(stop, Stop)
    assert (stop.outcome, stop.reason, stop.by) == (outcome, reason, T0)
    assert stop.result == evidence.get("marker")


@pytest.mark.parametrize(
    ("evidence", "words"),
    [
        ({"signal": 9}, "was killed from outside (SIGKILL)"),
        ({"exit_code": 137}, "was killed from outside (SIGKILL)"),
        ({"signal": 15}, "was ended from outside (SIGTERM)"),
        ({"agent_error": "code 12ab not found"}, "could not run: code 12ab not found"),
        ({}, "ended, and its exit code is not known"),
        ({"exit_code": 1, "tail": "has fallen off the bus"}, "met a failing GPU; last line: has fallen off the bus"),
        ({"exit_code": 1, "tail": "No space left on device"}, "met a full disk; last line: No space left on device"),
    ],
)
def test_infrastructure_is_tried_again_without_fault(evidence: dict[str, object], words: str) -> None:
    retry = judged(attempt(), **evidence)
    assert isinstance(retry, Retry)
    assert retry.reason == f"attempt 1 {words}; tried again at 12:00:02 UTC"
    assert (retry.fault, retry.interruption, retry.not_before) == (False, False, at(2))


def test_own_failures_use_up_the_retries() -> None:
    job = replace(RAY, max_retries=2)
    first = judged(attempt(job), exit_code=3)
    assert isinstance(first, Retry)
    assert (first.fault, first.reason) == (True, "attempt 1 exited 3; retry 1 of 2 at 12:00:02 UTC")
    last = judged(attempt(job, failures=2, epoch=3), exit_code=3, tail="boom")
    assert isinstance(last, Stop)
    assert last.reason == "attempt 3 (after 2 of 2 retries) exited 3; last line: boom"


def test_apply_counts_them() -> None:
    state = running(fleet(node("n1")), lease("x", job=replace(RAY, max_retries=2)))
    state = apply(state, judged(state.leases["x"], exit_code=3), POLICY, T0)
    x = state.leases["x"]
    assert (x.state, x.failures, x.interruptions, x.not_before) == (LeaseState.QUEUED, 1, 0, at(2))
    assert x.fruitless == 0, "it had trained a step"
    assert {a.drain_by for a in x.live} == {T0}


def test_infrastructure_is_bounded_where_nothing_moves() -> None:
    stuck = attempt(fruitless=19, granted_step=1)
    stop = judged(stuck, signal=9)
    assert isinstance(stop, Stop)
    assert stop.reason == ("gave up after 20 attempts without progress: attempt 1 was killed from outside (SIGKILL)")
    assert isinstance(judged(replace(stuck, best_step=2), signal=9), Retry), "a new step starts the count anew"


def test_a_stopping_lease_keeps_its_outcome_unless_it_finished() -> None:
    stopping = attempt(state=LeaseState.STOPPING, outcome=Outcome.STOPPED, reason="released by ann")
    killed = judged(stopping, signal=15)
    assert isinstance(killed, Stop)
    assert (killed.outcome, killed.reason) == (Outcome.STOPPED, "released by ann")
    obeyed = judged(stopping, exit_code=0)
    assert isinstance(obeyed, Stop)
    assert obeyed.outcome is Outcome.STOPPED, "it exits 0 because it was told to stop"
    done = judged(stopping, exit_code=0, marker="{}")
    assert isinstance(done, Stop)
    state = fleet(node("n1")).with_leases(stopping)
    assert apply(state, killed, POLICY, T0).leases["x"].outcome is Outcome.STOPPED
    assert apply(state, done, POLICY, T0).leases["x"].outcome is Outcome.SUCCEEDED


def test_the_result_is_kept() -> None:
    state = running(fleet(node("n1")), lease("x", job=MARKED))
    state = apply(state, judged(state.leases["x"], exit_code=0, marker="[1, 2]"), POLICY, T0)
    assert state.leases["x"].result == "[1, 2]"


def test_back_off_doubles_to_its_bound() -> None:
    waits = [(back_off(n, POLICY, T0) - T0).total_seconds() for n in (0, 1, 2, 3, 4, 5, 6, 1000)]
    assert waits == [2, 4, 8, 16, 32, 60, 60, 60]


def test_every_row_of_the_table_can_be_reached() -> None:
    for row in CAUSES:
        found, words = cause(Evidence(exit_code=row.exit_code, signal=row.signal, tail=row.text))
        assert found is row.fault
        assert words.startswith(row.words)
    assert {row.fault for row in CAUSES} == set(Fault)
