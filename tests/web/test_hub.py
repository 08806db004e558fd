"""The hub: no change is missed, none holds a thread, everything is bounded."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

from moorage.api.errors import Unavailable
from moorage.web.hub import Hub


class Source:
    """Changes, told from another thread."""

    def __init__(self) -> None:
        self.callbacks: list[Callable[[frozenset[str]], None]] = []

    def listen(self, callback: Callable[[frozenset[str]], None]) -> Callable[[], None]:
        self.callbacks.append(callback)
        return lambda: self.callbacks.remove(callback)

    def tell(self, *topics: str) -> None:
        def run() -> None:
            for callback in self.callbacks:
                callback(frozenset(topics))

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()


async def until(true: Callable[[], bool]) -> None:
    for _ in range(5000):
        if true():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it did not come")


def test_a_change_wakes_its_topic_only() -> None:
    async def run() -> None:
        source = Source()
        hub = Hub(source)
        mark = hub.mark()
        mine = asyncio.create_task(hub.wait("a", mark, 5))
        other = asyncio.create_task(hub.wait("b", mark, 0.2))
        await asyncio.sleep(0)
        source.tell("a")
        assert await mine is True
        assert await other is False

    asyncio.run(run())


def test_a_change_between_looking_and_waiting_is_not_missed() -> None:
    async def run() -> None:
        source = Source()
        hub = Hub(source)
        mark = hub.mark()
        source.tell("a")
        await until(lambda: hub.mark() > mark)
        assert await hub.wait("a", mark, 5) is True
        assert await hub.wait("a", hub.mark(), 0.01) is False

    asyncio.run(run())


def test_a_forgotten_topic_wakes_rather_than_sleeps() -> None:
    async def run() -> None:
        source = Source()
        hub = Hub(source, remembered=2)
        mark = hub.mark()
        for topic in "abc":
            source.tell(topic)
        await until(lambda: hub.mark() == mark + 3)
        assert await hub.wait("a", mark, 5) is True

    asyncio.run(run())


def test_waiters_are_bounded_and_leave_nothing_behind() -> None:
    async def run() -> None:
        hub = Hub(Source(), max_waiting=1)
        first = asyncio.create_task(hub.wait("a", hub.mark(), 5))
        await asyncio.sleep(0)
        with pytest.raises(Unavailable):
            await hub.wait("a", hub.mark(), 1)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        assert await hub.wait("a", hub.mark(), 0.01) is False
        assert hub._waiting == {}

    asyncio.run(run())


def test_closing_ends_every_wait_and_listens_no_more() -> None:
    async def run() -> None:
        source = Source()
        hub = Hub(source)
        wait = asyncio.create_task(hub.wait("a", hub.mark(), 5))
        await asyncio.sleep(0)
        hub.close()
        await asyncio.wait_for(wait, 1)
        assert source.callbacks == []

    asyncio.run(run())


def test_a_change_after_the_loop_closed_is_ignored() -> None:
    source = Source()

    async def run() -> None:
        Hub(source).mark()

    asyncio.run(run())
    source.tell("a")
