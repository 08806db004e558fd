"""From rank 0's totals to one heartbeat: loss and throughput since the last one."""

from __future__ import annotations

from moorage.core.job import Phase, Progress
from moorage.ray.steering import Steering
from moorage.ray.words import Counters, Look


class Meter:
    """Remembers the last heartbeat. A new group starts from new totals."""

    def __init__(self) -> None:
        self._last: Counters | None = None
        self._checkpoint_step: int | None = None
        self._samples_total: int | None = None

    def progress(self, look: Look | None, steering: Steering, *, done: bool = False) -> Progress:
        """The heartbeat for what the gang shows now. What is not known is None."""
        counters = look.counters if look else None
        if look is not None and look.checkpoint_step is not None:
            self._checkpoint_step = look.checkpoint_step
        if counters is not None and counters.samples_total is not None:
            self._samples_total = counters.samples_total
        loss, throughput = self._rates(counters)
        return Progress(
            phase=Phase.DONE if done else steering.phase,
            # Between groups: the next one goes on from here.
            step=counters.step if counters else self._checkpoint_step,
            samples_done=counters.samples_done if counters else None,
            samples_total=self._samples_total,
            loss=loss,
            throughput=throughput,
            workers=steering.workers or None,
            checkpoint_step=self._checkpoint_step,
            using=steering.using,
            target_revision=steering.revision,
            metrics=counters.metrics if counters else {},
            message=counters.message if counters else "",
        )

    def _rates(self, counters: Counters | None) -> tuple[float | None, float | None]:
        last, self._last = self._last, counters or self._last
        if counters is None or last is None or counters.group != last.group:
            return None, None
        return self._loss(last, counters), self._throughput(last, counters)

    def _loss(self, last: Counters, new: Counters) -> float | None:
        count = new.loss_count - last.loss_count
        return (new.loss_sum - last.loss_sum) / count if count > 0 else None

    def _throughput(self, last: Counters, new: Counters) -> float | None:
        """Samples per second of training; a span with a restore or a checkpoint in it tells nothing of the speed."""
        trained = last.phase is Phase.TRAINING and new.phase is Phase.TRAINING
        samples, seconds = new.samples_done - last.samples_done, new.at - last.at
        return samples / seconds if trained and samples > 0 and seconds > 0 else None
