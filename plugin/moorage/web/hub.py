"""Wakes requests that wait for a change: from the broker's threads into the event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Callable

from moorage.api.errors import Unavailable
from moorage.api.protocols import Changes

#: Topics whose last change is remembered; a forgotten one wakes its waiter once for nothing.
REMEMBERED = 8192
#: Requests that may wait at once.
MAX_WAITING = 20_000


class Hub:
    """Numbers the changes, so that one between looking and waiting is not missed.

    ::

        mark = hub.mark()
        answer = look()                       # a change from here on ...
        await hub.wait(topic, mark, 30.0)     # ... ends the wait at once
    """

    def __init__(self, changes: Changes | None, remembered: int = REMEMBERED, max_waiting: int = MAX_WAITING) -> None:
        self._changes = changes
        self._remembered = remembered
        self._max_waiting = max_waiting
        self._count = 0
        self._changed: OrderedDict[str, int] = OrderedDict()
        self._forgotten = 0
        self._waiting: dict[str, set[asyncio.Future[None]]] = {}
        self._waiters = 0
        self._stop: Callable[[], None] | None = None
        #: Set once the server ends: nobody waits any more.
        self.closed = False

    @property
    def listens(self) -> bool:
        """Whether there is anything to wait for."""
        return self._changes is not None

    def mark(self) -> int:
        """Where we are now. The first call, from the event loop, begins to listen."""
        if self._stop is None and self._changes is not None:
            loop = asyncio.get_running_loop()
            self._stop = self._changes.listen(lambda topics: self._heard(loop, topics))
        return self._count

    async def wait(self, topic: str, mark: int, seconds: float) -> bool:
        """Return at a change of `topic` after `mark` (True), or after `seconds` (False).

        Raises:
            Unavailable: too many requests wait already.
        """
        if self._changed.get(topic, self._forgotten) > mark or self.closed:
            return True
        if self._waiters >= self._max_waiting:
            raise Unavailable(f"{self._waiters} requests wait for changes already; try again later")
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(topic, set()).add(future)
        self._waiters += 1
        try:
            await asyncio.wait_for(future, seconds)
        except TimeoutError:
            return False
        finally:
            self._leave(topic, future)
        return True

    def close(self) -> None:
        """Stop listening, and end every wait, now and from now on."""
        self.closed = True
        if self._stop is not None:
            self._stop()
            self._stop = None
        for topic in tuple(self._waiting):
            self._wake(topic)

    def _heard(self, loop: asyncio.AbstractEventLoop, topics: frozenset[str]) -> None:
        # The loop may close while a last change comes: then nobody waits any more.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(self._note, topics)

    def _note(self, topics: frozenset[str]) -> None:
        self._count += 1
        for topic in topics:
            self._changed[topic] = self._count
            self._changed.move_to_end(topic)
            self._wake(topic)
        while len(self._changed) > self._remembered:
            self._forgotten = self._changed.popitem(last=False)[1]

    def _wake(self, topic: str) -> None:
        for future in self._waiting.get(topic, ()):
            if not future.done():
                future.set_result(None)

    def _leave(self, topic: str, future: asyncio.Future[None]) -> None:
        self._waiters -= 1
        waiting = self._waiting[topic]
        waiting.discard(future)
        if not waiting:
            del self._waiting[topic]
