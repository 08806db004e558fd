"""How fast a gang is at each size, from what it measured: time per sample = a + b / workers (Amdahl's law)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import isfinite
from statistics import median

import numpy as np

from moorage.core.job import Observation

#: Serial share of the work that is assumed until two sizes were measured.
SERIAL_SHARE = 0.03
#: Newest measurements of a size that count.
NEWEST = 32


@dataclass(frozen=True, slots=True)
class Throughput:
    """Samples per second by worker count."""

    #: Median of the newest measurements at each count.
    measured: Mapping[int, float]
    #: Seconds per sample that no worker shortens, and that all share.
    serial: float
    shared: float

    def rate(self, workers: int) -> float:
        """Samples per second: measured, or expected."""
        return self.measured.get(workers) or 1.0 / (self.serial + self.shared / workers)

    def efficiency(self, workers: int) -> float:
        """rate(n) / (n x rate(1))."""
        return self.rate(workers) / (workers * self.rate(1))


def throughput(observations: Iterable[Observation]) -> Throughput | None:
    """The model of these observations; None where nothing was measured."""
    by_count: dict[int, list[float]] = {}
    for point in observations:
        if point.throughput is not None and isfinite(point.throughput) and point.throughput > 0:
            by_count.setdefault(point.workers, []).append(point.throughput)
    measured = {count: median(rates[-NEWEST:]) for count, rates in by_count.items()}
    if not measured:
        return None
    serial, shared = _one_size(measured) if len(measured) == 1 else _fit(measured)
    return Throughput(measured, serial, shared)


def _one_size(measured: Mapping[int, float]) -> tuple[float, float]:
    count, rate = next(iter(measured.items()))
    alone = 1.0 / rate / (SERIAL_SHARE + (1 - SERIAL_SHARE) / count)
    return SERIAL_SHARE * alone, (1 - SERIAL_SHARE) * alone


def _fit(measured: Mapping[int, float]) -> tuple[float, float]:
    """Least squares over the counts, with neither part negative."""
    counts = np.array(list(measured), dtype=np.float64)
    times = 1.0 / np.array(list(measured.values()), dtype=np.float64)
    columns = np.stack([np.ones_like(counts), 1.0 / counts], axis=1)
    serial, shared = np.linalg.lstsq(columns, times, rcond=None)[0].tolist()
    if serial < 0:
        return 0.0, float((times * counts).mean())
    if shared < 0:
        return float(times.mean()), 0.0
    return serial, shared
