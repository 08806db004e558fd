"""What the hook says to the broker, look by look."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

import pytest

from moorage.core.invalid import Invalid
from moorage.core.lease import LeaseState, Outcome
from moorage.ray.demand import Bundle, Cluster, Demand, Gang, RayNode, Selector, Singles
from moorage.ray.hook import Hook, Limits
from moorage.ray.internals import RayGone, Snapshot

GANG = Gang("ab" * 14 + "01000000", "PACK", (Bundle({"GPU": 2.0}, (Selector("moorage.io/gang", ("g1",)),)),) * 2)
TASK = Singles(Bundle({"GPU": 1.0}), 2)
LIMITS = Limits(patience_s=3, settle_s=3, protect_s=100, watch_every_s=60, again_first_s=2, deny_s=60)


class Bench:
    """A hook, the broker's stand-in, and Ray as a value."""

    def __init__(self, desk, clock, cluster) -> None:  # type: ignore[no-untyped-def]
        self.desk, self.clock, self.cluster = desk, clock, cluster
        self.given: set[str] = set()
        self.heard: list[str] = []
        self.nodes: dict[str, RayNode] = {}
        self.gangs: tuple[Gang, ...] = ()
        self.singles: tuple[Singles, ...] = ()
        self.restart()

    def restart(self, session: str = "session_1") -> None:
        cluster = replace(self.cluster, session=session)
        self.hook = Hook(self.desk, cluster, LIMITS, self.given, self.heard.append, self.clock)

    def look(self, seconds: float = 1.0) -> None:
        """One look at Ray, `seconds` later."""
        self.clock.now += seconds
        self.hook.step(Snapshot(Demand(self.gangs, self.singles), tuple(self.nodes.values())))

    def join(self, *allocations: str) -> None:
        self.desk.hold(*allocations)
        self.nodes |= {a: RayNode(a) for a in allocations}

    def state(self, lease: str) -> LeaseState:
        return self.desk.leases[lease].state


@pytest.fixture
def bench(desk, clock, cluster) -> Bench:  # type: ignore[no-untyped-def]
    return Bench(desk, clock, cluster)


def test_a_gang_comes_whole_and_goes(bench: Bench) -> None:
    bench.gangs = (GANG,)
    bench.look()
    assert bench.hook.instances == {}
    a, b = bench.desk.grant("l1")
    bench.look()
    assert bench.hook.instances == {a: False, b: False}
    assert bench.hook.protected == {a, b}
    bench.join(a)
    bench.look()
    # The first raylet is idle while it waits for the second: that is no idleness.
    assert bench.hook.instances == {a: True, b: False}
    assert bench.hook.protected == {a, b}
    bench.join(b)
    bench.gangs = ()
    bench.look()
    assert bench.hook.protected == frozenset()
    bench.given.update({a, b})
    bench.look()
    # Ray says it again when the raylets are gone.
    bench.given.update({a, b})
    bench.look()
    assert bench.desk.said("give_back") == [("l1", a), ("l1", b)]
    assert not bench.given
    bench.desk.free(a, b)
    bench.look()
    assert bench.hook.instances == {}
    assert len(bench.desk.said("submit")) == 1


def test_while_a_gang_is_queued_nothing_happens(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    bench.gangs = (GANG,)
    bench.look()
    bench.look()
    lines = len(caplog.records)
    for _ in range(20):
        bench.look()
    assert len(bench.desk.said("submit")) == 1
    assert not bench.desk.said("release")
    assert len(caplog.records) == lines


def test_a_gang_that_can_never_fit_is_refused_once_and_the_drivers_are_told(bench: Bench) -> None:
    bench.desk.refuse = lambda submission: Invalid("workers", submission.request.workers, "at most 1 fits")
    bench.gangs = (GANG,)
    for _ in range(5):
        bench.look()
    assert len(bench.desk.said("submit")) == 1
    assert bench.hook.denied == {GANG.id}
    assert [line for line in bench.heard if "at most 1 fits" in line] == [
        f"Moorage cannot serve placement group {GANG.id}: workers=(2, 2): at most 1 fits"
    ]
    # Once it is gone, the same demand is judged anew.
    bench.gangs = ()
    for _ in range(5):
        bench.look()
    assert not bench.hook.denied
    bench.desk.refuse = lambda submission: None
    bench.gangs = (GANG,)
    bench.look()
    assert bench.state("l1") is LeaseState.QUEUED


def test_a_gang_that_did_not_fit_is_offered_again_because_fleets_grow(bench: Bench) -> None:
    bench.desk.refuse = lambda submission: Invalid("workers", 2, "at most 1 fits")
    bench.gangs = (GANG,)
    for _ in range(100):
        bench.look()
    assert len(bench.desk.said("submit")) == 2
    assert len(bench.heard) == 1
    bench.desk.refuse = lambda submission: None
    bench.look(60)
    assert bench.state("l1") is LeaseState.QUEUED
    assert not bench.hook.denied


def test_a_group_that_is_gone_is_withdrawn_but_a_flicker_is_not(bench: Bench) -> None:
    bench.gangs = (GANG,)
    bench.look()
    bench.gangs = ()
    bench.look()
    bench.look()
    bench.gangs = (GANG,)
    bench.look()
    bench.gangs = ()
    for _ in range(3):
        bench.look()
    assert bench.state("l1") is LeaseState.QUEUED
    bench.look()
    assert bench.state("l1") is LeaseState.ENDED


def test_a_restarted_hook_finds_its_leases(bench: Bench) -> None:
    bench.gangs = (GANG,)
    bench.look()
    bench.restart()
    bench.look()
    assert len(bench.desk.leases) == 1
    a, b = bench.desk.grant("l1")
    bench.restart()
    bench.look()
    assert bench.hook.instances == {a: False, b: False}
    assert len(bench.desk.said("submit")) == 1


def test_before_the_broker_was_heard_ray_is_told_nothing(bench: Bench) -> None:
    bench.desk.down = True
    bench.look()
    assert bench.hook.instances is None


def test_a_broker_that_is_away_changes_nothing_and_is_logged_once(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.gangs = (GANG,)
    bench.look()
    a, b = bench.desk.grant("l1")
    bench.join(a, b)
    bench.look()
    bench.desk.down = True
    caplog.clear()
    calls = len(bench.desk.calls)
    bench.given.add(a)
    for _ in range(60):
        bench.look()
    assert bench.hook.instances == {a: True, b: True}
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert len(bench.desk.calls) - calls < 10
    bench.desk.down = False
    bench.look(20)
    assert ("l1", a) in bench.desk.said("give_back")
    assert bench.given == set()


def test_an_allocation_that_went_by_itself_is_not_given_back(bench: Bench) -> None:
    bench.given.add("nobody.1")
    bench.look()
    assert not bench.desk.said("give_back")
    assert not bench.given


def test_leases_of_an_earlier_session_of_the_head_are_released(bench: Bench) -> None:
    bench.gangs = (GANG,)
    bench.look()
    bench.gangs = ()
    bench.restart("session_2")
    bench.look()
    assert bench.desk.said("release") == [("l1", "its Ray head started again")]


def test_a_lease_that_fails_again_and_again_is_asked_for_less_and_less(bench: Bench) -> None:
    bench.gangs = (GANG,)
    for _ in range(200):
        bench.look()
        for lease in [x.id for x in bench.desk.leases.values() if x.state is not LeaseState.ENDED]:
            bench.desk.end(lease, Outcome.FAILED, "its raylet died at start")
    # 2, 4, 8, ... seconds
    assert len(bench.desk.leases) == 7


def test_singles_share_a_class_and_the_helper_is_named_once(bench: Bench) -> None:
    bench.singles = (TASK,)
    for _ in range(3):
        bench.look()
    assert [x.owner["ray.slot"] for x in bench.desk.leases.values()] == ["0", "1"]
    assert len([line for line in bench.heard if "moorage.ray.placement_group" in line]) == 1
    # A slot is used again at once when its lease was used up.
    for lease in list(bench.desk.leases):
        bench.desk.end(lease, Outcome.SUCCEEDED)
    bench.look()
    assert [x.owner["ray.slot"] for x in bench.desk.leases.values()] == ["0", "1", "0", "1"]


def test_a_joined_single_is_not_asked_for_twice_while_ray_still_counts_it(bench: Bench) -> None:
    bench.singles = (replace(TASK, count=1),)
    bench.look()
    (a,) = bench.desk.grant("l1")
    bench.look()
    bench.join(a)
    bench.look()
    bench.look()
    assert len(bench.desk.leases) == 1
    bench.look()
    bench.look()
    assert len(bench.desk.leases) == 2


def test_a_gang_that_ray_does_not_place_loses_its_protection(bench: Bench) -> None:
    bench.gangs = (GANG,)
    bench.look()
    allocations = bench.desk.grant("l1")
    bench.join(*allocations)
    bench.look()
    assert bench.hook.protected == set(allocations)
    bench.look(101)
    assert bench.hook.protected == frozenset()
    assert [line for line in bench.heard if "does not place" in line]


def test_leases_are_watched_now_and_then(bench: Bench) -> None:
    bench.gangs = (GANG,)
    for _ in range(125):
        bench.look()
    assert bench.desk.said("watch") == [("l1", "ray-autoscaler session_1")] * 3


def test_a_driver_that_cannot_be_told_stops_nothing(bench: Bench) -> None:
    def fail(text: str) -> None:
        raise RayGone("no answer")

    bench.hook._say = fail
    bench.singles = (TASK,)
    bench.look()
    assert len(bench.desk.leases) == 2


def test_the_refusal_of_one_gang_does_not_stop_another(bench: Bench) -> None:
    other = replace(GANG, id="cd" * 14 + "01000000", bundles=GANG.bundles[:1])
    refuse: Callable[..., Invalid | None] = lambda s: (  # noqa: E731
        Invalid("workers", 2, "no") if s.request.workers[0] == 2 else None
    )
    bench.desk.refuse = refuse
    bench.gangs = (GANG, other)
    bench.look()
    assert [x.owner["ray.placement_group"] for x in bench.desk.leases.values()] == [other.id]


def test_cluster_of_the_fixture(cluster: Cluster) -> None:
    assert cluster.owner == {"ray.head": "head@10.0.0.1:6379", "ray.cluster": "session_1"}
