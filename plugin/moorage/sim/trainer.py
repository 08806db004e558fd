"""One attempt after another of a simulated job: it starts, restores, trains, resizes, checkpoints and ends."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from moorage.core.job import JobKind, Phase, Progress
from moorage.core.lease import AllocationRole, AllocationState, Lease, LeaseState
from moorage.sim.work import Work

#: Samples of one optimiser step.
BATCH = 10


@dataclass(slots=True)
class Trainer:
    """What the job itself knows. Changed in place by `tick`; the engine owns one for each lease."""

    work: Work
    random: Random
    epoch: int = 0
    done: float = 0.0
    saved: float = 0.0
    saved_at: float = 0.0
    #: Until when it does not train, and what it calls that.
    pause_until: float = 0.0
    pause: Phase = Phase.STARTING
    using: tuple[str, ...] = ()
    revision: int = 0
    #: Work done again after interruptions, in samples.
    repeated: float = 0.0
    phase: Phase = field(default=Phase.STARTING)

    @property
    def finished(self) -> bool:
        return self.done >= self.work.samples

    def tick(self, lease: Lease, alive: frozenset[str], now: float, seconds: float, leaving: frozenset[str]) -> bool:
        """Live through `seconds` until `now`. False: nobody is there to speak (no head, or not started yet)."""
        if not _up(lease, alive):
            return False
        if lease.epoch != self.epoch:
            self._begin(lease, now)
        self._follow(lease, alive, now)
        if lease.state is LeaseState.STOPPING or any(a.node in leaving for a in lease.live if a.id in self.using):
            self._save(now)
        self._train(lease, alive, now, seconds)
        return True

    def progress(self, lease: Lease) -> Progress | None:
        """Its heartbeat; a process says nothing."""
        if lease.job is None or lease.job.kind is not JobKind.RAY:
            return None
        workers = sum(a.workers for a in lease.live if a.id in self.using)
        return Progress(
            phase=self.phase,
            step=int(self.done) // BATCH,
            samples_done=int(self.done),
            samples_total=self.work.samples,
            loss=self._noisy(self.work.loss(self.done)),
            throughput=self._noisy(self.work.speed(workers)) if workers else None,
            workers=workers,
            checkpoint_step=int(self.saved) // BATCH,
            using=self.using,
            target_revision=self.revision,
        )

    def _noisy(self, value: float) -> float:
        return value * (1 + self.work.noise * self.random.gauss(0, 1))

    def _begin(self, lease: Lease, now: float) -> None:
        """A new attempt goes on from the newest checkpoint; a process has none."""
        if lease.job is None or lease.job.kind is not JobKind.RAY:
            self.saved = 0.0
        self.epoch = lease.epoch
        self.repeated += self.done - self.saved
        self.done = self.saved
        self.using, self.revision = _ready(lease), lease.target.revision
        self.pause_until, self.pause, self.saved_at = now + self.work.start_s, Phase.RESTORING, now

    def _follow(self, lease: Lease, alive: frozenset[str], now: float) -> None:
        """Act on a new target once all of it is up; fall back to the checkpoint when a worker died under it."""
        died = [a for a in lease.allocations if a.id in self.using and (not a.live or a.node not in alive)]
        if died:
            self.repeated += self.done - self.saved
            self.done = self.saved
            self.using = tuple(id_ for id_ in _ready(lease) if id_ not in {a.id for a in died})
            self.pause_until, self.pause = now + self.work.resize_s, Phase.RESTORING
        wanted = {a.id for a in lease.live if a.workers and a.id in lease.target.hold and a.node in alive}
        if lease.target.revision > self.revision and wanted <= set(_ready(lease)):
            self._save(now)
            self.using, self.revision = _ready(lease), lease.target.revision
            self.pause_until, self.pause = now + self.work.resize_s, Phase.RESIZING

    def _save(self, now: float) -> None:
        self.saved, self.saved_at = max(self.saved, self.done), now

    def _train(self, lease: Lease, alive: frozenset[str], now: float, seconds: float) -> None:
        workers = sum(a.workers for a in lease.live if a.id in self.using and a.node in alive)
        if now < self.pause_until or workers < lease.request.workers[0]:
            self.phase = self.pause
            return
        self.phase = Phase.TRAINING
        self.done = min(self.done + self.work.speed(workers) * seconds, float(self.work.samples))
        if now - self.saved_at >= self.work.checkpoint_s:
            self._save(now)


def _ready(lease: Lease) -> tuple[str, ...]:
    """Allocations with workers that are up and are to be held."""
    return tuple(
        a.id for a in lease.live if a.workers and a.state is AllocationState.HELD and a.id in lease.target.hold
    )


def _up(lease: Lease, alive: frozenset[str]) -> bool:
    """Whether the head or process of the attempt is there, with what it needs to start."""
    mine = [a for a in lease.live if a.epoch == lease.epoch]
    speakers = [a for a in mine if a.role is not AllocationRole.WORKER]
    if not speakers or any(a.node not in alive or a.state is AllocationState.RESERVED for a in speakers):
        return False
    return lease.state is not LeaseState.GRANTED or all(a.state is AllocationState.HELD for a in mine)


def fresh(work: Work, seed: int, lease_id: str) -> Trainer:
    """A trainer with its own stream of random numbers, whatever else is simulated."""
    return Trainer(work=work, random=Random(f"{seed}/{lease_id}"))  # noqa: S311 - noise, not a secret
