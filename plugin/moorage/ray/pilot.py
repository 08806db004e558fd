"""Runs in the training controller's process: two threads that look at the cluster and renew the lease."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from moorage.api.errors import Conflict, Denied, MoorageError, NotFound
from moorage.api.values import Renewal
from moorage.core.invalid import Invalid
from moorage.core.job import Progress
from moorage.ray.meter import Meter
from moorage.ray.steering import Limits, Steering, View
from moorage.ray.words import Look, Member, Overdue, Word

logger = logging.getLogger("moorage.ray")

TICK_S = 0.2
RENEW_S = 1.0
RENEW_WAITING_S = 0.5
#: Longest pause between tries while the broker is away.
RENEW_MAX_S = 5.0
#: `Denied` so often in a row means that the token is not ours any more.
DENIALS = 3


class Trainers(Protocol):
    """`api.protocols.TrainApi`, closable."""

    def renew(self, lease: str, epoch: int, progress: Progress) -> Renewal: ...

    def close(self) -> None: ...


class Cluster(Protocol):
    """What the pilot needs of Ray."""

    def look(self, word: Word | None) -> Look | None:
        """Give the gang the command and see its workers. None: it does not answer."""
        ...

    def begin(self, group: int, members: tuple[Member, ...]) -> None: ...

    def raylets(self) -> tuple[dict[str, Member], dict[str, float]]:
        """Allocations whose raylet is alive, and deadlines (Unix seconds) of those that drain."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """Which attempt this is, and how to reach the broker as it."""

    url: str
    token: str | None
    lease: str
    epoch: int

    def connect(self) -> Trainers:
        from moorage.client import Client

        # No retries inside a call: the pilot's own loop is the retry, with fresh progress each time.
        return Client(self.url, self.token, timeout=5, retry_for=0)


class Pilot:
    """Created in the driver, started in the controller (threads do not travel)."""

    def __init__(self, attempt: Attempt, cluster: Cluster, limits: Limits) -> None:
        self._attempt, self._cluster, self._limits = attempt, cluster, limits

    def start(self) -> None:
        """Start looking and renewing."""
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._end = threading.Event()
        self._steering = Steering(self._limits, time.time())
        self._meter = Meter()
        self._look: Look | None = None
        self._api = self._attempt.connect()
        self._denials = 0
        self._threads = [
            threading.Thread(target=self._watch, name="moorage-watch", daemon=True),
            threading.Thread(target=self._renew_all, name="moorage-renew", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    # --- the policy's side

    def start_group(self) -> tuple[Member, ...] | None:
        """Members to start the next group with; None after a short sleep: ask again.

        Raises:
            Overdue: the run is to stop, and there is no group to stop.
        """
        with self._lock:
            if self._steering.stopping is not None:
                raise Overdue(self._steering.stopping)
            members = self._steering.start(time.time())
        if members is None:
            # Ray's controller asks again at once: without a pause it would spin.
            time.sleep(TICK_S)
        return members

    def resize_group(self) -> tuple[Member, ...] | None:
        """Members to restart the running group with; None: go on.

        Raises:
            Overdue: the ranks were asked to stop and did not.
        """
        now = time.time()
        with self._lock:
            if self._steering.overdue(now):
                raise Overdue(str(self._steering.stopping))
            return self._steering.resize()

    def started(self, members: tuple[Member, ...]) -> None:
        """A group is about to start on `members`."""
        with self._lock:
            group = self._steering.started(members)
        self._cluster.begin(group, members)
        self._wake.set()

    def lost(self, ranks: Sequence[int], what: str) -> bool:
        """The group failed by no fault of the loop; whether to start another one."""
        logger.warning("the group is lost: %s", what)
        with self._lock:
            joined = self._look.joined if self._look else {}
            again = self._steering.lost([joined.get(rank, "") for rank in ranks], time.time())
        self._wake.set()
        return again

    def may_be_collateral(self) -> bool:
        """Whether a loop's exception may only echo that a node of the group is going or gone."""
        alive, draining = self._cluster.raylets()
        with self._lock:
            using = self._steering.using
        return any(allocation not in alive or allocation in draining for allocation in using)

    @property
    def stopping(self) -> str | None:
        with self._lock:
            return self._steering.stopping

    def finish(self) -> None:
        """Stop the threads, and say that the attempt is done (three tries: the agent's evidence says it too)."""
        self._end.set()
        self._wake.set()
        for thread in self._threads:
            thread.join(timeout=10)
        # The last checkpoint and step came after the last look.
        self._look = self._cluster.look(None) or self._look
        for _ in range(3):
            if self._renew(done=True):
                break
            time.sleep(RENEW_WAITING_S)
        self._api.close()

    # --- inside: the two threads

    def _watch(self) -> None:
        while not self._end.wait(TICK_S):
            try:
                self._tick()
            except Exception:
                # The thread must outlive a hiccup of Ray; what it needs is read anew each time.
                logger.exception("looking at the cluster failed; trying again")

    def _tick(self) -> None:
        alive, draining = self._cluster.raylets()
        with self._lock:
            waited = self._steering.waits
            word = self._steering.see(View(alive=alive, draining=draining, look=self._look), time.time())
        look = self._cluster.look(word)
        with self._lock:
            self._look = look or self._look
            self._steering.see(View(alive=alive, draining=draining, look=self._look), time.time())
            changed = self._steering.waits != waited
        if changed:
            self._wake.set()

    def _renew_all(self) -> None:
        pause = 0.0
        while not self._end.is_set():
            self._wake.wait(pause)
            self._wake.clear()
            if self._end.is_set():
                return
            answered = self._renew()
            pause = self._pause() if answered else min(max(RENEW_WAITING_S, pause * 2), RENEW_MAX_S)

    def _pause(self) -> float:
        with self._lock:
            return RENEW_WAITING_S if self._steering.waits else RENEW_S

    def _renew(self, *, done: bool = False) -> bool:
        """One heartbeat; whether the broker answered."""
        with self._lock:
            progress = self._meter.progress(self._look, self._steering, done=done)
        try:
            renewal = self._api.renew(self._attempt.lease, self._attempt.epoch, progress)
        except (MoorageError, Invalid) as error:
            return self._refused(error)
        self._denials = 0
        with self._lock:
            self._steering.answer(renewal, time.time())
        return True

    def _refused(self, error: Exception) -> bool:
        self._denials = self._denials + 1 if isinstance(error, Denied) else 0
        if isinstance(error, Conflict | NotFound) or self._denials >= DENIALS:
            logger.warning("this attempt is over: %s", error)
            with self._lock:
                self._steering.stop(f"this attempt is over: {error}", time.time())
            return True
        logger.warning("not renewed, training goes on: %s", error)
        return False

    def __getstate__(self) -> dict[str, Any]:
        return {"_attempt": self._attempt, "_cluster": self._cluster, "_limits": self._limits}


_current: list[Pilot] = []


def set_current(pilot: Pilot) -> None:
    """This process's pilot: Ray copies each object that it is given, so its failure policy finds the pilot here."""
    _current[:] = [pilot]


def current() -> Pilot | None:
    """The pilot that runs in this process."""
    return _current[0] if _current else None
