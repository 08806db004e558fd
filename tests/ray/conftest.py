"""A gang without Ray: the real one, in a thread of its own, with workers as threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from moorage.checkpoint import Store
from moorage.ray.gang import Gang
from moorage.ray.job import Job
from moorage.ray.words import Counters, GangLost, Joiner, Member, Refusal, Stopped

Loop = Callable[[Any, Job], Any]


class LocalLink:
    """`Link` to a gang that lives in this process."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            try:
                return self._call(name, *args)
            except Refusal as error:
                raise GangLost(str(error)) from error

        return call


class LocalGang:
    """Runs groups of threads as a controller would."""

    def __init__(self, checkpoint_every_s: float = 1e9, patience_s: float = 20.0) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

        async def make() -> Gang:
            return Gang(checkpoint_every_s, patience_s)

        self.gang = asyncio.run_coroutine_threadsafe(make(), self._loop).result(5)
        self.groups = 0
        self.posts: list[Counters] = []

    def call(self, name: str, *args: Any) -> Any:
        if name == "post":
            self.posts.append(args[0])
        return asyncio.run_coroutine_threadsafe(getattr(self.gang, name)(*args), self._loop).result(30)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
        self._loop.close()

    def begin(self, size: int, members: tuple[Member, ...] = ()) -> int:
        self.groups += 1
        self.call("begin", self.groups, members, size)
        return self.groups

    def run(
        self, size: int, loop: Loop, config: Any, *, batch: int, store: str | None = None, **more: Any
    ) -> list[Any]:
        """Each worker's result, or the `Stopped` or `GangLost` that ended it."""
        group = self.begin(size)

        def worker(rank: int) -> Any:
            link = LocalLink(self.call)
            seat = link.join(Joiner(ray_rank=rank, ray_size=size, allocation="", host="h", gpus=()))
            keep = Store(store, epoch=group, keep=3) if store else None
            try:
                return loop(config, Job(seat, link, keep, global_batch=batch, **more))
            except (Stopped, GangLost) as end:
                return end

        with ThreadPoolExecutor(size) as pool:
            return list(pool.map(worker, range(size)))


@pytest.fixture
def gang() -> Iterator[LocalGang]:
    made = LocalGang()
    yield made
    made.close()
