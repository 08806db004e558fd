"""Two threads that speak with the broker: one reports, one waits for orders. A broker that is away ends no job."""

from __future__ import annotations

import logging
import threading
import time
from typing import Protocol

from moorage.agent.board import Board
from moorage.api.values import NodeReport, Orders

log = logging.getLogger(__name__)

#: Seconds that a long poll for orders may take.
POLL_S = 10.0
#: Between two reports, however much changes.
LEAST_S = 0.1
FIRST_S, MOST_S = 0.5, 5.0
SAY_EVERY_S = 60.0


class Broker(Protocol):
    """What an agent asks of the broker: `NodeApi`, and code."""

    def report(self, report: NodeReport) -> Orders: ...
    def orders(self, node: str, since: int, timeout: float) -> Orders: ...
    def put_logs(self, node: str, lease: str, epoch: int, offset: int, text: bytes) -> int: ...
    def get_code(self, digest: str) -> bytes: ...


class Outage:
    """How long to wait after failures, and when to say so: at once, then once a minute."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._since: float | None = None
        self._said = 0.0
        self._wait = FIRST_S
        self.failures = 0

    def failed(self, error: Exception) -> float:
        """Seconds to wait."""
        now = time.monotonic()
        self.failures += 1
        if self._since is None or now - self._said >= SAY_EVERY_S:
            first = self._since is None
            self._since, self._said = self._since or now, now
            away = "" if first else f" for {now - self._since:.0f} s"
            log.warning("%s fails%s; jobs go on, trying again: %s", self._what, away, error)
        wait, self._wait = self._wait, min(self._wait * 2, MOST_S)
        return wait

    def over(self) -> None:
        """It worked."""
        if self._since is not None:
            log.info("%s works again after %.0f s", self._what, time.monotonic() - self._since)
        self._since, self._wait = None, FIRST_S


class Reporter:
    """Says what is, at once when it changed and otherwise every `every_s` seconds."""

    def __init__(self, broker: Broker, board: Board, every_s: float) -> None:
        self._broker, self._board, self._every_s = broker, board, every_s
        self.outage = Outage("reporting to the broker")

    def run(self, stop: threading.Event) -> None:
        while not stop.is_set():
            report, said = self._board.report()
            asked = time.monotonic()
            try:
                orders = self._broker.report(report)
            except Exception as error:  # noqa: BLE001 - whatever it is, a silent agent would be worse. It is logged.
                if not stop.is_set():
                    stop.wait(self.outage.failed(error))
                continue
            self.outage.over()
            self._board.reported(report)
            self._board.accept(orders, asked)
            stop.wait(LEAST_S)
            self._board.wait_said(said, self._every_s)


class Poller:
    """Waits at the broker for orders to change. Starts after the first report: before it, orders may be for a past."""

    def __init__(self, broker: Broker, board: Board, node: str) -> None:
        self._broker, self._board, self._node = broker, board, node
        self.outage = Outage("waiting for orders")

    def run(self, stop: threading.Event) -> None:
        while not stop.is_set():
            answer = self._board.answer()
            if answer is None:
                stop.wait(LEAST_S)
                continue
            asked = time.monotonic()
            try:
                orders = self._broker.orders(self._node, answer.revision, POLL_S)
            except Exception as error:  # noqa: BLE001 - as above.
                if not stop.is_set():
                    stop.wait(self.outage.failed(error))
                continue
            self.outage.over()
            self._board.accept(orders, asked)
            # A broker whose revision went back answers at once; the reporter's answer brings ours in line.
            if orders.revision <= answer.revision:
                stop.wait(LEAST_S)
