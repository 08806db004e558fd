"""The pilot's threads against a broker that answers, is away, refuses, or has given the lease to another attempt."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from moorage.api.errors import Conflict, Denied, NotFound, Unavailable
from moorage.api.values import Held, Renewal
from moorage.core.job import Phase, Progress
from moorage.ray import pilot as room
from moorage.ray.pilot import Attempt, Pilot
from moorage.ray.steering import Limits
from moorage.ray.words import Counters, Look, Member, Overdue, Word

ANSWER = Renewal(hold=(Held(allocation="L.1", node="n", workers=1, gpus=(0,), ready=True),), target_revision=3)
MEMBER = Member(allocation="L.1", node="n", workers=1, gpus=(0,))


class Broker:
    def __init__(self) -> None:
        self.says: Any = ANSWER
        self.heard: list[Progress] = []
        self.closed = False

    def renew(self, lease: str, epoch: int, progress: Progress) -> Renewal:
        assert (lease, epoch) == ("L", 2)
        self.heard.append(progress)
        if isinstance(self.says, Exception):
            raise self.says
        return self.says

    def close(self) -> None:
        self.closed = True


class Cluster:
    def __init__(self) -> None:
        self.group, self.word = 0, Word()

    def look(self, word: Word | None) -> Look | None:
        self.word = word or self.word
        counters = Counters(
            group=self.group, phase=Phase.TRAINING, step=4, samples_done=256, samples_total=6400,
            loss_sum=1.0, loss_count=4, at=time.monotonic(),
        )  # fmt: skip
        return Look(
            group=self.group, size=1, joined={0: "L.1"}, held=0, saved=0, checkpoint_step=None, save_s=0.0,
            counters=counters,
        )  # fmt: skip

    def begin(self, group: int, members: tuple[Member, ...]) -> None:
        self.group = group

    def raylets(self) -> tuple[dict[str, Member], dict[str, float]]:
        return {"L.1": MEMBER}, {}


def eventually(what: Callable[[], Any], limit_s: float = 5) -> Any:
    until = time.monotonic() + limit_s
    while time.monotonic() < until:
        if found := what():
            return found
        time.sleep(0.01)
    raise AssertionError("not in time")


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Pilot, Broker, Cluster]]:
    for name, value in (("TICK_S", 0.01), ("RENEW_S", 0.03), ("RENEW_WAITING_S", 0.02), ("RENEW_MAX_S", 0.05)):
        monkeypatch.setattr(room, name, value)
    broker, cluster = Broker(), Cluster()
    monkeypatch.setattr(Attempt, "connect", lambda self: broker)
    pilot = Pilot(Attempt(url="http://x", token="t", lease="L", epoch=2), cluster, Limits(stop_s=0.2))
    pilot.start()
    yield pilot, broker, cluster
    pilot.finish()
    assert broker.closed


def train(pilot: Pilot) -> None:
    members = eventually(pilot.start_group)
    pilot.started(members)
    eventually(lambda: pilot._steering.trains)


def test_it_starts_what_the_broker_says_and_reports_it(parts: tuple[Pilot, Broker, Cluster]) -> None:
    pilot, broker, _ = parts
    assert broker.heard == [] or broker.heard[0].phase is Phase.STARTING
    train(pilot)
    last = eventually(lambda: broker.heard[-1] if broker.heard[-1].phase is Phase.TRAINING else None)
    assert (last.step, last.using, last.workers) == (4, ("L.1",), 1)
    eventually(lambda: broker.heard[-1].target_revision == 3)
    assert pilot.resize_group() is None


def test_a_broker_that_is_away_changes_nothing(parts: tuple[Pilot, Broker, Cluster]) -> None:
    pilot, broker, cluster = parts
    train(pilot)
    broker.says = Unavailable("nobody there")
    tries = len(broker.heard)
    eventually(lambda: len(broker.heard) > tries + 5)
    assert (pilot.stopping, cluster.word.stop, pilot.resize_group()) == (None, None, None)
    broker.says = ANSWER
    tries = len(broker.heard)
    eventually(lambda: len(broker.heard) > tries + 2)


@pytest.mark.parametrize("error", [Conflict("attempt 2 is over"), NotFound("no such lease"), Denied("no")])
def test_an_attempt_that_is_over_stops_its_workers_then_the_run(
    parts: tuple[Pilot, Broker, Cluster], error: Exception
) -> None:
    pilot, broker, cluster = parts
    train(pilot)
    broker.says = error
    eventually(lambda: cluster.word.stop)
    assert str(error) in str(pilot.stopping)
    assert len(broker.heard) >= (room.DENIALS if isinstance(error, Denied) else 1)
    time.sleep(0.25)
    with pytest.raises(Overdue, match="is over"):
        pilot.resize_group()
    with pytest.raises(Overdue, match="is over"):
        pilot.start_group()


def test_the_end_is_said(parts: tuple[Pilot, Broker, Cluster]) -> None:
    pilot, broker, _ = parts
    train(pilot)
    pilot.finish()
    assert broker.heard[-1].phase is Phase.DONE


def test_the_end_does_not_wait_for_a_broker_that_is_away(parts: tuple[Pilot, Broker, Cluster]) -> None:
    pilot, broker, _ = parts
    broker.says = Unavailable("nobody there")
    started = time.monotonic()
    pilot.finish()
    assert time.monotonic() - started < 2


def test_only_what_travels_is_pickled(parts: tuple[Pilot, Broker, Cluster]) -> None:
    pilot, _, _ = parts
    assert set(pilot.__getstate__()) == {"_attempt", "_cluster", "_limits"}
