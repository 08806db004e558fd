"""When a group starts, holds and is restarted with which allocations. Values in, values out: no Ray, clock or thread.

The broker's answer is absolute: the allocations to hold. Steering compares it with what the group uses and with what is
alive, asks the workers to hold at a step boundary when all that is new is ready (or what goes must be left), and then
names the allocations of the next group. `now` is Unix seconds throughout.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from moorage.api.values import Held, Renewal
from moorage.core.job import Phase
from moorage.core.lease import Why
from moorage.ray.words import Look, Member, Word


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Seconds, and counts, that bound every wait and retry."""

    #: Fewest workers of a group.
    min_workers: int = 1
    #: Hold so long before a deadline; the last checkpoint's time is added.
    margin_s: float = 3.0
    #: A hold that the workers do not acknowledge, or that leads nowhere, is taken back.
    hold_s: float = 30.0
    #: Pause before the next hold after one was taken back.
    again_s: float = 10.0
    #: Wait so long for all new allocations, then go with those that are there.
    gather_s: float = 60.0
    #: The first group waits so long for all of its allocations.
    first_s: float = 20.0
    #: A raylet whose worker died is not used for so long, unless Ray says before that it is dead.
    doubt_s: float = 10.0
    #: Without any answer from the broker, start with what is alive.
    unanswered_s: float = 5.0
    #: Ranks must stop within this, else the run is ended without them.
    stop_s: float = 25.0
    #: Groups lost in a row without a step of progress.
    strikes: int = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """The lease's own Ray cluster, now."""

    #: Allocations whose raylet is alive, as members; draining ones too.
    alive: Mapping[str, Member]
    #: Draining allocation -> its deadline.
    draining: Mapping[str, float]
    look: Look | None


class Steering:
    """One attempt's. Callers serialise the calls."""

    def __init__(self, limits: Limits, now: float) -> None:
        self._limits = limits
        self._began = now
        self._answer: Renewal | None = None
        self._answer_at = now
        self._revised_at = now
        self._view = View(alive={}, draining={}, look=None)
        self._word = Word()
        self._group = 0
        self._using: tuple[Member, ...] = ()
        self._leaving: tuple[str, ...] = ()
        self._waiting_since: float | None = None
        self._going: tuple[Member, ...] | None = None
        self._hold_since = 0.0
        self._not_before = 0.0
        self._noticed: frozenset[str] = frozenset()
        self._acted = 0
        self._lost: dict[str, float] = {}
        self._strikes, self._strike_step = 0, -1
        self._stop_at: float | None = None
        # Between the decision to restart the group and its start, nothing may release the ranks that hold.
        self._committed = False
        # The group is lost, though the gang still has its seats.
        self._gone = False
        self._after_loss = False
        self._trained = False

    # --- what happened

    def answer(self, renewal: Renewal, now: float) -> None:
        """The broker's newest answer."""
        if self._answer is None or renewal.target_revision != self._answer.target_revision:
            self._revised_at = now
        self._answer, self._answer_at = renewal, now
        if renewal.stop is not None:
            self.stop(renewal.stop, now)

    def stop(self, reason: str, now: float) -> None:
        """End the run: the broker says so, or another attempt has taken over. The first reason stays."""
        if self._word.stop is None:
            self._word = replace(self._word, stop=reason)
            self._stop_at = now

    def see(self, view: View, now: float) -> Word:
        """Look at cluster and workers; the command for the workers."""
        self._view = view
        self._lost = {a: at for a, at in self._lost.items() if a in view.alive and now < at + self._limits.doubt_s}
        if self.running:
            self._leaving = ()
            self._note_revision()
        if self.trains:
            self._trained = True
            if self._word.stop is None and not self._committed and not self._finished():
                self._steer(now)
        return self._word

    def started(self, members: tuple[Member, ...]) -> int:
        """The next group is being started on `members`; its number."""
        self._leaving = tuple(m.allocation for m in self._using if m not in members)
        self._group += 1
        self._using, self._going, self._waiting_since = members, None, None
        self._committed = False
        self._after_loss, self._gone = self._gone, False
        self._word = replace(self._word, release=self._word.hold)
        return self._group

    def lost(self, allocations: Iterable[str], now: float) -> bool:
        """The group is lost; `allocations` had the workers that died. Whether another may be started."""
        step = self._step()
        self._strikes = self._strikes + 1 if step is None or step <= self._strike_step else 1
        self._strike_step = max(self._strike_step, step if step is not None else -1)
        self._lost |= {allocation: now for allocation in allocations if allocation}
        self._gone, self._committed = True, False
        self._cancel(now)
        return self._strikes <= self._limits.strikes

    # --- what to do

    def start(self, now: float) -> tuple[Member, ...] | None:
        """With no group running: the members to start the next one with. None: wait."""
        if self._waiting_since is None:
            self._waiting_since = now
        wanted = self._wanted(now)
        usable = tuple(m for m in wanted if self._usable(m.allocation))
        if wanted and len(usable) == len(wanted):
            return usable
        if any(m.allocation in self._lost for m in wanted):
            return None
        patience = 0.0 if self._group else self._limits.first_s
        if now - self._waiting_since >= patience and _workers(usable) >= self._limits.min_workers:
            return usable
        return None

    def resize(self) -> tuple[Member, ...] | None:
        """With a group running: the members to restart it with, once every rank holds. None: go on."""
        if self._going and self._held():
            self._committed = True
            return self._going
        return None

    def overdue(self, now: float) -> bool:
        """Whether the ranks were asked to stop and did not within the limit."""
        return self._stop_at is not None and now >= self._stop_at + self._limits.stop_s

    # --- what to say

    @property
    def stopping(self) -> str | None:
        """Why the run is to end. None: it is not."""
        return self._word.stop

    @property
    def group(self) -> int:
        return self._group

    @property
    def using(self) -> tuple[str, ...]:
        """Allocations that are used now; those of the group before too, until the new one runs without them."""
        return (*(member.allocation for member in self._using), *self._leaving)

    @property
    def workers(self) -> int:
        """Workers that train now."""
        return _workers(self._using) if self.running else 0

    @property
    def revision(self) -> int:
        """Newest target that is carried out."""
        return self._acted

    @property
    def running(self) -> bool:
        """Whether every worker of the newest group is there."""
        look = self._view.look
        return not self._gone and self._group > 0 and look is not None and look.group == self._group and look.full

    @property
    def trains(self) -> bool:
        """Whether the newest group has done a step."""
        counters = self._view.look.counters if self._view.look else None
        done = counters is not None and counters.group == self._group and counters.phase is not Phase.RESTORING
        return self.running and done

    @property
    def waits(self) -> bool:
        """Whether something is about to change: then the broker is asked more often."""
        return not self.trains or self._going is not None or self._changed() or bool(self._doomed())

    @property
    def phase(self) -> Phase:
        """What the attempt does."""
        if self._word.stop is not None:
            return Phase.CHECKPOINTING
        if self._going is not None:
            return Phase.DRAINING if self._noticed_now() else Phase.RESIZING
        counters = self._view.look.counters if self._view.look and self.running else None
        if counters is not None and (self.trains or not self._trained):
            return counters.phase
        if not self._trained:
            return Phase.STARTING
        return Phase.RESTORING if self._gone or self._after_loss else Phase.RESIZING

    # --- inside

    def _steer(self, now: float) -> None:
        self._notice()
        if self._going is not None:
            self._go_on_holding(now)
        elif now >= self._not_before:
            going = self._destination(now)
            if going is not None:
                self._going, self._hold_since = going, now
                self._word = replace(self._word, hold=self._word.hold + 1)

    def _notice(self) -> None:
        """A checkpoint at once for each allocation in use that turns out to be going."""
        going = self._noticed_now()
        if going - self._noticed:
            self._word = replace(self._word, save=self._word.save + 1)
        self._noticed |= going

    def _go_on_holding(self, now: float) -> None:
        """The destination may change under a hold; without one, or in the end, the ranks are released."""
        going = self._destination(now)
        if going is None or now >= self._hold_since + self._limits.hold_s:
            self._cancel(now)
        else:
            self._going = going

    def _cancel(self, now: float) -> None:
        if self._going is not None:
            self._not_before = now + self._limits.again_s
        self._going = None
        self._word = replace(self._word, release=self._word.hold)

    def _destination(self, now: float) -> tuple[Member, ...] | None:
        """Where the group should go now. Empty: hold, though nothing is there yet. None: stay."""
        hold = _members(self._answer)
        if self._changed() and self._ready():
            return hold
        survivors = tuple(m for m in hold if self._usable(m.allocation))
        if self._doomed() and now >= self._deadline() - self._limits.margin_s - self._save_s():
            return survivors if _workers(survivors) >= self._limits.min_workers else ()
        gathered = self._changed() and now >= self._revised_at + self._limits.gather_s
        if gathered and survivors != self._using and _workers(survivors) >= _workers(self._using):
            return survivors
        return None

    def _changed(self) -> bool:
        hold = _members(self._answer)
        return bool(hold) and _shape(hold) != _shape(self._using)

    def _ready(self) -> bool:
        held = self._answer.hold if self._answer else ()
        known = {member.allocation for member in self._using}
        return all((h.ready or h.allocation in known) and self._usable(h.allocation) for h in held)

    def _usable(self, allocation: str) -> bool:
        view = self._view
        return allocation in view.alive and allocation not in view.draining and allocation not in self._lost

    def _doomed(self) -> frozenset[str]:
        """Allocations in use that go: not in the answer, or draining."""
        hold = {member.allocation for member in _members(self._answer)}
        return frozenset(
            m.allocation
            for m in self._using
            if (hold and m.allocation not in hold) or m.allocation in self._view.draining
        )

    def _noticed_now(self) -> frozenset[str]:
        """Those of `_doomed` that are taken from us, not given back by choice."""
        chosen = self._answer is not None and self._answer.why in (Why.GROW, Why.SHRINK)
        return self._doomed() & frozenset(self._view.draining) if chosen else self._doomed()

    def _finished(self) -> bool:
        counters = self._view.look.counters if self._view.look else None
        return counters is not None and counters.phase is Phase.DONE

    def _deadline(self) -> float:
        hold = {member.allocation for member in _members(self._answer)}
        ends = [self._view.draining[a] for a in self._doomed() if a in self._view.draining]
        if self._answer and self._answer.by and self._doomed() - hold:
            ends.append(self._answer.by.timestamp())
        return min(ends, default=float("inf"))

    def _wanted(self, now: float) -> tuple[Member, ...]:
        if self._answer is not None:
            return _members(self._answer)
        if now < self._began + self._limits.unanswered_s:
            return ()
        return tuple(sorted(self._view.alive.values(), key=lambda m: _number(m.allocation)))

    def _note_revision(self) -> None:
        if self._answer is not None and not self._changed():
            self._acted = max(self._acted, self._answer.target_revision)

    def _held(self) -> bool:
        look = self._view.look
        return look is not None and look.group == self._group and look.held >= self._word.hold

    def _step(self) -> int | None:
        look = self._view.look
        return look.counters.step if look is not None and look.counters is not None else None

    def _save_s(self) -> float:
        return self._view.look.save_s if self._view.look else 0.0


def _members(answer: Renewal | None) -> tuple[Member, ...]:
    return tuple(_member(held) for held in answer.hold if held.workers > 0) if answer else ()


def _member(held: Held) -> Member:
    return Member(allocation=held.allocation, node=held.node, workers=held.workers, gpus=held.gpus)


def _shape(members: tuple[Member, ...]) -> dict[str, int]:
    return {member.allocation: member.workers for member in members}


def _workers(members: tuple[Member, ...]) -> int:
    return sum(member.workers for member in members)


def _number(allocation: str) -> tuple[int, str]:
    """Allocations are ``<lease>.<n>``: by n."""
    tail = allocation.rpartition(".")[2]
    return (int(tail) if tail.isdecimal() else 0, allocation)
