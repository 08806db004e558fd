"""The four protocols as JSON routes, made from the table that the client reads too."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any
from urllib.parse import unquote

import anyio
from anyio.to_thread import run_sync
from fastapi import FastAPI, Request
from fastapi.responses import Response

from moorage import __version__
from moorage.api.auth import Principal, Role
from moorage.api.errors import Denied, Invalid
from moorage.api.protocols import Api
from moorage.api.routes import ACT_FOR, PREFIX, ROUTES, Route
from moorage.api.versions import HEADER, work_together
from moorage.core.lease import LeaseState
from moorage.web import bodies
from moorage.web.hub import Hub

#: Longest wait of one long poll, in seconds; the caller asks again.
MAX_POLL_S = 60.0
#: Length of a whole id; a shorter one is a prefix.
ID_LENGTH = 36
MAX_NAME = 200


#: A wait is broken off after this many seconds to look again.
LOOK_AGAIN_S = 10.0
#: Each look of a `watch` also says that the watcher is there; an `unwatch` of another gives 5 s to be heard.
WATCH_AGAIN_S = 2.0


def topic(method: str, arguments: Mapping[str, Any], answer: Any) -> str:
    """What wakes a waiting call."""
    match method:
        case "watch":
            return f"lease:{answer.lease.id}"
        case "orders":
            return f"node:{arguments['node']}"
        case "logs":
            return f"log:{arguments['lease']}"
        case _:
            return "events"


def is_news(method: str, arguments: Mapping[str, Any], answer: Any) -> bool:
    """Whether a waiting call may return."""
    match method:
        case "watch":
            return bool(answer.revision > arguments.get("since", 0) or answer.lease.state is LeaseState.ENDED)
        case "orders":
            return bool(answer.revision > arguments["since"])
        case "logs":
            return bool(answer.end or answer.next > arguments.get("offset", 0))
        case _:
            return len(answer) > 0


class Calls:
    """Calls of the api from the event loop: each in a thread of a bounded pool; waits hold none."""

    def __init__(self, acting: Callable[[Principal], Api], hub: Hub, threads: int) -> None:
        self._acting = acting
        self._hub = hub
        self._limiter = anyio.CapacityLimiter(threads)

    async def __call__(self, principal: Principal, method: str, **arguments: Any) -> Any:
        """One call, answered at once."""
        return await run_sync(partial(self._now, principal, method, arguments), limiter=self._limiter)

    def _now(self, principal: Principal, method: str, arguments: Mapping[str, Any]) -> Any:
        return getattr(self._acting(principal), method)(**arguments)

    async def poll(
        self, principal: Principal, method: str, arguments: Mapping[str, Any], gone: Callable[[], Awaitable[bool]]
    ) -> Any:
        """A call with a `timeout`: returns at news, or when the time is over, or when the caller is `gone`."""
        if not self._hub.listens:
            return await self(principal, method, **{**arguments, "timeout": 0})
        arguments = await self._whole(principal, method, arguments)
        again = WATCH_AGAIN_S if method == "watch" else LOOK_AGAIN_S
        clock = asyncio.get_running_loop().time
        deadline = clock() + min(float(arguments.get("timeout", 0)), MAX_POLL_S)
        while True:
            mark = self._hub.mark()
            answer = await self(principal, method, **{**arguments, "timeout": 0})
            left = deadline - clock()
            if left <= 0 or is_news(method, arguments, answer):
                return answer
            await self._hub.wait(topic(method, arguments, answer), mark, min(left, again))
            if self._hub.closed or await gone():
                return answer

    async def _whole(self, principal: Principal, method: str, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """Topics carry whole ids: a prefix is looked up once."""
        lease = arguments.get("lease")
        if method != "logs" or not isinstance(lease, str) or len(lease) >= ID_LENGTH:
            return arguments
        return {**arguments, "lease": (await self(principal, "get", lease=lease)).lease.id}


def add_routes(app: FastAPI, calls: Calls) -> None:
    """Every row of the table, below ``/api/v1``."""
    for route in ROUTES:
        app.add_api_route(
            PREFIX + route.path,
            _endpoint(route, calls),
            methods=[route.verb],
            name=route.method,
            include_in_schema=False,
            response_model=None,
        )


def _endpoint(route: Route, calls: Calls) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        principal = speaking_for(request)
        check_version(request)
        content = await bodies.read(request, route.limit)
        arguments = route.incoming(request.path_params, request.query_params, content)
        if route.polls:
            answer = await calls.poll(principal, route.method, arguments, request.is_disconnected)
        else:
            answer = await calls(principal, route.method, **arguments)
        return respond(route, answer)

    return endpoint


def respond(route: Route, answer: object) -> Response:
    """The answer as the client will read it."""
    headers = {HEADER: __version__, "Cache-Control": "no-store"}
    body = route.dump(answer)
    if body is None:
        return Response(status_code=204, headers=headers)
    return Response(body[0], 200, headers, media_type=body[1])


def speaking_for(request: Request) -> Principal:
    """The caller, or the person for whom an operator's token says it acts.

    Raises:
        Denied: another role's token says so.
    """
    principal: Principal = request.state.principal
    person = unquote(request.headers.get(ACT_FOR, ""))
    if not person:
        return principal
    if principal.role is not Role.OPERATOR:
        raise Denied(f"{principal.name} is {principal.role}: only an operator's token may act for {person!r}")
    if len(person) > MAX_NAME or not person.isprintable():
        raise Invalid(ACT_FOR, person[:MAX_NAME], f"give a printable name of at most {MAX_NAME} characters")
    return replace(principal, name=f"{person} via {principal.name}")


def check_version(request: Request) -> None:
    """Refuse a caller that says it is more than one minor version away. Raises `Invalid`."""
    theirs = request.headers.get(HEADER, __version__)
    if not work_together(__version__, theirs):
        raise Invalid(HEADER, theirs, f"this broker is Moorage {__version__}; use a version at most one minor away")
