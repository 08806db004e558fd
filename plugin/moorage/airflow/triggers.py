"""Waits for a lease in the triggerer, for as long as it takes, across outages of the broker."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from moorage import settings
from moorage.airflow.hook import MoorageHook, async_client
from moorage.api import codec
from moorage.api.errors import MoorageError, Unavailable
from moorage.api.ids import new_id
from moorage.core.cost import Cost
from moorage.core.lease import LeaseState

if TYPE_CHECKING:
    from moorage.api.values import LeaseView
    from moorage.client import AsyncClient

#: Seconds of one long poll.
POLL_S = 20.0
#: Back-off while the broker is away: first and largest, in seconds.
BACK_OFF_S = (1.0, 15.0)
#: Seconds between two log lines about a broker that is away.
SAY_EVERY_S = 60.0
#: Seconds that `on_kill` may take; Airflow's own bound is 30.
KILL_S = 8.0


class LeaseTrigger(BaseTrigger):
    """Ends with the lease, or `linger_s` after its outcome is known, or (``until="granted"``) once it has GPUs.

    While it waits it is the lease's watcher, under an id of its own: a triggerer that takes a trigger over from a
    stalled one is another watcher, so that the stalled one's `on_kill` releases nothing.
    """

    def __init__(
        self,
        lease: str,
        moorage_conn_id: str = MoorageHook.default_conn_name,
        linger_s: float = 30.0,
        until: str = "ended",
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.lease = lease
        self.moorage_conn_id = moorage_conn_id
        self.linger_s = linger_s
        self.until = until
        self.watcher = f"airflow-trigger-{new_id()}"
        self._where: settings.Connection | None = None
        self._said = ""

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """The watcher's id stays out: every instance is a watcher of its own."""
        names = ("lease", "moorage_conn_id", "linger_s", "until")
        return "moorage.airflow.triggers.LeaseTrigger", {name: getattr(self, name) for name in names}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yields one event: see `event`, or `failure` if the broker refuses."""
        try:
            async with await self._client(retry_for=0.0) as client:
                payload = event(await self._wait(client))
        except MoorageError as error:
            payload = failure(self.lease, error)
        yield TriggerEvent(payload)  # type: ignore[no-untyped-call]

    async def on_kill(self) -> None:
        """Says `unwatch`, no more: Airflow calls this too when another triggerer has taken the trigger over."""
        async with asyncio.timeout(KILL_S), await self._client(retry_for=KILL_S) as client:
            await client.unwatch(self.lease, self.watcher)

    async def _client(self, retry_for: float) -> AsyncClient:
        if self._where is None:
            self._where = await MoorageHook(self.moorage_conn_id).awhere()
        return async_client(self._where, retry_for)

    async def _wait(self, client: AsyncClient) -> LeaseView:
        since, known_at = 0, None
        while True:
            left = POLL_S if known_at is None else known_at + self.linger_s - time.monotonic()
            view = await self._watch(client, since, min(max(left, 0.0), POLL_S))
            since = view.revision
            self._say(view)
            if view.lease.outcome is not None and known_at is None:
                known_at = time.monotonic()
            if self._over(view, known_at):
                return view

    def _over(self, view: LeaseView, known_at: float | None) -> bool:
        if view.lease.state is LeaseState.ENDED:
            return True
        if self.until == "granted" and view.lease.state.active:
            return True
        return known_at is not None and time.monotonic() >= known_at + self.linger_s

    async def _watch(self, client: AsyncClient, since: int, poll_s: float) -> LeaseView:
        """One answer of the broker. Airflow's deferral time-out bounds the patience."""
        pause, silent_since, said = BACK_OFF_S[0], time.monotonic(), float("-inf")
        while True:
            try:
                return await client.watch(self.lease, self.watcher, since, poll_s)
            except Unavailable as error:
                now = time.monotonic()
                if now - said >= SAY_EVERY_S:
                    said = now
                    away = now - silent_since
                    self.log.warning("The broker is away (%.0f s): %s. The job goes on; waiting.", away, error)
            await asyncio.sleep(pause)
            pause = min(pause * 2, BACK_OFF_S[1])

    def _say(self, view: LeaseView) -> None:
        lease = view.lease
        line = f"{lease.state}: {lease.reason or 'no reason given'}"
        if line != self._said:
            self._said = line
            self.log.info("Lease %s %s", lease.id[:8], line)


def event(view: LeaseView) -> dict[str, Any]:
    """All that the task needs to end, so that it needs no broker then."""
    lease = view.lease
    return {
        "lease": lease.id,
        "state": lease.state.value,
        "outcome": lease.outcome.value if lease.outcome else None,
        "reason": lease.reason,
        "result": result(lease.result),
        "cost": cost(view.cost),
        "attempts": lease.epoch,
        "interruptions": lease.interruptions,
        "notes": dict(lease.notes),
    }


def failure(lease: str, error: MoorageError) -> dict[str, Any]:
    """The broker answered, but not with a lease."""
    return {"lease": lease, "error": f"{type(error).__name__}: {error}"}


def result(marker: str | None) -> Any:
    """The completion marker's value; its text where it is not JSON."""
    if marker is None:
        return None
    try:
        return json.loads(marker)
    except ValueError:
        return marker


def cost(of: Cost) -> dict[str, str]:
    """Dollars and GPU-seconds as exact decimal strings."""
    return {name: format(Decimal(value), "f") for name, value in codec.plain(of).items()}
