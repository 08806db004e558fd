"""The client against a real broker: patience, lost replies, errors as the broker said them, no token anywhere."""

from __future__ import annotations

import asyncio
import inspect
import logging
import socket
import threading
import time

import pytest
from fastapi import FastAPI
from fastapi.responses import HTMLResponse, Response
from losing_proxy import losing
from web_server import served, who

from moorage.api.auth import Principal, Role
from moorage.api.errors import Conflict, Denied, Invalid, NotFound, Unavailable
from moorage.api.ids import new_id
from moorage.api.protocols import Api
from moorage.api.routes import ROUTES
from moorage.api.values import Submission
from moorage.broker import Broker
from moorage.client import AsyncClient, Client
from moorage.core.job import Job
from moorage.core.request import Request, Topology
from moorage.web import bearer, create_app
from moorage.web.problems import problem

#: Real waits: `make test` runs them, `make check` does not.
pytestmark = pytest.mark.slow


def submission(**request: object) -> Submission:
    return Submission(
        owner={"name": "run"},
        request=Request(**request),  # type: ignore[arg-type]
        job=Job(entrypoint=("python", "x.py")),
        client_id=new_id(),
        team="red",
    )


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def test_it_has_every_method_of_the_api_as_it_is() -> None:
    methods = {name for name, _ in inspect.getmembers(Api, inspect.isfunction) if not name.startswith("_")}
    assert methods == {route.method for route in ROUTES}
    for name in methods:
        assert inspect.signature(getattr(Client, name)) == inspect.signature(getattr(Api, name))


# --- patience


def test_nobody_listens() -> None:
    port = free_port()
    started = time.monotonic()
    sentence = f"no answer from http://127.0.0.1:{port} after 1 s: connection refused"
    with Client(f"http://127.0.0.1:{port}", None, retry_for=1) as client, pytest.raises(Unavailable) as error:
        client.fleet()
    assert str(error.value) == sentence
    assert 0.9 < time.monotonic() - started < 3


def test_nobody_listens_to_a_trigger() -> None:
    port = free_port()

    async def run() -> None:
        async with AsyncClient(f"http://127.0.0.1:{port}", None, retry_for=0.3) as client:
            await client.get("l")

    with pytest.raises(Unavailable, match=rf"^no answer from http://127.0.0.1:{port} after 0 s: connection refused$"):
        asyncio.run(run())


def test_retry_for_zero_does_not_wait() -> None:
    started = time.monotonic()
    with Client(f"http://127.0.0.1:{free_port()}", None, retry_for=0) as client, pytest.raises(Unavailable):
        client.fleet()
    assert time.monotonic() - started < 1


def test_somebody_who_accepts_and_says_nothing() -> None:
    with socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        mute.listen()
        address = f"http://127.0.0.1:{mute.getsockname()[1]}"
        with Client(address, None, timeout=0.2, retry_for=0.3) as client, pytest.raises(Unavailable, match="in time"):
            client.fleet()


def test_a_broker_that_comes_back_is_found(broker: Broker) -> None:
    port = free_port()
    stop = threading.Event()

    def later() -> None:
        import uvicorn

        app = create_app(broker.acting, bearer(who), broker)
        server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="warning"))
        threading.Thread(target=server.run, daemon=True).start()
        stop.wait(20)
        server.should_exit = True

    timer = threading.Timer(0.7, later)
    timer.start()
    with Client(f"http://127.0.0.1:{port}", "operator-token", retry_for=15) as client:
        assert client.fleet().nodes == ()
    stop.set()
    timer.join(timeout=10)


def busy(answers: list[Response]) -> FastAPI:
    app = FastAPI()

    @app.get("/api/v1/fleet")
    def fleet() -> Response:
        return answers.pop(0) if len(answers) > 1 else answers[0]

    return app


def test_a_standby_or_a_proxy_is_asked_again() -> None:
    fine = Response(b'{"at":"2026-01-01T00:00:00Z","nodes":[],"queue":[],"leases":[],"frozen":true,"revision":3}')
    answers = [
        problem(503, "unavailable", "the broker is starting"),
        HTMLResponse("", 502),
        HTMLResponse("", 504),
        fine,
    ]
    with served(busy(answers)) as url, Client(url, None, retry_for=10) as client:
        assert client.fleet().frozen is True


def test_a_broker_that_cannot_answer_says_why() -> None:
    answers = [problem(503, "unavailable", "the schema is newer than this broker")]
    said = pytest.raises(Unavailable, match=r"no answer from .* after \d s: the schema is newer than this broker")
    with served(busy(answers)) as url, Client(url, None, retry_for=0.4) as client, said:
        client.fleet()


def test_another_server_is_not_taken_for_a_broker() -> None:
    said = pytest.raises(Unavailable, match=r"answered 404 without a reason: is a Moorage broker there\?")
    with served(FastAPI()) as url, Client(url, None, retry_for=5) as client, said:
        client.fleet()


@pytest.mark.parametrize("url", ["127.0.0.1:8740", "http://", "ftp://host", ""])
def test_an_address_that_is_none(url: str) -> None:
    with pytest.raises(Invalid, match=r"give an address like http://127\.0\.0\.1:8740"):
        Client(url, None)


@pytest.mark.parametrize("token", ["", "two words", "two\nlines", "grün"])
def test_what_cannot_be_a_token_is_refused_and_not_shown(token: str) -> None:
    with pytest.raises(Invalid, match="give the one word that") as error:
        Client("http://127.0.0.1:9", token)
    assert not token or token not in str(error.value)


# --- lost replies


def test_a_lost_reply_repeats_the_call_and_not_the_deed(url: str) -> None:
    with losing(url, lose=2) as proxy, Client(proxy.url, "operator-token", retry_for=10) as client:
        # Another submission of the same owner would find the live lease: end it in between, so that only the
        # client id tells a repetition from a second wish.
        first = submission()
        view = client.submit(first)
        assert proxy.seen == 3
        proxy.lose = 1
        client.release(view.lease.id, "done", new_id())
        assert client.submit(first).lease.id == view.lease.id
        assert len(client.find({})) == 1


# --- errors


def test_errors_are_the_brokers_own(url: str) -> None:
    with Client(url, "operator-token") as client:
        with pytest.raises(Invalid) as refused:
            client.submit(submission(workers=(1, 4), labels={"a": "b"}, topology=Topology(required="galaxy")))
        assert refused.value.field.startswith("topology") or "topology" in str(refused.value)
        assert refused.value.fix
        with pytest.raises(NotFound, match="there is no lease nothing"):
            client.get("nothing")
    with Client(url, "viewer-token") as viewer, pytest.raises(Denied, match="vera is viewer: freeze is for operator"):
        viewer.freeze(True, new_id())
    with Client(url, "wrong") as nobody, pytest.raises(Denied, match="not known"):
        nobody.fleet()
    with Client(url, None) as nobody, pytest.raises(Denied, match="no token"):
        nobody.fleet()


def test_invalid_keeps_its_sentence_and_its_parts() -> None:
    app = FastAPI()

    @app.get("/api/v1/fleet")
    def fleet() -> Response:
        from moorage.web.problems import of_error

        return of_error(Invalid("workers", (4, 1), "max must not be below min; did you mean (1, 4)?"))

    with served(app) as url, Client(url, None) as client, pytest.raises(Invalid) as error:
        client.fleet()
    assert (error.value.field, error.value.value) == ("workers", (4, 1))
    assert str(error.value) == "workers=(4, 1): max must not be below min; did you mean (1, 4)?"


def test_a_broker_too_far_away_is_refused() -> None:
    answer = Response(b"{}", headers={"Moorage-Version": "0.9.1"})
    with (
        served(busy([answer])) as url,
        Client(url, None) as client,
        pytest.raises(Conflict, match=r"is Moorage 0\.9\.1"),
    ):
        client.fleet()


def test_a_lease_is_found_by_the_beginning_of_its_id(url: str) -> None:
    with Client(url, "operator-token") as client:
        one = client.submit(submission()).lease.id
        assert client.get(one[:13]).lease.id == one


# --- who


def test_acting_for_a_person(url: str, broker: Broker) -> None:
    with Client(url, "operator-token", act_for="mára / dev") as client:
        client.freeze(True, new_id())
        other = client.acting(Principal(name="jo", role=Role.OPERATOR))
        other.freeze(False, new_id())
    told = " ".join(event.who for event in broker.acting(who("operator-token")).events())
    assert "mára / dev via olga" in told
    assert "jo via olga" in told


def test_the_token_is_nowhere_to_be_read(url: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    secret = "very-secret-token"
    client = Client(url, secret)
    with pytest.raises(Denied) as error:
        client.fleet()
    said = caplog.text + repr(client) + str(error.value) + repr(AsyncClient(url, secret))
    assert secret not in said
    client.close()


# --- a trigger's client


def test_a_trigger_waits_without_blocking_its_loop(url: str) -> None:
    with Client(url, "operator-token") as owner:
        lease = owner.submit(submission()).lease.id
        time.sleep(0.5)
        revision = owner.get(lease).revision
        threading.Timer(0.3, lambda: owner.note(lease, {"a": "b"})).start()

        async def run() -> tuple[int, int]:
            ticks = 0

            async def tick() -> None:
                nonlocal ticks
                while True:
                    await asyncio.sleep(0.01)
                    ticks += 1

            async with AsyncClient(url, "operator-token") as client:
                ticking = asyncio.create_task(tick())
                view = await client.watch(lease, "w", since=revision, timeout=20)
                await client.unwatch(lease, "w")
                ticking.cancel()
                return (await client.get(lease)).revision - view.revision, ticks

        behind, ticks = asyncio.run(run())
        assert behind >= 0
        assert ticks > 5
