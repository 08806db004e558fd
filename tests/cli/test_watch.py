"""A lease's story, from its events."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from moorage.api.values import Event, EventKind
from moorage.cli.demo.watch import Interruption, Resize, story

BEGAN = datetime(2026, 11, 30, 20, tzinfo=UTC)


def event(
    second: int, kind: EventKind, *, lease: str | None = "L", node: str | None = None, **facts: str | float
) -> Event:
    at_ = BEGAN + timedelta(seconds=second)
    return Event(seq=second, at=at_, kind=kind, sentence=f"at {second}", lease=lease, node=node, facts=facts)


def at(second: int) -> datetime:
    return BEGAN + timedelta(seconds=second)


def test_a_move_is_no_resize_and_the_resumption_tells_its_cost() -> None:
    told = story(
        [
            event(10, EventKind.RESIZED, **{"from": 1, "to": 4, "why": "grow"}),
            event(15, EventKind.RESUMED, steps_lost=0, seconds_stopped=4.0),
            event(39, EventKind.NOTICE, lease=None, node="gpu-a2", deadline="soon"),
            event(40, EventKind.RESIZED, **{"from": 4, "to": 4, "why": "notice"}),
            event(45, EventKind.RESUMED, lease="another", steps_lost=9, seconds_stopped=99.0),
            event(50, EventKind.RESUMED, steps_lost=1, seconds_stopped=9.5),
            event(70, EventKind.LOST, lease=None, node="gpu-a2", notice=1),
            event(90, EventKind.RESIZED, **{"from": 4, "to": 1, "why": "shrink"}),
            event(95, EventKind.RESUMED, steps_lost=0, seconds_stopped=5.0),
        ],
        "L",
    )
    assert told.resizes == [Resize(at(10), 1, 4, "at 10"), Resize(at(90), 4, 1, "at 90")]
    assert told.interruptions == [Interruption(at(40), "gpu-a2", True, 1, 9.5)]


def test_a_node_that_took_its_workers_along_after_a_notice_is_one_interruption() -> None:
    told = story(
        [
            event(39, EventKind.NOTICE, lease=None, node="gpu-a2", deadline="soon"),
            event(40, EventKind.RESIZED, **{"from": 4, "to": 4, "why": "notice"}),
            event(70, EventKind.LOST, node="gpu-a2", workers=4, notice=1),
            event(80, EventKind.RESUMED, steps_lost=0, seconds_stopped=12.0),
        ],
        "L",
    )
    assert told.interruptions == [Interruption(at(40), "gpu-a2", True, 0, 12.0)]


def test_without_a_notice_the_next_resumption_tells_the_cost() -> None:
    told = story(
        [
            event(5, EventKind.RESUMED, steps_lost=0, seconds_stopped=1.0),
            event(20, EventKind.LOST, node="gpu-b2", workers=1, notice=0),
            event(30, EventKind.RESUMED, steps_lost=7, seconds_stopped=12.0),
        ],
        "L",
    )
    assert told.interruptions == [Interruption(at(20), "gpu-b2", False, 7, 12.0)]


def test_what_is_not_known_yet_is_none() -> None:
    (gone,) = story([event(20, EventKind.LOST, node="gpu-b2", workers=1, notice=0)], "L").interruptions
    assert (gone.steps_lost, gone.seconds_lost) == (None, None)
