"""What the loss says: still falling, or flat. Medians of two halves of the last window, so that noise says little."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from statistics import median

from moorage.core.job import Observation
from moorage.core.policy import Elastic

#: Points that a half needs before its median means anything.
FEWEST = 2


@dataclass(frozen=True, slots=True)
class Trend:
    """The loss over the last window of samples."""

    #: Medians of the older and the newer half.
    before: float
    after: float
    #: (before - after) / before, with the policy's floor under the divisor.
    improvement: float
    #: Share of the window that the history covers, 0..1.
    covered: float

    def flat(self, elastic: Elastic) -> bool:
        """A whole window was measured and improved the loss by too little."""
        return self.covered >= 1 and self.improvement < elastic.flat_improvement

    def falls(self, elastic: Elastic) -> bool:
        """It improves as fast as the policy asks, counted over what was measured of the window."""
        return self.improvement >= elastic.flat_improvement * self.covered


def trend(observations: Sequence[Observation], samples_total: int | None, elastic: Elastic) -> Trend | None:
    """The trend at the end of the history; None where there is too little of it, or no loss is reported."""
    points = _points(observations)
    if not samples_total or len(points) < 2 * FEWEST:
        return None
    last, window = points[-1][0], elastic.flat_window * samples_total
    start = max(last - window, points[0][0])
    middle = (start + last) / 2
    older = [loss for samples, loss in points if start <= samples <= middle]
    newer = [loss for samples, loss in points if samples > middle]
    if min(len(older), len(newer)) < FEWEST:
        return None
    before, after = median(older), median(newer)
    divisor = max(abs(before), elastic.flat_floor * abs(points[0][1]))
    improvement = (before - after) / divisor if divisor else 0.0
    return Trend(before, after, improvement, min(1.0, (last - points[0][0]) / window))


def _points(observations: Sequence[Observation]) -> list[tuple[int, float]]:
    """(samples, loss) by samples; work that was done again counts as it went the last time."""
    by_samples = {o.samples: o.loss for o in observations if o.loss is not None and isfinite(o.loss)}
    return sorted(by_samples.items())
