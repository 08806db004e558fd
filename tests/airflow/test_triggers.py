"""The trigger against a real broker: it waits through outages, ends with the lease, and kills nothing by itself."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from decimal import Decimal
from typing import Any

import pytest

from moorage.airflow import triggers
from moorage.airflow.triggers import LeaseTrigger
from moorage.api.auth import Role
from moorage.api.ids import new_id
from moorage.api.values import NodeReport, Submission
from moorage.client import Client
from moorage.core.fleet import Gpu
from moorage.core.job import Job
from moorage.core.lease import LeaseState
from moorage.core.request import Request

#: Real waits: `make test` runs them, `make check` does not.
pytestmark = pytest.mark.slow

SOON_S = 15.0


def submit(api: Client) -> str:
    job, name = Job(entrypoint=("python", "-c", "pass")), new_id()
    asked = Submission(owner={"test": name}, request=Request(), job=job, client_id=name, team="research")
    return api.submit(asked).lease.id


def add_node(api: Client, name: str = "n1") -> None:
    """A node that was heard once, and whose agent then does nothing."""
    token = api.make_token(f"agent-{name}", Role.AGENT, node=name)
    gpus = tuple(Gpu(index=n, uuid=f"{name}-{n}", model="FAKE") for n in range(4))
    report = NodeReport(node=name, incarnation="1", version="0.1.0", gpus=gpus, cpus=8, memory=2**34, labels={})
    with Client(api.url, token) as agent:
        agent.report(report)


async def first(trigger: LeaseTrigger, within: float = SOON_S) -> dict[str, Any]:
    """The trigger's event, after the round trip that Airflow makes of it."""
    path, arguments = trigger.serialize()
    assert path == "moorage.airflow.triggers.LeaseTrigger"
    async with asyncio.timeout(within):
        return dict((await anext(LeaseTrigger(**arguments).run())).payload)
    raise AssertionError


async def until(done: Callable[[], bool], within: float = SOON_S) -> float:
    """Seconds until it is true."""
    began = time.monotonic()
    async with asyncio.timeout(within):
        while not await asyncio.to_thread(done):  # noqa: ASYNC110 (nothing here could wake us)
            await asyncio.sleep(0.05)
    return time.monotonic() - began


def test_ends_with_the_lease(connected: Client) -> None:
    lease = submit(connected)

    async def scene() -> dict[str, Any]:
        waiting = asyncio.create_task(first(LeaseTrigger(lease)))
        await until(lambda: connected.get(lease).lease.owner_heard is not None)
        await asyncio.to_thread(connected.release, lease, "Nobody wants it.", new_id())
        return await waiting

    event = asyncio.run(scene())
    assert (event["lease"], event["state"], event["outcome"]) == (lease, "ended", "stopped")
    assert "Nobody wants it." in event["reason"]
    assert Decimal(event["cost"]["total_usd"]) == 0


def test_a_lease_that_nobody_knows(connected: Client) -> None:
    event = asyncio.run(first(LeaseTrigger("0193-nobody")))
    assert event["lease"] == "0193-nobody"
    assert event["error"].startswith("NotFound: ")


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triggers, "BACK_OFF_S", (0.05, 0.2))


@asynccontextmanager
async def relay(to: str, port: int) -> AsyncIterator[int]:
    """A broker's address that can go away and come back; yields its port."""
    host, _, number = to.removeprefix("http://").partition(":")
    open_ends: set[asyncio.StreamWriter] = set()
    away = asyncio.Event()

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        open_ends.add(writer)
        # A connection that was being accepted when the broker went away goes with it.
        while not away.is_set() and (data := await reader.read(65536)):
            writer.write(data)
        writer.close()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(host, int(number))
        await asyncio.gather(pump(reader, back), pump(there, writer), return_exceptions=True)

    server = await asyncio.start_server(accept, "127.0.0.1", port)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        away.set()
        server.close()
        for end in open_ends:
            end.close()


class Said(list[str]):
    """A logger that remembers: where Airflow's own goes depends on who configured it first."""

    def _say(self, message: str, *args: object) -> None:
        self.append(message % args if args else message)

    debug = info = warning = error = _say


def test_outlives_an_outage_of_the_broker(connected: Client, quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    lease = submit(connected)
    said = Said()
    monkeypatch.setattr(LeaseTrigger, "log", said)

    def says_so() -> bool:
        return any("The broker is away" in line for line in said)

    async def scene() -> dict[str, Any]:
        async with relay(connected.url, 0) as port:
            monkeypatch.setenv("MOORAGE_URL", f"http://127.0.0.1:{port}")
            waiting = asyncio.create_task(first(LeaseTrigger(lease), within=30))
            await until(lambda: connected.get(lease).lease.owner_heard is not None)
        await asyncio.to_thread(connected.release, lease, "While it was away.", new_id())
        await until(says_so)
        assert not waiting.done()
        async with relay(connected.url, port):
            return await waiting

    event = asyncio.run(scene())
    assert event["outcome"] == "stopped"
    assert sum("The broker is away" in line for line in said) == 1


async def killed(trigger: LeaseTrigger, watching: Callable[[], bool]) -> None:
    """What a triggerer does on a user's act: cancel, on_kill, cleanup."""

    async def consume() -> None:
        async for _ in trigger.run():
            pass

    running = asyncio.create_task(consume())
    await until(watching)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await trigger.on_kill()
    await trigger.cleanup()


def test_a_users_act_releases_in_seconds(connected: Client) -> None:
    lease = submit(connected)

    async def scene() -> float:
        await killed(LeaseTrigger(lease), lambda: connected.get(lease).lease.owner_heard is not None)
        return await until(lambda: connected.get(lease).lease.state is LeaseState.ENDED)

    assert asyncio.run(scene()) < 6


def test_a_trigger_that_moved_house_frees_nothing(connected: Client) -> None:
    lease = submit(connected)

    async def scene() -> None:
        elsewhere = asyncio.create_task(first(LeaseTrigger(lease), within=30))
        await killed(LeaseTrigger(lease), lambda: connected.get(lease).lease.owner_heard is not None)
        with pytest.raises(TimeoutError):
            await until(lambda: connected.get(lease).lease.state is not LeaseState.QUEUED, within=5)
        await asyncio.to_thread(connected.release, lease, "Done.", new_id())
        assert (await elsewhere)["outcome"] == "stopped"

    asyncio.run(scene())


def test_on_kill_is_bounded_when_the_broker_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOORAGE_URL", "http://127.0.0.1:9")
    monkeypatch.setattr(triggers, "KILL_S", 0.5)
    began = time.monotonic()
    with pytest.raises((TimeoutError, triggers.Unavailable)):
        asyncio.run(LeaseTrigger("abc").on_kill())
    assert time.monotonic() - began < 3


def test_every_instance_is_a_watcher_of_its_own() -> None:
    _, arguments = LeaseTrigger("abc").serialize()
    assert LeaseTrigger(**arguments).watcher != LeaseTrigger(**arguments).watcher
    assert "watcher" not in arguments


@pytest.mark.parametrize(
    ("marker", "value"), [(None, None), ('{"accuracy": 0.9}', {"accuracy": 0.9}), ("not json", "not json")]
)
def test_results(marker: str | None, value: object) -> None:
    assert triggers.result(marker) == value


def test_ends_when_the_outcome_is_known_for_long_enough(connected: Client) -> None:
    add_node(connected)
    lease = submit(connected)

    async def scene() -> dict[str, Any]:
        granted = await first(LeaseTrigger(lease, until="granted"))
        assert granted["state"] == "granted"
        await asyncio.to_thread(connected.release, lease, "Enough.", new_id())
        # The node's agent never says that the processes are gone.
        return await first(LeaseTrigger(lease, linger_s=0.5))

    event = asyncio.run(scene())
    assert (event["state"], event["outcome"]) == ("stopping", "stopped")
