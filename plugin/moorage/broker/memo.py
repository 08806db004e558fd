"""What the broker remembers of a lease beside core's `Lease`: its ledger, its head, what is not logged yet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from moorage.broker.ledger import Book


@dataclass(frozen=True, slots=True, kw_only=True)
class Memo:
    """Stored beside the lease. A field with an epoch speaks of that attempt only."""

    #: Hearing clock at which the lease is released because `gone_watcher` ended on purpose. None: not.
    release_at: float | None = None
    gone_watcher: str = ""
    #: Last heartbeat in phase training, and its epoch. None: never.
    trained_at: datetime | None = None
    trained_epoch: int = 0
    #: Whether training stopped since then for more than a checkpoint.
    paused: bool = False
    #: Address of the Ray head.
    head: str | None = None
    head_epoch: int = 0
    #: Newest epoch whose driver was started, and whose end was seen.
    driver_epoch: int = 0
    over_epoch: int = 0
    #: Raylets of `died_epoch` that ended by themselves.
    died: int = 0
    died_epoch: int = 0
    #: Narrowest level that held the gang at its last grant.
    level: str = ""

    def without_beat(self) -> Memo:
        """Without what every heartbeat changes: what is left must be stored before it is acknowledged."""
        return replace(self, trained_at=None, trained_epoch=0, paused=False)


@dataclass(frozen=True, slots=True)
class Unlogged:
    """Progress that no journal row tells yet."""

    at: datetime
    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A live lease's memo, revision and ledger."""

    memo: Memo = Memo()
    revision: int = 0
    book: Book = field(default_factory=Book)
    unlogged: Unlogged | None = None

    def with_unlogged(self, unlogged: Unlogged | None) -> Entry:
        return replace(self, unlogged=unlogged)
