"""Steering as a table of moments: an answer, a cluster and a gang in; a command and the next group out."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from moorage.api.values import Held, Renewal
from moorage.core.job import Phase
from moorage.ray.meter import Meter
from moorage.ray.steering import Limits, Steering, View
from moorage.ray.words import Counters, Look, Member, Word

LIMITS = Limits()


def member(name: str) -> Member:
    return Member(allocation=name, node="n", workers=1, gpus=())


def held(name: str, ready: bool = True) -> Held:
    return Held(allocation=name, node="n", workers=1, gpus=(), ready=ready)


class World:
    """One attempt with a clock; allocations are letters."""

    def __init__(self, limits: Limits = LIMITS) -> None:
        self.now = 1000.0
        self.steering = Steering(limits, self.now)
        self.alive: set[str] = set()
        self.draining: dict[str, float] = {}
        self.group, self.members, self.held, self.step = 0, (), 0, 0
        self.phase = Phase.TRAINING
        self.full = True
        self.revision = 0

    def answer(
        self, names: str, *, ready: str | None = None, by: float | None = None, why: str = "", **more: Any
    ) -> None:
        self.revision += 1
        hold = tuple(held(n, ready is None or n in ready) for n in names)
        when = None if by is None else datetime.fromtimestamp(by, UTC)
        self.steering.answer(Renewal(hold=hold, target_revision=self.revision, by=when, why=why, **more), self.now)

    def see(self, after: float = 0.2) -> Word:
        self.now += after
        return self.steering.see(
            View(alive={n: member(n) for n in self.alive}, draining=self.draining, look=self.look()), self.now
        )

    def look(self) -> Look | None:
        if not self.group:
            return None
        joined = dict(enumerate(m.allocation for m in self.members)) if self.full else {}
        counters = Counters(
            group=self.group, phase=self.phase, step=self.step, samples_done=self.step * 64, samples_total=None,
            loss_sum=0.0, loss_count=self.step, at=self.now,
        )  # fmt: skip
        return Look(
            group=self.group, size=len(self.members), joined=joined, held=self.held, saved=0, checkpoint_step=None,
            save_s=0.0, counters=counters if self.full else None,
        )  # fmt: skip

    def begin(self, members: tuple[Member, ...]) -> None:
        self.group = self.steering.started(members)
        self.members, self.held = members, 0

    def trains(self, names: str) -> World:
        """Up and training on `names`."""
        self.alive |= set(names)
        self.answer(names)
        self.see()
        members = self.steering.start(self.now)
        assert members is not None
        self.begin(members)
        self.step = 5
        self.see()
        assert self.steering.trains
        return self

    def names(self, members: tuple[Member, ...] | None) -> str | None:
        return None if members is None else "".join(m.allocation for m in members)

    @property
    def start(self) -> str | None:
        return self.names(self.steering.start(self.now))

    @property
    def resize(self) -> str | None:
        return self.names(self.steering.resize())

    def hold(self) -> int:
        """The hold that is on; 0: none."""
        word = self.see(0.0)
        return word.hold if word.hold > word.release else 0

    def acknowledge(self) -> None:
        self.held = self.hold()
        self.see(0.0)


# --- no group yet


def test_the_first_group_waits_for_all_of_its_allocations_then_takes_what_is_there() -> None:
    world = World()
    world.answer("ab")
    world.alive = {"a"}
    world.see()
    assert world.start is None
    world.see(LIMITS.first_s + 1)
    assert world.start == "a"
    world.alive = {"a", "b"}
    world.see()
    assert world.start == "ab"


def test_too_few_workers_never_start() -> None:
    world = World(Limits(min_workers=2))
    world.answer("abc")
    world.alive = {"a"}
    world.see()
    assert world.start is None
    world.see(500)
    assert world.start is None
    world.alive = {"a", "c"}
    world.see()
    assert world.start == "ac"


def test_without_any_answer_it_starts_with_what_is_alive_in_order() -> None:
    world = World()
    world.alive = {"L.10", "L.9"}
    world.see()
    assert world.steering.start(world.now) is None
    world.see(LIMITS.unanswered_s)
    assert [m.allocation for m in world.steering.start(world.now) or ()] == ["L.9", "L.10"]


# --- planned resizes


def test_growing_waits_for_ready_and_alive_then_holds_then_resizes() -> None:
    world = World().trains("a")
    world.answer("abc", ready="ab", why="grow")
    world.alive = {"a", "b", "c"}
    assert world.hold() == 0
    world.answer("abc", why="grow")
    world.alive = {"a", "b"}
    assert world.hold() == 0
    assert world.resize is None
    world.alive = {"a", "b", "c"}
    assert world.hold() == 1
    assert world.steering.phase is Phase.RESIZING
    assert world.resize is None
    world.acknowledge()
    assert world.resize == "abc"


def test_the_old_revision_is_said_until_the_new_group_runs() -> None:
    world = World().trains("ab")
    before = world.steering.revision
    world.answer("a", why="shrink")
    world.see()
    world.acknowledge()
    assert world.resize == "a"
    world.full = False
    world.begin((member("a"),))
    world.see()
    assert set(world.steering.using) == {"a", "b"}
    assert world.steering.revision == before
    assert world.steering.workers == 0
    world.full = True
    world.see()
    assert world.steering.using == ("a",)
    assert world.steering.revision == world.revision
    assert world.steering.workers == 1


def test_a_revision_that_changes_nothing_is_done_at_once() -> None:
    world = World().trains("ab")
    world.answer("ab")
    world.see()
    assert world.steering.revision == world.revision
    assert world.hold() == 0


def test_a_target_that_is_withdrawn_releases_the_hold() -> None:
    world = World().trains("ab")
    world.answer("a", why="shrink")
    assert world.hold() == 1
    world.answer("ab")
    assert world.hold() == 0
    assert world.resize is None


def test_once_decided_a_resize_is_not_taken_back() -> None:
    world = World().trains("ab")
    world.answer("a", why="shrink")
    world.see()
    world.acknowledge()
    assert world.resize == "a"
    world.answer("ab")
    word = world.see()
    assert word.hold > word.release


def test_a_hold_nobody_acknowledges_is_released_and_tried_again_later() -> None:
    world = World().trains("ab")
    world.answer("a", why="shrink")
    assert world.hold() == 1
    world.see(LIMITS.hold_s)
    assert world.hold() == 0
    world.see(LIMITS.again_s)
    assert world.hold() == 2


def test_a_new_allocation_that_dies_under_the_hold_releases_it() -> None:
    world = World().trains("a")
    world.alive |= {"b"}
    world.answer("ab", why="grow")
    assert world.hold() == 1
    world.alive -= {"b"}
    assert world.hold() == 0


def test_an_allocation_that_never_comes_is_not_waited_for_forever() -> None:
    world = World().trains("a")
    world.alive |= {"b"}
    world.answer("abc", ready="ab", why="grow")
    assert world.hold() == 0
    world.see(LIMITS.gather_s)
    world.see()
    world.acknowledge()
    assert world.resize == "ab"


def test_no_hold_before_the_first_step_and_none_after_the_last() -> None:
    world = World().trains("a")
    for phase, expected in ((Phase.RESTORING, 0), (Phase.DONE, 0), (Phase.TRAINING, 1)):
        world.phase = phase
        world.alive |= {"b"}
        world.answer("ab", why="grow")
        assert world.hold() == expected, phase


# --- notices


def test_a_notice_saves_at_once_and_moves_when_the_replacement_is_ready() -> None:
    world = World().trains("ab")
    world.draining = {"a": world.now + 30}
    word = world.see()
    assert (word.save, word.hold) == (1, 0)
    world.answer("bc", ready="b", by=world.now + 30, why="notice")
    assert world.see().save == 1
    world.answer("bc", by=world.now + 30, why="notice")
    world.alive |= {"c"}
    assert world.hold() == 1
    assert world.steering.phase is Phase.DRAINING
    world.acknowledge()
    assert world.resize == "bc"


def test_near_the_deadline_it_goes_with_what_survives() -> None:
    world = World().trains("ab")
    world.answer("bc", ready="b", by=world.now + 20, why="notice")
    assert world.hold() == 0
    world.see(20 - LIMITS.margin_s)
    world.see()
    world.acknowledge()
    assert world.resize == "b"


def test_near_the_deadline_it_holds_even_if_nothing_survives() -> None:
    world = World().trains("a")
    world.answer("c", ready="", by=world.now + 20, why="notice")
    world.see(20 - LIMITS.margin_s)
    world.see()
    world.acknowledge()
    assert world.hold() == 1
    assert world.resize is None
    world.alive |= {"c"}
    world.answer("c", by=world.now + 3, why="notice")
    world.see()
    assert world.resize == "c"


def test_a_drain_counts_while_the_broker_is_away() -> None:
    world = World().trains("ab")
    world.draining = {"b": world.now + 10}
    assert world.see().save == 1
    world.see(10 - LIMITS.margin_s)
    world.see()
    world.acknowledge()
    assert world.resize == "a"


def test_a_shrink_by_choice_saves_nothing_extra() -> None:
    world = World().trains("ab")
    world.answer("a", why="shrink")
    assert world.see().save == 0


# --- losses


def test_after_a_loss_it_waits_for_rays_word_then_goes_on_with_the_rest() -> None:
    world = World().trains("ab")
    assert world.steering.lost(["b"], world.now)
    assert not world.steering.running
    world.see()
    assert world.start is None
    assert world.steering.phase is Phase.RESTORING
    world.alive -= {"b"}
    world.see()
    assert world.start == "a"


def test_a_worker_that_died_on_a_raylet_that_lives_gets_another_chance() -> None:
    world = World().trains("ab")
    world.steering.lost(["b"], world.now)
    world.see(LIMITS.doubt_s - 1)
    assert world.start is None
    world.see(2)
    assert world.start == "ab"


def test_losses_without_a_step_between_them_end_the_run() -> None:
    world = World().trains("a")
    for _ in range(LIMITS.strikes):
        assert world.steering.lost([], world.now)
        world.begin((member("a"),))
        world.see()
    assert not world.steering.lost([], world.now)


def test_a_step_of_progress_forgives() -> None:
    world = World().trains("a")
    for _ in range(3 * LIMITS.strikes):
        world.step += 1
        world.see()
        assert world.steering.lost([], world.now)
        world.begin((member("a"),))
        world.see()


def test_nothing_is_started_on_what_drains() -> None:
    world = World().trains("ab")
    world.steering.lost(["b"], world.now)
    world.alive -= {"b"}
    world.draining = {"a": world.now + 10}
    world.see()
    assert world.start is None


# --- the end


def test_a_stop_is_for_good_and_the_first_reason_stays() -> None:
    world = World().trains("a")
    world.answer("a", stop="budget")
    assert world.see().stop == "budget"
    world.answer("a", stop="operator")
    assert world.see().stop == "budget"
    assert world.steering.phase is Phase.CHECKPOINTING
    assert not world.steering.overdue(world.now)
    assert world.steering.overdue(world.now + LIMITS.stop_s)


def test_phases_of_a_quiet_run() -> None:
    world = World()
    world.alive = {"a"}
    world.answer("a")
    world.see()
    assert world.steering.phase is Phase.STARTING
    assert world.steering.waits
    world.full = False
    world.begin((member("a"),))
    world.see()
    assert world.steering.phase is Phase.STARTING
    world.full, world.phase = True, Phase.RESTORING
    world.see()
    assert world.steering.phase is Phase.RESTORING
    world.phase = Phase.TRAINING
    world.see()
    assert world.steering.phase is Phase.TRAINING
    assert not world.steering.waits


# --- heartbeats


def counters(step: int, at: float, group: int = 1, phase: Phase = Phase.TRAINING) -> Counters:
    return Counters(
        group=group, phase=phase, step=step, samples_done=step * 64, samples_total=6400,
        loss_sum=float(sum(range(step))), loss_count=step, at=at, metrics={"accuracy": 0.5},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("first", "second", "loss", "throughput"),
    [
        pytest.param(counters(10, 5.0), counters(20, 7.0), 14.5, 320.0, id="since the last one"),
        pytest.param(counters(10, 5.0), counters(10, 7.0), None, None, id="no step in between: not known"),
        pytest.param(counters(10, 5.0), counters(20, 7.0, group=2), None, None, id="a new group starts anew"),
        pytest.param(
            counters(10, 5.0, phase=Phase.RESTORING), counters(20, 7.0), 14.5, None, id="a restore is no training"
        ),
    ],
)
def test_rates(first: Counters, second: Counters, loss: float | None, throughput: float | None) -> None:
    world, meter = World().trains("ab"), Meter()
    for each in (first, second):
        look = Look(
            group=each.group, size=2, joined={0: "a", 1: "b"}, held=0, saved=1, checkpoint_step=8, save_s=0.1,
            counters=each,
        )  # fmt: skip
        progress = meter.progress(look, world.steering)
    assert (progress.loss, progress.throughput) == (loss, throughput)
    assert (progress.step, progress.samples_total, progress.checkpoint_step) == (second.step, 6400, 8)
    assert (progress.workers, progress.using) == (2, ("a", "b"))
    assert progress.metrics == {"accuracy": 0.5}


def test_between_groups_the_step_is_the_checkpoints() -> None:
    world, meter = World().trains("a"), Meter()
    seen = Look(
        group=1, size=1, joined={0: "a"}, held=0, saved=1, checkpoint_step=8, save_s=0.1, counters=counters(10, 5.0)
    )  # fmt: skip
    assert meter.progress(seen, world.steering).step == 10
    assert meter.progress(replace(seen, counters=None, checkpoint_step=None), world.steering).step == 8


def test_before_the_first_group_nothing_is_claimed() -> None:
    progress = Meter().progress(None, World().steering)
    assert progress.phase is Phase.STARTING
    assert (progress.step, progress.loss, progress.workers, progress.using) == (None, None, None, ())


# --- any story


class Story(RuleBasedStateMachine):
    """Whatever happens: never a group on what is dead or draining, never a hold without end, counters only rise."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World().trains("ab")
        self.before = Word()

    @rule(names=st.sets(st.sampled_from("abcdef"), min_size=1), by=st.none() | st.floats(0, 40), ready=st.booleans())
    def answer(self, names: set[str], by: float | None, ready: bool) -> None:
        ordered = "".join(sorted(names))
        self.world.answer(ordered, ready=None if ready else "", by=None if by is None else self.world.now + by)

    @rule(name=st.sampled_from("abcdef"), up=st.booleans())
    def raylet(self, name: str, up: bool) -> None:
        (self.world.alive.add if up else self.world.alive.discard)(name)
        self.world.draining.pop(name, None)

    @rule(name=st.sampled_from("abcdef"), after=st.floats(0, 30))
    def drain(self, name: str, after: float) -> None:
        if name in self.world.alive:
            self.world.draining[name] = self.world.now + after

    @rule(seconds=st.floats(0.1, 15))
    def time(self, seconds: float) -> None:
        self.world.step += 0 if self.world.hold() else 1
        self.world.see(seconds)

    @rule()
    def acknowledge(self) -> None:
        self.world.acknowledge()

    @rule()
    def controller(self) -> None:
        """What Ray's controller does at each turn."""
        world = self.world
        members = world.steering.resize() if world.steering.running else world.steering.start(world.now)
        if members:
            assert all(m.allocation in world.alive and m.allocation not in world.draining for m in members)
            world.begin(members)
            world.see()

    @precondition(lambda self: self.world.steering.running)
    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        victim = data.draw(st.sampled_from([m.allocation for m in self.world.members]))
        self.world.steering.lost([victim], self.world.now)

    @invariant()
    def commands_only_rise(self) -> None:
        word = self.world.see(0.0)
        assert (word.save, word.hold, word.release) >= (self.before.save, self.before.hold, self.before.release)
        assert word.release <= word.hold
        self.before = word

    @invariant()
    def holds_end(self) -> None:
        assert (
            not self.world.hold()
            or self.world.now < self.world.steering._hold_since + LIMITS.hold_s + 20
            or (self.world.steering._committed)
        )


TestStory = Story.TestCase
TestStory.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
