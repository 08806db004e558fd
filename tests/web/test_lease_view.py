"""One lease's page."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal

from web_samples import NOW, demo, lease, story

from moorage.api.values import Cost, Event, EventKind
from moorage.core.lease import LeaseState, Outcome
from moorage.web import lease_view, timeline

VIEW = demo().leases[0]
EVENTS, SEGMENTS = story()


def test_shares_add_up_to_the_total() -> None:
    shares = lease_view.shares(VIEW)
    assert [share.word for share in shares] == ["busy", "overhead", "idle", "lost", "unknown"]
    assert abs(sum(share.percent for share in shares) - 100) < 0.5
    assert shares[1].start == 78.0


def test_nothing_spent_has_no_shares() -> None:
    assert lease_view.shares(replace(VIEW, cost=Cost())) == []


def test_the_page_of_a_running_lease() -> None:
    page = lease_view.build(VIEW, EVENTS, SEGMENTS, NOW, operator=True)
    assert page["may_release"] is True
    assert page["events"][0]["sentence"].startswith("mlflow.run_id")
    assert dict(page["facts"])["Newest checkpoint"] == "step 1,800"
    assert ("Spent", "$0.8423", "$0.7581 less than on demand") in page["tiles"]
    assert lease_view.build(VIEW, EVENTS, SEGMENTS, NOW, operator=False)["may_release"] is False


def test_an_ended_lease_says_its_outcome_and_stops_its_clock() -> None:
    over = replace(VIEW.lease, state=LeaseState.ENDED, outcome=Outcome.FAILED, ended_at=NOW - timedelta(minutes=2))
    page = lease_view.build(replace(VIEW, lease=over), EVENTS, SEGMENTS, NOW, operator=True)
    assert (page["state"], page["live"], page["may_release"]) == ("failed", False, False)
    assert page["tiles"][5][:2] == ("Age", "7 min")


def test_progress_rows_are_not_events() -> None:
    progress = Event(seq=99, at=NOW, kind=EventKind.PROGRESS, sentence="step 4")
    page = lease_view.build(VIEW, [*EVENTS, progress], SEGMENTS, NOW, operator=False)
    assert all(event["kind"] != "progress" for event in page["events"])


def test_a_lease_without_progress_knows_nothing() -> None:
    page = lease_view.build(lease("l", {}), [], [], NOW, operator=False)
    assert page["timeline"] == ""
    assert page["done"] is None
    assert page["tiles"][2][1] == "\u2013"


def test_the_timeline_is_well_formed_and_says_its_summary() -> None:
    start = min(segment.start for segment in SEGMENTS)
    hostile = [replace(segment, node="<n>&\"'") for segment in SEGMENTS]
    drawn = ET.fromstring(timeline.draw(start, NOW, hostile, EVENTS))
    assert drawn.attrib["aria-label"].startswith("3 allocations: busy, idle, lost, overhead.")
    bars = [rect for rect in drawn.iter("rect") if rect.attrib["class"].startswith("a-")]
    assert len(bars) == len(SEGMENTS)
    assert all(timeline.LEFT <= float(bar.attrib["x"]) <= timeline.WIDTH for bar in bars)


def test_a_long_life_is_cut_to_its_last_allocations() -> None:
    many = [replace(SEGMENTS[0], allocation=f"a.{n}", start=NOW - timedelta(minutes=90 - n)) for n in range(60)]
    drawn = timeline.draw(NOW - timedelta(hours=2), NOW, many, [])
    assert "20 earlier allocations not drawn" in drawn


def test_budget_is_said() -> None:
    request = replace(VIEW.lease.request, budget_usd=Decimal("2.5"), deadline=NOW + timedelta(minutes=30))
    facts = dict(lease_view.facts(replace(VIEW, lease=replace(VIEW.lease, request=request)), NOW))
    assert facts["Budget"] == "$2.50"
    assert facts["Deadline"].endswith("in 30 min")
