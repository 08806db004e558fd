"""What the agent's threads tell each other: tasks and notice to be reported, orders that were answered."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from moorage.api.values import NodeReport, Notice, Order, Orders, Task, TaskPhase


@dataclass(frozen=True, slots=True)
class Answer:
    """The broker's latest word. `received`: seconds of the monotonic clock."""

    orders: tuple[Order, ...]
    revision: int
    received: float


class Board:
    """All under one lock; nobody waits while holding it."""

    def __init__(self, describe: Callable[[tuple[Task, ...], Notice | None, int | None], NodeReport]) -> None:
        self._describe = describe
        self._lock = threading.Condition()
        self._tasks: tuple[Task, ...] = ()
        self._notice: Notice | None = None
        self._seen: int | None = None
        self._answer: Answer | None = None
        #: Rises with what a report would say; and with what keepers should look at.
        self._said = 0
        self._news = 0
        self._confirmed: frozenset[str] = frozenset()

    # Of the reconciler.

    def publish(self, tasks: tuple[Task, ...], seen: int | None) -> None:
        """What is, and the revision of the orders that it has acted on already."""
        with self._lock:
            # That orders were seen can wait for the next report; what they changed cannot.
            self._seen = seen
            if tasks != self._tasks:
                self._tasks, self._said = tasks, self._said + 1
                self._lock.notify_all()

    def answer(self) -> Answer | None:
        """None: the broker was never heard."""
        with self._lock:
            return self._answer

    def confirmed(self) -> frozenset[str]:
        """Allocations whose end the broker has heard."""
        with self._lock:
            return self._confirmed

    def wait_news(self, known: int, timeout: float) -> int:
        """Return when orders or notice changed since `known`, or after `timeout` seconds; what is known now."""
        with self._lock:
            self._lock.wait_for(lambda: self._news != known, timeout)
            return self._news

    # Of the watchers.

    def set_notice(self, notice: Notice | None) -> None:
        with self._lock:
            if notice != self._notice:
                self._notice, self._said, self._news = notice, self._said + 1, self._news + 1
                self._lock.notify_all()

    @property
    def notice(self) -> Notice | None:
        with self._lock:
            return self._notice

    @property
    def tasks(self) -> tuple[Task, ...]:
        with self._lock:
            return self._tasks

    # Of the reporters.

    def report(self) -> tuple[NodeReport, int]:
        """What to say, and its number for `wait_said`."""
        with self._lock:
            return self._describe(self._tasks, self._notice, self._seen), self._said

    def wait_said(self, said: int, timeout: float) -> None:
        """Return when there is more to say than number `said`, or after `timeout` seconds."""
        with self._lock:
            self._lock.wait_for(lambda: self._said != said, timeout)

    def reported(self, report: NodeReport) -> None:
        """The broker heard this."""
        with self._lock:
            confirmed = frozenset(t.allocation for t in report.tasks if t.phase is TaskPhase.EXITED)
            if confirmed != self._confirmed:
                self._confirmed, self._news = confirmed, self._news + 1
                self._lock.notify_all()

    def accept(self, orders: Orders, asked: float) -> None:
        """An answer to a call made at `asked`. An older one that arrives late is dropped.

        A lower revision of a call that was made after the last answer came is newer all the same: the broker's
        database was restored.
        """
        with self._lock:
            last = self._answer
            if last is not None and orders.revision < last.revision and asked <= last.received:
                return
            self._answer = Answer(orders.orders, orders.revision, time.monotonic())
            if last is None or last.orders != orders.orders or last.revision != orders.revision:
                self._news += 1
                self._lock.notify_all()

    def wake(self) -> None:
        """Everybody looks up, for example to stop."""
        with self._lock:
            self._said, self._news = self._said + 1, self._news + 1
            self._lock.notify_all()
