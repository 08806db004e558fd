"""Which samples come next: a function of seed and position alone, so that it is the same at any number of workers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from moorage.core.invalid import Invalid

Indices = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Batch:
    """One global batch, and this worker's part of it."""

    #: Sample indices of the global batch, in order, shape (size,).
    all: Indices
    #: This worker's part of `all`, contiguous, shape (weight,); may be empty for a small last batch.
    local: Indices
    #: Samples before this batch, counted over all epochs.
    position: int

    @property
    def size(self) -> int:
        """Samples of the global batch."""
        return len(self.all)

    @property
    def weight(self) -> int:
        """Samples of this worker: the weight of its mean in the mean over the global batch."""
        return len(self.local)


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """`epochs` passes over `samples` samples, each shuffled by (seed, epoch). One stream: batches may cross epochs."""

    samples: int
    epochs: int
    seed: int

    def __post_init__(self) -> None:
        for name, least in (("samples", 1), ("epochs", 1), ("seed", 0)):
            if getattr(self, name) < least:
                raise Invalid(name, getattr(self, name), f"must be at least {least}")

    @property
    def total(self) -> int:
        return self.samples * self.epochs

    def between(self, start: int, stop: int) -> Indices:
        """Sample indices at stream positions [start, stop), shape (stop - start,)."""
        first, last = start // self.samples, max(start, stop - 1) // self.samples
        stream = np.concatenate([self._shuffled(epoch) for epoch in range(first, last + 1)])
        return stream[start - first * self.samples : stop - first * self.samples]

    def _shuffled(self, epoch: int) -> Indices:
        return np.random.default_rng([self.seed, epoch]).permutation(self.samples)


def shard(size: int, rank: int, world: int) -> slice:
    """A worker's contiguous part of a global batch; parts differ by at most one sample and cover the batch exactly."""
    return slice(size * rank // world, size * (rank + 1) // world)


def batches(order: Order, global_batch: int, start: int, rank: int, world: int) -> Iterator[Batch]:
    """The global batches from stream position `start` on; the last may be smaller."""
    if global_batch < 1:
        raise Invalid("global_batch", global_batch, "must be at least 1")
    for position in range(start, order.total, global_batch):
        indices = order.between(position, min(position + global_batch, order.total))
        yield Batch(all=indices, local=indices[shard(len(indices), rank, world)], position=position)
