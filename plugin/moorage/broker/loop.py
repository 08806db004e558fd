"""The broker's own time: a tick each second, and `decide` when something changed or at its wake-up time."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from threading import Event, Thread

from sqlalchemy import delete
from sqlalchemy.exc import IntegrityError, SQLAlchemyError

from moorage.api.errors import Unavailable
from moorage.broker import orders, reports, schema
from moorage.broker.draft import Draft, Finished, finished, logged
from moorage.broker.keeper import Keeper
from moorage.broker.lease_verbs import stop
from moorage.broker.store import LeaseRow, stamp
from moorage.core.cost import activity
from moorage.core.decide import decide
from moorage.core.decision import Decision, Decisions, Lose
from moorage.core.lease import IllegalTransition, Lease
from moorage.core.state import State

log = logging.getLogger("moorage.broker")

TICK_S = 1.0
#: Orders that change at a time of their own are looked at this often.
LOOK_S = 0.2
#: Seconds between two decisions, and the longest without one.
SPACING_S = 0.05
LONGEST_S = 30.0
#: A lease whose decision was refused is left alone for this long.
SKIP_S = 30.0
#: Decisions are worked out beside the lock this often before they are worked out under it.
OPTIMISTIC = 2
#: First answers are kept this long.
ANSWERS_KEPT = timedelta(days=1)
#: A node's row is stored at least this often while it is heard; less than `Policy.node_stale_s`.
NODE_ROW_S = 5.0
SWEEP_EVERY = timedelta(hours=1)


@dataclass(slots=True)
class _Skipped:
    """Leases whose decisions were refused lately, each with the hearing clock until which it is left alone."""

    until: dict[str, float]

    def add(self, subject: str, heard: float) -> None:
        self.until[subject] = heard + SKIP_S

    def now(self, heard: float) -> set[str]:
        self.until = {subject: until for subject, until in self.until.items() if until > heard}
        return set(self.until)


class Loop:
    """Two threads. Without `start`, tests and simulations call `tick` and `decide` themselves."""

    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper
        self._stopped, self._stirred = Event(), Event()
        self._threads: list[Thread] = []
        self._skipped = _Skipped({})
        self._swept: datetime | None = None
        self._wake_at: datetime | None = None
        keeper.stir = self._stirred.set

    def start(self) -> None:
        for name, run in (("moorage-tick", self._ticking), ("moorage-decide", self._deciding)):
            thread = Thread(target=run, name=name, daemon=True)
            thread.start()
            self._threads.append(thread)
        self._stirred.set()

    def stop(self) -> None:
        self._stopped.set()
        self._stirred.set()
        for thread in self._threads:
            thread.join(timeout=10)
        self._threads = []

    def alive(self) -> bool:
        """Whether both threads run; False before `start` and after `stop`."""
        return bool(self._threads) and all(thread.is_alive() for thread in self._threads)

    # --- the tick

    def _ticking(self) -> None:
        monotonic, next_tick = self._keeper.clock.monotonic, self._keeper.clock.monotonic()
        while not self._stopped.wait(LOOK_S):
            if monotonic() >= next_tick:
                next_tick = monotonic() + TICK_S
                _guarded("tick", self.tick)
            _guarded("orders", self.look_at_orders)

    def tick(self) -> None:
        """Advance the hearing clock, release what was left, store the heartbeats of the last second."""
        keeper = self._keeper
        with keeper.lock:
            heard, at = keeper.hearing.next()
            draft = keeper.draft("broker")
            draft.state = draft.state.hearing(heard)
            for node in keeper.memory.beats:
                reports.take_again(draft, node)
            _release_left(draft, heard)
            _touch_changed_activity(draft)
            self._sweep(draft)
            done = finished(draft)
            _log_progress(done)
            _spare_fresh_nodes(done)
            topics = keeper.settle(done)
            keeper.memory.beats.clear()
            # Only what is stored was heard: a database that is away stops this clock too.
            keeper.hearing.set(heard, at)
        keeper.publish(topics)

    def _sweep(self, draft: Draft) -> None:
        if self._swept is None or draft.now - self._swept >= SWEEP_EVERY:
            self._swept = draft.now
            old = schema.answer.c.at < stamp(draft.now - ANSWERS_KEPT)
            draft.statements.append(delete(schema.answer).where(old))

    def look_at_orders(self) -> None:
        """Orders that time alone has changed."""
        keeper = self._keeper
        with keeper.lock:
            now = keeper.now()
            nodes = [n for n in keeper.memory.homes if any(at <= now for at in orders.due(keeper.memory, n))]
            topics = keeper.refresh_orders(nodes)
        keeper.publish(frozenset(topics))

    # --- decisions

    def _deciding(self) -> None:
        while not self._stopped.is_set():
            self._stirred.wait(self._sleep())
            self._stirred.clear()
            if self._stopped.is_set():
                return
            _guarded("decide", self.decide)
            self._stopped.wait(SPACING_S)

    def _sleep(self) -> float:
        if self._wake_at is None:
            return LONGEST_S
        seconds = (self._wake_at - self._keeper.now()).total_seconds()
        return min(LONGEST_S, max(0.0, seconds))

    def decide(self) -> bool:
        """One round. Returns whether anything changed."""
        for _ in range(OPTIMISTIC):
            state, version = self._look()
            decisions = self._decide(state)
            with self._keeper.lock:
                if self._keeper.memory.version == version:
                    return self._carry_out(decisions)
        with self._keeper.lock:
            return self._carry_out(self._decide(self._look()[0]))

    def _look(self) -> tuple[State, int]:
        """The state with every lease's spend as of now."""
        keeper = self._keeper
        with keeper.lock:
            memory, now = keeper.memory, keeper.now()
            spent = [
                replace(lease, spent_usd=memory.entries[lease.id].book.cost(now).total_usd)
                for lease in memory.state.leases.values()
                if memory.entries[lease.id].book.open
            ]
            memory.state = memory.state.with_leases(*spent) if spent else memory.state
            return memory.state, memory.version

    def _decide(self, state: State) -> Decisions:
        # The policy belongs to the same version as the state.
        return decide(state, self._keeper.memory.policy, self._keeper.now())

    def _carry_out(self, decisions: Decisions) -> bool:
        """Under the lock."""
        keeper = self._keeper
        self._wake_at = decisions.wake_at
        skip = self._skipped.now(keeper.memory.state.heard)
        due = [d for d in decisions.decisions if _subject(d) not in skip]
        if not due:
            return False
        version = keeper.memory.version
        try:
            topics = keeper.settle(self._applied(due))
        except IntegrityError:
            log.exception("the database refused decisions together: trying them one by one")
            topics = frozenset[str]().union(*(self._alone(decision) for decision in due))
        keeper.publish(topics)
        return keeper.memory.version != version

    def _applied(self, due: Iterable[Decision]) -> Finished:
        draft = self._keeper.draft("broker")
        for decision in due:
            if _subject(decision) not in self._skipped.until:
                self._apply(draft, decision)
        return finished(draft)

    def _apply(self, draft: Draft, decision: Decision) -> None:
        try:
            draft.apply(decision)
        except (IllegalTransition, KeyError) as error:
            self._refused(decision, error)

    def _alone(self, decision: Decision) -> frozenset[str]:
        try:
            return self._keeper.settle(self._applied([decision]))
        except IntegrityError as error:
            self._refused(decision, error)
            return frozenset()

    def _refused(self, decision: Decision, error: Exception) -> None:
        """Say it with the story, and leave the lease alone for a while: the loop goes on with the others."""
        subject, state = _subject(decision), self._keeper.memory.state
        log.error("refused: %s; %s; story: %s", decision, error, _story(state.leases.get(subject)))
        self._skipped.add(subject, state.heard)


def _guarded(what: str, run: Callable[[], object]) -> None:
    """A failed round is logged; the next one comes. A broker that may not write any more says so at each call."""
    try:
        run()
    except (Unavailable, SQLAlchemyError):
        log.exception("%s: nothing could be stored", what)
    except Exception:
        log.exception("%s failed", what)


def _subject(decision: Decision) -> str:
    return decision.node if isinstance(decision, Lose) else decision.lease


def _story(lease: Lease | None) -> str:
    if lease is None:
        return "no such lease"
    held = ", ".join(f"{a.id} {a.state} on {a.node}" for a in lease.allocations)
    return f"{lease.state}, attempt {lease.epoch}, {lease.reason!r}, {held or 'nothing held'}"


def _release_left(draft: Draft, heard: float) -> None:
    """Leases whose last watcher ended on purpose."""
    for lease_id, entry in draft.memory.entries.items():
        at = entry.memo.release_at
        if at is not None and heard >= at:
            stop(draft, draft.lease(lease_id), f"released: {entry.memo.gone_watcher} does not wait for it any more")
            draft.remember(lease_id, release_at=None, gone_watcher="")


def _touch_changed_activity(draft: Draft) -> None:
    """Silence alone can change what GPU time is; and heartbeats that no journal row tells yet are due."""
    for lease_id, entry in draft.memory.entries.items():
        said = {segment.activity for segment in entry.book.open.values()}
        lease = draft.state.leases[lease_id]
        if entry.unlogged is not None or (said and said != {activity(lease, draft.policy, draft.state.heard)}):
            draft.entries.setdefault(lease_id, entry)


def _spare_fresh_nodes(done: Finished) -> None:
    """Rows of nodes that were only heard are stored every few seconds: a restart may see them silent for so long."""
    stored, changed = done.draft.memory.stored, {node.id for _, node in done.nodes}
    for node in list(done.batch.nodes.values()):
        if node.id not in changed and (node.heard or 0) - stored.get(node.id, -NODE_ROW_S) < NODE_ROW_S:
            del done.batch.nodes[node.id]
        else:
            stored[node.id] = node.heard or 0


def _log_progress(done: Finished) -> None:
    for lease_id, entry in done.entries.items():
        lease = done.draft.state.leases.get(lease_id)
        if entry.unlogged is not None and lease is not None:
            fresh = logged(done, lease, entry)
            done.entries[lease_id] = fresh
            done.batch.leases[lease_id] = LeaseRow(lease, fresh.memo, fresh.revision)
