"""What a simulation found: waits, use of the fleet, resizes, dollars."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from moorage.core.cost import Cost
from moorage.core.lease import Lease


@dataclass(frozen=True, slots=True, kw_only=True)
class Resize:
    """One change of a target. `at` in seconds from the start."""

    at: float
    lease: str
    before: int
    after: int
    why: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One run. Seconds of virtual time from its start."""

    start: datetime
    #: Virtual seconds that it ran.
    seconds: float
    #: Every lease as it was at the end of the run.
    leases: Mapping[str, Lease]
    #: Lease -> seconds from arrival to its first grant; absent: never granted.
    waits: Mapping[str, float]
    costs: Mapping[str, Cost]
    resizes: tuple[Resize, ...]
    #: Samples that were done again after interruptions.
    repeated: Mapping[str, float]
    #: GPU-seconds held, over GPU-seconds of nodes that were alive. None: no node ever was.
    utilisation: float | None
    decides: int

    def run_time(self, lease: str) -> float | None:
        """Seconds from arrival to end. None: it has not ended."""
        one = self.leases[lease]
        return None if one.ended_at is None else (one.ended_at - one.submitted_at).total_seconds()
