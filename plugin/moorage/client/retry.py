"""When a failed call is tried again: exponential back-off with full jitter, bounded in time."""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from moorage.api.errors import Unavailable

FIRST_S = 0.1
LARGEST_S = 5.0

_random = secrets.SystemRandom()


@dataclass(slots=True)
class Retry:
    """One call's patience. Times are seconds of a monotonic clock.

    The time without an answer counts from the start of the first try that failed, but a long poll's quiet wait does
    not count: at most `timeout` seconds of it.
    """

    url: str
    retry_for: float
    timeout: float
    tries: int = 0
    since: float | None = None

    def pause(self, started: float, now: float, reason: str) -> float:
        """Seconds to wait before the next try, after one from `started` to `now` failed.

        Raises:
            Unavailable: patience is over; names the address, how long it took and why.
        """
        if self.since is None:
            self.since = max(started, now - self.timeout)
        waited = now - self.since
        if waited >= self.retry_for:
            raise Unavailable(f"no answer from {self.url} after {waited:.0f} s: {reason}")
        self.tries += 1
        longest = min(LARGEST_S, FIRST_S * 2 ** min(self.tries - 1, 10))
        return min(_random.uniform(longest / 4, longest), self.retry_for - waited)
