"""What a training loop sees of the world: its part of each batch, the gang's mean, and one call per step."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from moorage.checkpoint import BadState, Store, pack, save_arrays, unpack
from moorage.core.invalid import Invalid
from moorage.core.job import Phase
from moorage.ray import data, tree
from moorage.ray.link import Link
from moorage.ray.words import Counters, GangLost, Seat, Stopped, Word

Metrics = Mapping[str, float] | Callable[[], Mapping[str, float]]
State = Callable[[], Any]

logger = logging.getLogger("moorage.ray")

POST_EVERY_S = 0.4
ASK_EVERY_S = 0.1
#: A hold that nobody ends (the controller is gone): go on training after so many seconds.
HOLD_LIMIT_S = 90.0


class Job:
    """One worker's view of the run. The training loop is called as ``train_loop(config, job)`` on every worker:

        def train_loop(config, job):
            params = job.restore() or fresh(config)
            for batch in job.batches(len(x), epochs=10, seed=0):
                loss, grads = forward_backward(params, x[batch.local], y[batch.local])  # means over the local part
                loss, grads = job.all_reduce((loss, grads), weight=batch.weight)        # means over the global batch
                update(params, grads)
                job.step(loss=loss, state=lambda: params)
            return {"loss": loss}          # rank 0's return value is the result: JSON, at most 64 KiB

    Every rank must make the same calls in the same order. The loop may be ended inside any call of `job` (a resize, a
    stop, a lost worker) and be started again elsewhere; it goes on after the last checkpoint's step.
    """

    def __init__(
        self,
        seat: Seat,
        link: Link,
        store: Store | None,
        *,
        earlier: Store | None = None,
        global_batch: int,
        samples_total: int | None = None,
        sample_s: float | None = None,
    ) -> None:
        self._seat, self._link, self._store, self._earlier = seat, link, store, earlier
        self._global_batch, self._samples_total, self._sample_s = global_batch, samples_total, sample_s
        self._done_word, self._word, self._asked_at = seat.word, seat.word, 0.0
        self._agreed = False
        self._collectives = 0
        self._batch: data.Batch | None = None
        self._batch_at: float | None = None
        self._steps = self._position = 0
        self._loss_sum, self._loss_count = 0.0, 0
        self._metrics: dict[str, float] = {}
        self._message = ""
        self._posted: tuple[Phase | None, float] = (None, 0.0)
        self._checkpoint: str | None = None

    # --- who and where

    @property
    def rank(self) -> int:
        """0 .. world_size - 1, in the order of the lease's allocations."""
        return self._seat.rank

    @property
    def world_size(self) -> int:
        return self._seat.size

    @property
    def local_rank(self) -> int:
        """Index among the workers of this node, in the order of its devices."""
        return self._seat.local_rank

    @property
    def local_world_size(self) -> int:
        return self._seat.local_size

    @property
    def devices(self) -> tuple[int, ...]:
        """The lease's GPUs on this node: what CUDA_VISIBLE_DEVICES is set to. Empty outside a lease."""
        return self._seat.visible

    @property
    def global_batch(self) -> int:
        """Samples of a step over all workers; the same at any world size."""
        return self._global_batch

    @property
    def steps(self) -> int:
        """Optimiser steps done, over all attempts and sizes."""
        return self._steps

    @property
    def samples(self) -> int:
        """Samples done: the data position."""
        return self._position

    @property
    def checkpoint(self) -> str | None:
        """URL of the newest checkpoint that this worker read or (rank 0) wrote."""
        return self._checkpoint

    # --- the loop

    def restore(self) -> Any:
        """The state that `step` was given last, and with it the data position; None: there is nothing to go on from.

        Arrays come back as they were, a `numpy.random.Generator` goes on where its stream was.
        """
        self._post(Phase.RESTORING)
        stores = [store for store in (self._store, self._earlier) if store is not None]
        found = next((there for there in (store.restore() for store in stores) if there is not None), None)
        self._require_same(-1 if found is None else found[0].step)
        if found is None:
            return None
        pointer, files = found
        self._steps, self._position = pointer.step, int(pointer.meta["position"])
        self._checkpoint = pointer.url
        return unpack(files)

    def batches(self, samples: int, *, epochs: int, seed: int) -> Iterator[data.Batch]:
        """The global batches that are left, each with this worker's part.

        The order depends on `seed` and the position only: not on the number of workers, nor on restarts.

        Args:
            samples: size of the data set.
            epochs: passes over it, each in another order.
            seed: not negative.
        """
        order = data.Order(samples=samples, epochs=epochs, seed=seed)
        self._samples_total = self._samples_total or order.total
        for batch in data.batches(order, self._global_batch, self._position, self.rank, self.world_size):
            self._batch, self._batch_at = batch, time.monotonic()
            yield batch

    def all_reduce(self, values: Any, *, weight: float) -> Any:
        """The mean of all ranks' `values` by `weight`: local means in, the global batch's mean out, on every rank.

        Made for CPUs and small models: it goes through one process on the head's node, a few milliseconds for up to
        about a megabyte, summed in rank order in float64. With PyTorch on GPUs use NCCL instead, and call only `step`.

        Args:
            values: arrays and floats in dicts, lists and tuples; the same shapes on every rank.
            weight: local samples (`Batch.weight`); 0 takes no part, whatever `values` holds.

        Raises:
            ValueError: shapes differ between ranks, or all weights are 0.
        """
        leaves, build = tree.flatten(values)
        self._wait_for_device()
        if self.world_size == 1:
            return build(tree.weighted_mean([(weight, leaves)]))
        means = self._collective(weight, leaves)
        return build(means)

    def step(
        self,
        *,
        loss: float | None = None,
        metrics: Metrics | None = None,
        state: State | None = None,
        samples: int | None = None,
    ) -> None:
        """Say that an optimiser step is done. Reports progress, and checkpoints, holds or stops when asked.

        Args:
            loss: of this step, over the global batch.
            metrics: more numbers, for example {"accuracy": 0.9}; a function is called only when they are sent.
            state: makes all that `restore` needs; called on rank 0, only when a checkpoint is due.
            samples: of the global batch, where it did not come from `batches`.
        """
        self._wait_for_device()
        self._advance(samples)
        if loss is not None and np.isfinite(loss):
            self._loss_sum, self._loss_count = self._loss_sum + float(loss), self._loss_count + 1
        word = self._agree()
        self._obey(word, state)
        self._post(Phase.TRAINING, metrics)

    def publish(self, name: str, arrays: Mapping[str, np.ndarray[Any, Any]]) -> str:
        """Write arrays (a model) as npz beside the checkpoints, once; its URL (on a disk: its path), on every rank.

        Raises:
            Invalid: the run has no storage.
        """
        if self._store is None:
            raise Invalid("storage", None, "give ElasticTrainer a storage to publish to")
        url = f"{self._store.url}/{name}"
        if self.rank == 0:
            save_arrays(url, arrays)
        return url.removeprefix("file://")

    def finish(self) -> None:
        """The loop came to its end; called by the trainer."""
        self._post(Phase.DONE)

    # --- inside: agreement

    def _collective(self, weight: float, leaves: list[tree.Array]) -> list[tree.Array]:
        self._collectives += 1
        means, self._word = self._link.reduce(self._seat.group, self.rank, self._collectives, weight, leaves)
        self._agreed = True
        return means

    def _agree(self) -> Word:
        """The command that every rank sees at this step; it came with the step's last collective, if there was one."""
        if self.world_size == 1:
            self._ask()
        elif not self._agreed:
            self._collective(1.0, [])
        self._agreed = False
        return self._word

    def _ask(self) -> None:
        now = time.monotonic()
        if now - self._asked_at >= ASK_EVERY_S:
            self._word, self._asked_at = self._link.word(self._seat.group), now

    def _require_same(self, step: int) -> None:
        """All ranks must start from the same step; where a store shows them different ones, the group starts again."""
        if self.world_size == 1:
            return
        mean = float(self._collective(1.0, [np.asarray(float(step))])[0])
        self._agreed = False
        if mean != step:
            raise GangLost(f"rank {self.rank} found the checkpoint of step {step}, others another")

    # --- inside: a step

    def _wait_for_device(self) -> None:
        """A fake GPU is busy for a stated time per local sample; the time that was really computed counts."""
        if self._sample_s and self._batch and self._batch_at is not None:
            left = self._batch_at + self._sample_s * self._batch.weight - time.monotonic()
            if left > 0:
                time.sleep(left)
        self._batch_at = None

    def _advance(self, samples: int | None) -> None:
        size = samples if samples is not None else self._batch.size if self._batch else None
        if size is None:
            raise Invalid("samples", None, "say how many samples the step had, or iterate over job.batches")
        self._batch = None
        self._steps, self._position = self._steps + 1, self._position + size

    def _obey(self, word: Word, state: State | None) -> None:
        done = self._done_word
        self._done_word = word
        if word.stop is not None:
            self._save(word, state)
            raise Stopped(word.stop)
        if word.hold > max(done.hold, word.release):
            self._save(word, state)
            self._hold(word.hold)
        elif word.save > done.save:
            self._save(word, state)

    def _hold(self, hold: int) -> None:
        self._link.holding(self._seat.group, self.rank, hold)
        until = time.monotonic() + HOLD_LIMIT_S
        while time.monotonic() < until:
            word = self._link.word(self._seat.group)
            if word.stop is not None:
                raise Stopped(word.stop)
            if word.release >= hold:
                return
            time.sleep(0.05)

    def _save(self, word: Word, state: State | None) -> None:
        if self.rank != 0:
            return
        if self._store is None or state is None:
            self._message = "no checkpoint: give step() a state and the trainer a storage"
            return
        self._post(Phase.CHECKPOINTING)
        started = time.monotonic()
        self._checkpoint = self._write(self._store, state) or self._checkpoint
        self._link.saved(self._seat.group, word.save, self._steps, time.monotonic() - started)

    def _write(self, store: Store, state: State) -> str | None:
        meta = {"position": self._position, "world_size": self.world_size, "global_batch": self._global_batch}
        try:
            pointer = store.save(self._steps, pack(state()), meta)
        except BadState:
            raise
        except Exception as error:  # noqa: BLE001 - a store that is away must not end the training; said, tried again.
            self._message = f"checkpoint of step {self._steps} failed: {type(error).__name__}: {error}"[:300]
            logger.warning("%s", self._message)
            return None
        self._message = ""
        return pointer.url

    def _post(self, phase: Phase, metrics: Metrics | None = None) -> None:
        at = time.monotonic()
        phase_before, posted_at = self._posted
        # A new phase is news at once.
        if self.rank != 0 or (phase is phase_before and at - posted_at < POST_EVERY_S):
            return
        self._posted = (phase, at)
        if metrics is not None:
            given = metrics() if callable(metrics) else metrics
            self._metrics = {name: float(value) for name, value in given.items() if np.isfinite(value)}
        self._link.post(
            Counters(
                group=self._seat.group,
                phase=phase,
                step=self._steps,
                samples_done=self._position,
                samples_total=self._samples_total,
                loss_sum=self._loss_sum,
                loss_count=self._loss_count,
                at=at,
                metrics=self._metrics,
                message=self._message,
            )
        )
