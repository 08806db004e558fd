"""What a simulated job would do: how much work, how fast at each size, how its loss falls."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from moorage.core.job import Job, JobKind
from moorage.core.request import Request


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Numbers of one job. Rates are samples per second of the whole gang."""

    samples: int = 10_000
    #: Measured rates by worker count; others follow Amdahl's law from `rate` and `serial`.
    rates: Mapping[int, float] = field(default_factory=dict)
    rate: float = 30.0
    serial: float = 0.03
    #: Loss at the start, where it ends, and after which share of the samples it is flat.
    loss_first: float = 2.0
    loss_last: float = 0.2
    flat_after: float = 0.6
    #: Relative noise of each reported rate and loss.
    noise: float = 0.02
    #: Seconds to start or restart, to resize, and between checkpoints.
    start_s: float = 10.0
    resize_s: float = 8.0
    checkpoint_s: float = 60.0

    def speed(self, workers: int) -> float:
        """Samples per second."""
        return self.rates.get(workers, self.rate * workers / (1 + self.serial * (workers - 1)))

    def loss(self, samples: float) -> float:
        """Falls exponentially until `flat_after`, then stays."""
        share = min(samples / self.samples / self.flat_after, 1.0)
        return self.loss_last + (self.loss_first - self.loss_last) * (math.exp(-4 * share) - math.exp(-4))


_TRAIN = Job(kind=JobKind.RAY, entrypoint=("python", "train.py"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """One request and when it comes, in seconds from the start."""

    id: str
    at: float = 0.0
    team: str = "default"
    request: Request
    job: Job = _TRAIN
    work: Work = Work()


@dataclass(frozen=True, slots=True, kw_only=True)
class Outage:
    """A node goes at `at`, after a notice of so many seconds (None: none), and is back at `back` (None: never)."""

    node: str
    at: float
    notice_s: float | None = None
    back: float | None = None
