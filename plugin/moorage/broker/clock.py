"""Time as the broker sees it: a wall clock that never runs back, and the hearing clock that silence is counted on."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from threading import Lock
from typing import Protocol

#: A gap between two ticks above this many seconds means that the process did not run (paused, host asleep)...
LONGEST_TICK_S = 3.0
#: ... and counts as this many.
PAUSE_COUNTS_S = 1.0


class Clock(Protocol):
    """Where the broker reads the time."""

    def now(self) -> datetime:
        """Wall clock, UTC-aware."""
        ...

    def monotonic(self) -> float:
        """Seconds that never run backwards, from any start."""
        ...


class SystemClock:
    """The host's clocks."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()


class FakeClock:
    """A clock that moves only when told, for tests and simulations."""

    def __init__(self, start: datetime = datetime(2026, 1, 1, tzinfo=UTC)) -> None:
        self._now = start
        self._monotonic = 0.0

    def now(self) -> datetime:
        return self._now

    def monotonic(self) -> float:
        return self._monotonic

    def advance(self, seconds: float) -> None:
        """Both clocks go on by this."""
        self._now += timedelta(seconds=seconds)
        self._monotonic += seconds

    def jump(self, seconds: float) -> None:
        """Only the wall clock moves, as when somebody sets it."""
        self._now += timedelta(seconds=seconds)


class SteadyClock:
    """A wall clock set back goes on from where it was, so that no ledger segment ends before it starts."""

    def __init__(self, clock: Clock, floor: datetime | None = None) -> None:
        self._clock = clock
        self._lock = Lock()
        self._last = max(floor, clock.now()) if floor else clock.now()
        self._at = clock.monotonic()

    def now(self) -> datetime:
        with self._lock:
            wall, at = self._clock.now(), self._clock.monotonic()
            if wall < self._last:
                wall = self._last + timedelta(seconds=at - self._at)
            self._last, self._at = wall, at
            return wall

    def monotonic(self) -> float:
        return self._clock.monotonic()


class HearingClock:
    """Seconds in which the broker could hear. An outage, a paused process or a clock jump counts as almost nothing."""

    def __init__(self, clock: Clock, stored: float) -> None:
        self._clock = clock
        self._last = clock.monotonic()
        self.heard = stored

    def next(self) -> tuple[float, float]:
        """What the clock shows after this tick, and the monotonic time of it: `set` it once that is stored."""
        at = self._clock.monotonic()
        gap = at - self._last
        return self.heard + (gap if gap <= LONGEST_TICK_S else PAUSE_COUNTS_S), at

    def set(self, heard: float, at: float) -> None:
        self.heard, self._last = heard, at
