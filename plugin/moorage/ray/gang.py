"""The meeting place of a group's workers: seats, the CPU all-reduce, and commands that reach every rank at one step.

Runs as one async Ray actor on the head's node; nothing here knows Ray. Commands travel with the answers of collectives:
a round's answer is made once, so all ranks of a round see the same `Word`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from moorage.ray.tree import Array, weighted_mean
from moorage.ray.words import Counters, Ending, Joiner, Look, Member, Refusal, Seat, Word

Answer = tuple[list[Array], Word]


@dataclass(slots=True)
class Round:
    """One collective: filled rank by rank, answered when the last one is there."""

    parts: dict[int, tuple[float, Sequence[Array]]] = field(default_factory=dict)
    done: asyncio.Event = field(default_factory=asyncio.Event)
    answer: Answer | None = None
    error: ValueError | None = None
    taken: int = 0


class Gang:
    """One per attempt. Groups are numbered by the controller; calls of another group than the current one are refused.

    Args:
        checkpoint_every_s: seconds between periodic checkpoints.
        patience_s: seconds that a rank waits for the others before it gives up.
    """

    def __init__(self, checkpoint_every_s: float, patience_s: float = 600.0) -> None:
        self._every, self._patience = checkpoint_every_s, patience_s
        self._word = Word()
        self._own_saves = 0
        self._ending = Ending()
        self._clear(0, (), 0)

    def _clear(self, group: int, members: tuple[Member, ...], size: int) -> None:
        self._group, self._members, self._size = group, members, size
        self._joiners: dict[int, Joiner] = {}
        self._all_joined = asyncio.Event()
        self._rounds: dict[int, Round] = {}
        self._held: dict[int, int] = {}
        self._saved, self._save_s = 0, 0.0
        self._checkpoint_step: int | None = None
        self._saved_at = time.monotonic()
        self._counters: Counters | None = None

    # --- the controller's side

    async def begin(self, group: int, members: tuple[Member, ...], size: int) -> None:
        """A new group of `size` workers; whoever still waits in an older one is sent away."""
        for round_ in self._rounds.values():
            round_.done.set()
        self._all_joined.set()
        self._clear(group, members, size)

    async def look(self, word: Word | None = None) -> Look:
        """Give the command (None: leave it) and see what the workers do."""
        if word is not None:
            self._word = word
        return Look(
            group=self._group,
            size=self._size,
            joined={rank: joiner.allocation for rank, joiner in self._joiners.items()},
            held=min((self._held.get(rank, 0) for rank in range(self._size)), default=0),
            saved=self._saved,
            checkpoint_step=self._checkpoint_step,
            save_s=self._save_s,
            counters=self._counters,
        )

    async def ending(self) -> Ending:
        """How the run ended; for the driver, afterwards."""
        return replace(self._ending, stopped=self._word.stop)

    # --- the workers' side

    async def join(self, joiner: Joiner) -> Seat:
        """Wait for all workers of the group and take a seat: ranks follow the members' order, then GPU numbers."""
        group = self._group
        if joiner.ray_size != self._size:
            raise Refusal(f"this worker belongs to a group of {joiner.ray_size}, the gang's has {self._size}")
        self._joiners[joiner.ray_rank] = joiner
        if len(self._joiners) == self._size:
            self._saved_at = time.monotonic()
            self._all_joined.set()
        await self._wait(self._all_joined, "workers to start")
        self._check(group)
        return self._seat(joiner)

    async def reduce(self, group: int, rank: int, number: int, weight: float, arrays: Sequence[Array]) -> Answer:
        """Collective `number` of the group: the mean by weight and the command, the same for every rank."""
        self._check(group)
        round_ = self._rounds.setdefault(number, Round())
        round_.parts[rank] = (weight, arrays)
        if len(round_.parts) == self._size:
            self._finish(round_)
        await self._wait(round_.done, f"all ranks in collective {number}")
        self._check(group)
        return self._take(number, round_)

    async def word(self, group: int) -> Word:
        """The command now: for a rank that holds, or has nobody to agree with."""
        self._check(group)
        return self._with_periodic()

    async def post(self, counters: Counters) -> None:
        """Rank 0's progress."""
        if counters.group == self._group:
            self._counters = counters

    async def saved(self, group: int, save: int, step: int, seconds: float) -> None:
        """Rank 0 has written the checkpoint of `step`, as all saves up to `save` asked."""
        if group == self._group:
            self._saved, self._checkpoint_step, self._save_s = save, step, seconds
            self._saved_at = time.monotonic()

    async def holding(self, group: int, rank: int, hold: int) -> None:
        """A rank waits in `hold`; rank 0's checkpoint is written."""
        if group == self._group:
            self._held[rank] = hold

    async def conclude(self, group: int, result: str, checkpoint: str | None) -> None:
        """Rank 0's loop has ended with this result (JSON)."""
        self._check(group)
        self._ending = replace(self._ending, result=result, checkpoint=checkpoint)

    # --- inside

    def _check(self, group: int) -> None:
        if group != self._group:
            raise Refusal(f"group {group} is over, the gang is at {self._group}")

    async def _wait(self, event: asyncio.Event, what: str) -> None:
        try:
            await asyncio.wait_for(event.wait(), self._patience)
        except TimeoutError as error:
            raise Refusal(f"waited {self._patience:.0f} s for {what}") from error

    def _finish(self, round_: Round) -> None:
        try:
            means = weighted_mean([round_.parts[rank] for rank in range(self._size)])
            round_.answer = (means, self._with_periodic())
        except ValueError as error:
            round_.error = error
        round_.parts.clear()
        round_.done.set()

    def _take(self, number: int, round_: Round) -> Answer:
        round_.taken += 1
        if round_.taken == self._size:
            del self._rounds[number]
        if round_.error is not None:
            raise round_.error
        if round_.answer is None:
            raise Refusal("the group was replaced during a collective")
        return round_.answer

    def _with_periodic(self) -> Word:
        """The controller's command and our own periodic saves: both only ever rise, so their sum does."""
        if time.monotonic() - self._saved_at >= self._every:
            self._own_saves += 1
            self._saved_at = time.monotonic()
        return replace(self._word, save=self._word.save + self._own_saves)

    def _seat(self, joiner: Joiner) -> Seat:
        order = sorted(self._joiners.values(), key=self._place)
        here = [other for other in order if self._node(other) == self._node(joiner)]
        return Seat(
            group=self._group,
            rank=order.index(joiner),
            size=self._size,
            local_rank=here.index(joiner),
            local_size=len(here),
            visible=self._visible(self._node(joiner)),
            word=replace(self._word, save=self._word.save + self._own_saves, stop=None),
        )

    def _place(self, joiner: Joiner) -> tuple[int, tuple[int, ...], int]:
        names = [member.allocation for member in self._members]
        at = names.index(joiner.allocation) if joiner.allocation in names else len(names)
        return at, joiner.gpus, joiner.ray_rank

    def _node(self, joiner: Joiner) -> str:
        return next((m.node for m in self._members if m.allocation == joiner.allocation), joiner.host)

    def _visible(self, node: str) -> tuple[int, ...]:
        return tuple(sorted({gpu for member in self._members if member.node == node for gpu in member.gpus}))
