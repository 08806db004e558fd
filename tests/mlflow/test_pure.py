"""Journal rows, ledger and costs in; MLflow operations, report values and pages out. No MLflow."""

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlflow_scripted import LENGTH_S, story

from moorage.api.values import Cost, Event, EventKind, Segment
from moorage.core.job import Activity
from moorage.mlflow import cost_report, render
from moorage.mlflow.accounts import closing, cost_point, describe, money
from moorage.mlflow.artifacts import attachments, concerning, table
from moorage.mlflow.chart import duration
from moorage.mlflow.opening import name, opening, track
from moorage.mlflow.operations import Attach, OpenRun, Operation, Point, SetStatus, Worth, Write, decode, encode
from moorage.mlflow.timeline import cost_of, gpu_steps, usd_by_epoch
from moorage.mlflow.tracked import Tracked
from moorage.mlflow.translate import allocated, told, translate

START = datetime(2026, 11, 30, 20, tzinfo=UTC)
LEASE = "01930000-0000-7000-8000-00000000abcd"
END = START + timedelta(seconds=LENGTH_S)


def played() -> tuple[Tracked, list[Operation], list[Event]]:
    """The whole story through `translate`."""
    tale = story(LEASE, START)
    seen, operations, kept = track(tale.lease), list(opening(tale.lease, "ana", "http://fleet/")), []
    for event in tale.events:
        if told(event, seen):
            kept.append(event)
        seen, more = translate(event, seen)
        operations += more
    return seen, operations, kept


def points(operations: Sequence[Operation], key: str, epoch: int = 0) -> list[Point]:
    return [p for o in operations if isinstance(o, Write) and o.epoch == epoch for p in o.points if p.key == key]


def test_one_parent_and_a_child_for_each_attempt() -> None:
    _, operations, _ = played()
    opened = [operation for operation in operations if isinstance(operation, OpenRun)]
    assert [(run.epoch, run.name) for run in opened] == [(0, "train 00abcd"), (1, "attempt 1"), (2, "attempt 2")]
    parent = opened[0].tags
    assert parent["moorage.lease"] == LEASE
    assert parent["airflow.dag_id"] == "digits"
    assert parent["moorage.owner"] == "airflow.dag_id=digits, airflow.task_id=train, airflow.run_id=r1"
    assert parent["moorage.url"] == f"http://fleet/leases/{LEASE}"
    assert parent["mlflow.user"] == "ana"


def test_an_owner_cannot_overwrite_our_tags() -> None:
    lease = replace(story(LEASE, START).lease, owner={"moorage.team": "x", "mlflow.user": "y", "odd(key)": "z"})
    run = opening(lease, "ana", None)[0]
    assert isinstance(run, OpenRun)
    assert (run.tags["moorage.team"], run.tags["mlflow.user"], run.tags["odd_key_"]) == ("research", "ana", "z")


def test_curves_at_the_training_step_with_the_time_of_the_row() -> None:
    _, operations, _ = played()
    loss = points(operations, "loss")
    assert [p.step for p in loss] == [*range(1, 33), *range(32, 64)]
    assert loss[0].at == int((START + timedelta(seconds=4)).timestamp() * 1000)
    assert points(operations, "accuracy")[0].value == 0.5


def test_gpus_as_a_step_function_in_real_time() -> None:
    seen, operations, _ = played()
    _, last = closing(replace(seen, done=False), Cost(), {})
    steps = points([*operations, *last], "gpu/allocated")
    seconds = [(p.at / 1000 - START.timestamp(), p.value) for p in steps]
    assert [(round(second, 3), gpus) for second, gpus in seconds] == [
        (1.999, 0), (2, 2), (21.999, 2), (22, 3), (44.999, 3), (45, 2), (80.999, 2), (81, 0),
    ]  # fmt: skip


def test_a_row_of_an_unknown_fact_is_left_out_not_zero() -> None:
    event = Event(seq=1, at=START, kind=EventKind.PROGRESS, sentence="", lease=LEASE, facts={"phase": "training"})
    _, operations = translate(event, Tracked(lease=LEASE, submitted=0))
    assert operations == []


def test_each_attempt_ends_with_its_outcome() -> None:
    seen, operations, _ = played()
    _, last = closing(seen, Cost(), {1: Decimal(1), 2: Decimal(2)})
    ends = [(o.epoch, o.status) for o in [*operations, *last] if isinstance(o, SetStatus)]
    assert [status for epoch, status in ends if epoch] == ["KILLED", "FINISHED"]
    assert [status for epoch, status in ends if not epoch] == [
        "SCHEDULED",
        "RUNNING",
        "SCHEDULED",
        "RUNNING",
        "FINISHED",
    ]
    tagged = [o for o in [*operations, *last] if isinstance(o, Write) and "moorage.outcome" in o.tags]
    outcomes = {o.epoch: o.tags["moorage.outcome"] for o in tagged}
    assert outcomes == {1: "interrupted", 2: "succeeded", 0: "succeeded"}
    assert points(last, "attempt/cost_usd", 2)[0].value == 2
    assert points(last, "attempt/cost_usd", 0) == []


@pytest.mark.parametrize(
    ("outcome", "status"), [("failed", "FAILED"), ("stopped", "KILLED"), ("succeeded", "FINISHED")]
)
def test_outcome_and_status(outcome: str, status: str) -> None:
    _, operations = closing(Tracked(lease=LEASE, submitted=0, ended=5000, outcome=outcome), Cost(), {})
    assert operations[-1] == SetStatus(lease=LEASE, epoch=0, status=status, end=5000)  # type: ignore[arg-type]


def test_a_lease_that_never_ran_has_no_attempt() -> None:
    _, operations = closing(Tracked(lease=LEASE, submitted=0, ended=5000, outcome="stopped"), Cost(), {})
    assert {operation.epoch for operation in operations} == {0}


def test_cost_has_a_counter_of_its_own_that_only_rises() -> None:
    seen = Tracked(lease=LEASE, submitted=0, epoch=1)
    seen, first = cost_point(seen, Cost(total_usd=Decimal("1.5")), 10)
    seen, second = cost_point(seen, Cost(total_usd=Decimal("2.5")), 20)
    seen, final = cost_point(seen, Cost(total_usd=Decimal("2.75")), 15, Worth.KEEP)
    assert [p.step for p in points([*first, *second, *final], "cost/total_usd")] == [10, 20, 21]
    assert [p.value for p in points(second, "cost/usd_per_hour")] == [360.0]
    assert points(final, "cost/usd_per_hour") == []


def test_the_description_starts_with_plain_dollars() -> None:
    seen = Tracked(lease=LEASE, submitted=0, interruptions=1, outcome="succeeded")
    cost = Cost(total_usd=Decimal("1.234"), busy_usd=Decimal("1.234"), gpu_seconds=Decimal(2880), saved_usd=Decimal(2))
    text = describe(seen, cost)
    assert text.splitlines()[0] == "$1.23 · 0.80 GPU-h · saved $2.00 · 1 interruption · succeeded"


@pytest.mark.parametrize(("amount", "text"), [("0", "$0.00"), ("0.01234", "$0.0123"), ("1234.5", "$1,234.50")])
def test_money(amount: str, text: str) -> None:
    assert money(Decimal(amount)) == text


@pytest.mark.parametrize(("seconds", "text"), [(4, "4 s"), (125, "2:05"), (3725, "1:02:05"), (273900, "3 d 04:05")])
def test_duration(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(("given_name", "text"), [("acc$", "acc_"), ("a/../b", "a/../b"), ("/x/", "x"), ("", "_")])
def test_names(given_name: str, text: str) -> None:
    assert name(given_name) == text


@given(st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 8)), max_size=30))
def test_the_newest_gpu_count_is_always_mlflows_latest(changes: list[tuple[int, int]]) -> None:
    """MLflow's latest value is the largest by (step, timestamp, value), also with several changes in a millisecond."""
    seen, written = Tracked(lease=LEASE, submitted=0), []
    for at, gpus in sorted(changes, key=lambda change: change[0]):
        seen, more = allocated(seen, at, gpus)
        written += points(more, "gpu/allocated")
    if written:
        assert max(written, key=lambda p: (p.step, p.at, p.value)).value == seen.gpus
        assert len({(p.step, p.at) for p in written}) == len(written)


@given(st.floats(allow_nan=True, allow_infinity=True), st.text())
def test_operations_survive_the_disk(value: float, text: str) -> None:
    points = (Point(key="loss", value=value, at=1, step=2),)
    write = Write(lease=LEASE, epoch=1, points=points, tags={"t": text}, worth=Worth.COST)
    back = decode(encode(write))
    assert isinstance(back, Write)
    assert math.isnan(value) or back == write
    attach = Attach(lease=LEASE, epoch=0, path="a", text=text)
    assert decode(encode(attach)) == attach


# --- the report


def test_the_report_adds_up_and_agrees_with_the_ledger() -> None:
    tale = story(LEASE, START)
    report = cost_report(tale.segments, tale.events, lease=LEASE, until=END)
    cost = report.cost
    parts = cost.busy_usd + cost.idle_usd + cost.lost_usd + cost.overhead_usd + cost.unknown_usd
    assert parts == cost.total_usd
    assert sum(attempt.usd for attempt in report.attempts) == pytest.approx(cost.total_usd, abs=Decimal("0.00001"))
    gpu_seconds = 41 + 38 + 22 + 36 * 2
    assert cost.gpu_seconds == gpu_seconds
    assert float(cost.total_usd) == pytest.approx(gpu_seconds / 3600 * 3.3333, abs=1e-6)


def test_lanes_steps_spans_and_attempts() -> None:
    tale = story(LEASE, START)
    _, _, kept = played()
    report = cost_report(tale.segments, kept, lease=LEASE, until=END)
    assert [(lane.node, lane.gpus) for lane in report.lanes] == [("n1", (0, 1)), ("n2", (3,)), ("n3", (0,))]
    steps = [((at - START).total_seconds(), gpus) for at, gpus in report.steps]
    assert steps == [(2, 2), (20, 3), (40, 2), (42, 1), (43, 0), (45, 2), (81, 0)]
    spans = [(s.phase, (s.start - START).total_seconds(), (s.end - START).total_seconds()) for s in report.spans]
    assert spans == [("starting", 2.5, 4), ("training", 4, 42), ("training", 48, 81)]
    assert [(a.epoch, a.workers, a.outcome) for a in report.attempts] == [(1, 2, "interrupted"), (2, 2, "succeeded")]


def test_an_open_segment_ends_at_until() -> None:
    tale = story(LEASE, START)
    opened = [replace(segment, end=None) for segment in tale.segments[:1]]
    report = cost_report(opened, tale.events[:3], lease=LEASE, until=START + timedelta(seconds=12))
    assert (report.cost.gpu_seconds, report.outcome) == (10, "running")


def test_an_empty_ledger_is_free_and_drawn() -> None:
    report = cost_report([], [], lease=LEASE, until=START)
    assert report.cost == Cost(saved_usd=Decimal("0.000000"), total_usd=Decimal(0)) or report.cost.total_usd == 0
    assert "It never got GPUs." in render(report)


def test_every_text_is_escaped() -> None:
    tale = story(LEASE, START)
    evil = "<script>alert('x')</script>"
    events = [replace(event, sentence=evil, node=evil) for event in tale.events]
    segments = [replace(segment, node=evil, pool=evil) for segment in tale.segments]
    page = render(cost_report(segments, events, lease=evil, until=END, title=evil, team=evil))
    assert "<script" not in page
    assert "&lt;script&gt;" in page


def test_the_page_needs_nothing_else() -> None:
    tale = story(LEASE, START)
    page = render(cost_report(tale.segments, tale.events, lease=LEASE, until=END))
    assert "http" not in page.replace("http://www.w3.org", "")
    assert page.count("<svg") == 1
    assert "prefers-color-scheme: dark" in page


def test_the_table_is_what_log_table_writes() -> None:
    files = attachments(story(LEASE, START).lease, story(LEASE, START).segments, played()[2], END)
    assert isinstance(files[0], Attach)
    found = json.loads(files[0].text)
    assert set(found) == {"columns", "data"}
    assert "progress" not in {row[1] for row in found["data"]}
    assert all(len(row) == len(found["columns"]) for row in found["data"])
    assert json.loads(table([])) == {"columns": list(found["columns"]), "data": []}


def test_a_notice_stands_in_the_table_if_the_lease_was_there() -> None:
    tale = story(LEASE, START)
    [notice] = [event for event in tale.events if event.kind is EventKind.NOTICE]
    elsewhere, later = replace(notice, node="n9"), replace(notice, at=START + timedelta(seconds=60))
    assert concerning(tale.segments, [notice, elsewhere, later]) == [notice]


segments = st.builds(
    lambda start, length, gpus, cents, activity, epoch: Segment(
        id=1, allocation="a", lease=LEASE, epoch=epoch, team="t", node="n", pool="p", gpus=tuple(range(gpus)),
        activity=activity, price=Decimal(cents) / 100, on_demand_price=Decimal(cents) / 50,
        start=START + timedelta(microseconds=start), end=START + timedelta(microseconds=start + length),
    ),
    st.integers(0, 10**9), st.integers(0, 10**9), st.integers(1, 8), st.integers(0, 1000),
    st.sampled_from(list(Activity)), st.integers(1, 3),
)  # fmt: skip


@given(st.lists(segments, max_size=12), st.integers(0, 2 * 10**9))
def test_cost_until_any_time_adds_up_and_never_falls(ledger: list[Segment], micro: int) -> None:
    until = START + timedelta(microseconds=micro)
    cost = cost_of(ledger, until)
    assert cost.busy_usd + cost.idle_usd + cost.lost_usd + cost.overhead_usd + cost.unknown_usd == cost.total_usd
    assert cost.total_usd <= cost_of(ledger, until + timedelta(seconds=60)).total_usd
    by_epoch = sum(usd_by_epoch(ledger, until).values(), Decimal(0))
    assert abs(by_epoch - cost.total_usd) <= Decimal("0.000003")


@given(st.lists(segments, max_size=12))
def test_gpu_steps_end_at_zero(ledger: list[Segment]) -> None:
    steps = gpu_steps(ledger)
    assert not steps or steps[-1][1] == 0
    assert all(gpus >= 0 for _, gpus in steps)
