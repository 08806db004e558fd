"""Watches the cloud's metadata servers for a warning that this node will go."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace

from moorage.agent.clouds import Absent, Aws, Azure, Gcp, Source
from moorage.agent.config import AgentConfig
from moorage.api.values import Notice

log = logging.getLogger(__name__)

EVERY_S = 1.0
#: An endpoint that was never there is asked again after so long: first and largest.
ABSENT_S, ABSENT_MOST_S = 2.0, 60.0


class Watched:
    """One source with its back-off and its last word."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.last: Notice | None = None
        self._there = False
        self._wait = ABSENT_S
        self._next = 0.0

    def poll(self) -> Notice | None:
        """The notice that stands. What cannot be asked now leaves the last word standing."""
        if time.monotonic() < self._next:
            return self.last
        try:
            found = self.source.poll()
        except Absent as error:
            self._missed(error)
            return self.last
        self._there, self._wait = True, ABSENT_S
        self.last = _same(self.last, found)
        return self.last

    def _missed(self, error: Absent) -> None:
        log.log(logging.WARNING if self._there else logging.INFO, "%s cannot be asked: %s", self.source.name, error)
        wait = EVERY_S if self._there else self._wait
        self._next = time.monotonic() + wait
        if not self._there:
            self._wait = min(self._wait * 2, ABSENT_MOST_S)


def _same(last: Notice | None, found: Notice | None) -> Notice | None:
    """The same warning keeps the time at which it was first seen: it is one event, not one a second."""
    if last is not None and found is not None and (last.source, last.deadline) == (found.source, found.deadline):
        return replace(found, at=last.at)
    return found


class Watcher:
    """All sources, once a second, in one thread."""

    def __init__(self, sources: list[Source], tell: Callable[[Notice | None], None]) -> None:
        self._watched = [Watched(source) for source in sources]
        self._tell = tell
        self._told: Notice | None = None

    def run(self, stop: threading.Event) -> None:
        """Until `stop`; returns at once if nothing is watched."""
        while self._watched and not stop.is_set():
            began = time.monotonic()
            self.step()
            stop.wait(max(0.05, EVERY_S - (time.monotonic() - began)))
        for watched in self._watched:
            watched.source.close()

    def step(self) -> None:
        notice = worst([watched.poll() for watched in self._watched])
        if notice != self._told:
            self._told = notice
            _say(notice)
            self._tell(notice)


def worst(notices: list[Notice | None]) -> Notice | None:
    """The earliest firm one; else a recommendation; else none."""
    known = [notice for notice in notices if notice is not None]
    firm = [notice for notice in known if notice.deadline is not None]
    if firm:
        return min(firm, key=lambda notice: notice.deadline or notice.at)
    return known[0] if known else None


def _say(notice: Notice | None) -> None:
    if notice is None:
        log.warning("the notice was cancelled")
    elif notice.deadline is None:
        log.info("%s recommends to move away", notice.source)
    else:
        log.warning("%s takes this node at %s", notice.source, notice.deadline.isoformat())


def watcher(config: AgentConfig, tell: Callable[[Notice | None], None]) -> Watcher:
    """What the configuration says is watched."""
    sources: list[Source] = []
    if config.imds_url is not None:
        sources.append(Aws(config.imds_url))
    if config.gcp_url is not None:
        sources.append(Gcp(config.gcp_url))
    if config.azure_url is not None:
        sources.append(Azure(config.azure_url))
    return Watcher(sources, tell)
