"""Long polls over HTTP: prompt, many at once, without holding threads."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from web_server import served, who

from moorage.api.errors import Denied
from moorage.api.ids import new_id
from moorage.api.values import NodeReport, Submission
from moorage.broker import Broker
from moorage.client import AsyncClient, Client
from moorage.core.fleet import Gpu
from moorage.core.job import Job
from moorage.core.lease import LeaseState
from moorage.core.request import Request
from moorage.web import bearer, create_app

#: Real waits: `make test` runs them, `make check` does not.
pytestmark = pytest.mark.slow

#: Seconds within which a change must reach who waits.
PROMPT_S = 1.0


def submit(client: Client, name: str = "run") -> str:
    job = Job(entrypoint=("python", "x.py"))
    return client.submit(
        Submission(owner={"name": name}, request=Request(), job=job, client_id=new_id(), team="red")
    ).lease.id


def join(url: str) -> None:
    with Client(url, "agent-token") as agent:
        gpus = (Gpu(index=0, uuid="g", model="H100", healthy=True),)
        agent.report(
            NodeReport(node="n1", incarnation="i", version="0.1.0", gpus=gpus, cpus=4, memory=1 << 34, labels={})
        )


@pytest.fixture
def operator(url: str, broker: Broker) -> Client:
    join(url)
    return Client(url, "operator-token", retry_for=0)


def late(seconds: float, act) -> threading.Timer:
    timer = threading.Timer(seconds, act)
    timer.start()
    return timer


def test_a_watch_returns_when_the_lease_changes(url: str, operator: Client) -> None:
    lease = submit(operator)
    revision = settled(operator, lease)
    late(0.3, lambda: operator.note(lease, {"a": "b"}))
    started = time.monotonic()
    view = operator.watch(lease[:13], "w", since=revision, timeout=20)
    assert view.revision > revision
    assert 0.2 < time.monotonic() - started < 0.3 + PROMPT_S


def settled(client: Client, lease: str) -> int:
    """The revision once the broker has decided."""
    until = time.monotonic() + 5
    while time.monotonic() < until:
        view = client.get(lease)
        if view.lease.state is not LeaseState.QUEUED:
            time.sleep(0.3)
            return client.get(lease).revision
        time.sleep(0.02)
    raise AssertionError(client.get(lease).lease.reason)


def test_a_watch_ends_at_its_timeout(url: str, operator: Client) -> None:
    lease = submit(operator)
    revision = settled(operator, lease)
    started = time.monotonic()
    assert operator.watch(lease, "w", since=revision + 1000, timeout=0.5).lease.id == lease
    assert 0.4 < time.monotonic() - started < 0.5 + PROMPT_S


def test_who_follows_a_log_learns_of_the_end_at_once(url: str, operator: Client) -> None:
    """Also of a log in which nothing ever stood."""
    settled(operator, submit(operator))
    lease = submit(operator, "waits")
    with ThreadPoolExecutor(1) as pool:
        told = pool.submit(operator.logs, lease, 0, 20)
        late(0.3, lambda: operator.release(lease, "a test", new_id()))
        started = time.monotonic()
        assert told.result(timeout=20).end
    assert 0.2 < time.monotonic() - started < 0.3 + PROMPT_S


def test_orders_events_and_logs_come_when_they_are_there(url: str, operator: Client) -> None:
    with Client(url, "agent-token") as agent:
        revision = agent.orders("n1", 0, 0).revision
        seen = operator.events(limit=1000)[-1].seq
        found: dict[str, float] = {}

        def wait(name: str, call) -> threading.Thread:
            def run() -> None:
                call()
                found[name] = time.monotonic()

            thread = threading.Thread(target=run)
            thread.start()
            return thread

        threads = [
            wait("orders", lambda: agent.orders("n1", revision, 20)),
            wait("events", lambda: operator.events(since=seen, timeout=20)),
        ]
        time.sleep(0.2)
        started = time.monotonic()
        lease = submit(operator)
        for thread in threads:
            thread.join(timeout=10)
        assert set(found) == {"orders", "events"}
        assert max(found.values()) - started < 2 * PROMPT_S

        logs = wait("logs", lambda: found.update(text=operator.logs(lease[:13], timeout=20).text))  # type: ignore[arg-type]
        time.sleep(0.2)
        written = time.monotonic()
        agent.put_logs("n1", lease, 1, 0, b"hello\n")
        logs.join(timeout=10)
        assert found["text"] == "hello\n"
        assert found["logs"] - written < PROMPT_S


def test_two_hundred_watchers_hold_no_thread(url: str, operator: Client) -> None:
    lease = submit(operator)
    revision = settled(operator, lease)

    async def many() -> list[int]:
        async with AsyncClient(url, "operator-token", timeout=20) as client:
            # More connections than a pool keeps by itself.
            client._http._transport._pool._max_connections = 300
            waits = [asyncio.create_task(watch(client, n)) for n in range(200)]
            await asyncio.sleep(2.5)
            started = time.monotonic()
            await asyncio.to_thread(operator.get, lease)
            assert time.monotonic() - started < PROMPT_S, "200 waiting calls must not be in the way of another"
            await asyncio.to_thread(operator.note, lease, {"wake": "up"})
            found = await asyncio.wait_for(asyncio.gather(*waits), 20)
            return [view.revision for view in found]

    async def watch(client: AsyncClient, number: int):
        return await client.watch(lease, f"w{number}", since=revision, timeout=30)

    assert all(found > revision for found in asyncio.run(many()))


def test_waiting_watchers_answer_an_unwatch(url: str, operator: Client) -> None:
    """One that waits in a long poll is there: another's end must not release the lease."""
    lease = submit(operator)
    revision = settled(operator, lease)

    def stay() -> None:
        since, end = revision, time.monotonic() + 5
        while time.monotonic() < end:
            since = max(since, operator.watch(lease, "stays", since=since, timeout=3).revision)

    thread = threading.Thread(target=stay)
    thread.start()
    operator.watch(lease, "goes")
    time.sleep(0.5)
    operator.unwatch(lease, "goes")
    thread.join(timeout=20)
    assert operator.get(lease).lease.state.active


def test_without_changes_polls_answer_at_once(broker: Broker) -> None:
    app = create_app(broker.acting, bearer(who))
    with served(app) as url, Client(url, "operator-token") as client:
        started = time.monotonic()
        client.events(since=10_000, timeout=20)
        assert time.monotonic() - started < PROMPT_S


def test_an_unknown_token_waits_for_nothing(url: str) -> None:
    with Client(url, "nobody") as client, pytest.raises(Denied, match="not known"):
        client.events(timeout=20)
