"""What the recorder must remember of one lease between two journal rows."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Tracked:
    """Plain scalars only: it is stored as JSON beside the journal position."""

    lease: str
    #: Unix milliseconds; zero of the cost counter.
    submitted: int
    epoch: int = 0
    #: The lease's state as the journal tells it.
    state: str = "queued"
    #: Phase of the newest progress row. "": none yet.
    phase: str = ""
    #: Newest value of gpu/allocated, and its time in Unix milliseconds.
    gpus: int = 0
    gpus_at: int = 0
    #: Step (seconds since `submitted`) and dollars of the newest cost point; -1: none yet.
    cost_step: int = -1
    cost_usd: str = "0"
    interruptions: int = 0
    #: The description as it was last written.
    note: str = ""
    #: Set by the journal's ended row: what is left is the final account.
    ended: int | None = None
    outcome: str = ""
    reason: str = ""
    #: The final account was written.
    done: bool = False

    @property
    def active(self) -> bool:
        """Whether it may be costing money now."""
        return self.ended is None and self.epoch > 0

    def step_at(self, at: int) -> int:
        """Whole seconds since it was submitted, of a time in Unix milliseconds."""
        return max(0, (at - self.submitted) // 1000)
