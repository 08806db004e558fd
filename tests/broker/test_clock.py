"""Wall time never runs backwards; silence counts only while the broker could hear."""

from __future__ import annotations

from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from moorage.broker.clock import FakeClock, HearingClock, SteadyClock


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(-100_000, 100_000)), max_size=50))
def test_steady_time_never_runs_backwards_nor_stands(moves: list[tuple[float, float]]) -> None:
    clock = FakeClock()
    steady = SteadyClock(clock)
    for seconds, jump in moves:
        before = steady.now()
        clock.advance(seconds)
        clock.jump(jump)
        # Never back; and never slower than real time while the wall clock is behind.
        assert steady.now() >= before
        assert steady.now() >= clock.now()


def test_a_clock_set_back_goes_on_from_where_it_was() -> None:
    clock = FakeClock()
    steady = SteadyClock(clock)
    before = steady.now()
    clock.jump(-3600)
    clock.advance(5)
    assert steady.now() == before + timedelta(seconds=5)


@given(st.lists(st.floats(0, 10_000), max_size=50))
def test_hearing_counts_pauses_as_one_second(gaps: list[float]) -> None:
    clock = FakeClock()
    hearing = HearingClock(clock, 7.0)
    expected = 7.0
    for gap in gaps:
        clock.advance(gap)
        hearing.set(*hearing.next())
        expected += gap if gap <= 3 else 1
    assert abs(hearing.heard - expected) < 0.01


def test_a_tick_that_could_not_be_stored_is_not_heard() -> None:
    clock = FakeClock()
    hearing = HearingClock(clock, 0.0)
    for _ in range(100):
        clock.advance(1)
        hearing.next()
    hearing.set(*hearing.next())
    assert hearing.heard == 1
