"""The operators' pages: server-rendered, refreshed by small ES modules. All addresses in them are relative."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import FileResponse, JSONResponse, Response
from fastapi.staticfiles import StaticFiles

from moorage.api.auth import Principal, Role
from moorage.api.errors import Denied, Invalid, MoorageError, NotFound
from moorage.api.routes import BODY_LIMIT, BY_METHOD
from moorage.web import bodies, fleet_view, lease_view, problems, sessions
from moorage.web.render import HERE, page
from moorage.web.rest import Calls
from moorage.web.security import Bearer

#: Who may look.
READERS = (Role.VIEWER, Role.SUBMITTER, Role.OPERATOR)
#: What operators may do from a page; each is a protocol method.
ACTIONS = ("cordon", "drain", "release")
#: Journal rows that a lease's page reads.
MAX_EVENTS = 2000


def reader(request: Request) -> Principal:
    """The caller, if pages are for them. Raises `Denied`."""
    principal: Principal = request.state.principal
    if principal.role not in READERS:
        raise Denied(f"{principal.name} is {principal.role}: the pages are for people")
    return principal


class Pages:
    """The routes of the pages over the api."""

    def __init__(self, calls: Calls, can_log_out: bool) -> None:
        self._calls = calls
        self._can_log_out = can_log_out

    async def fleet(self, request: Request) -> Response:
        """The fleet page, its first data already inside."""
        principal = reader(request)
        try:
            data, status = await self._fleet(principal), 200
        except MoorageError as error:
            data, status = {"error": str(error)}, problems.STATUS.get(type(error), 503)
        return page("fleet.html", status, data=data, root=".", user=principal, can_log_out=self._can_log_out)

    async def fleet_json(self, request: Request) -> Response:
        """What the fleet page refreshes itself from."""
        return JSONResponse(await self._fleet(reader(request)), headers={"Cache-Control": "no-store"})

    async def _fleet(self, principal: Principal) -> dict[str, Any]:
        fleet = await self._calls(principal, "fleet")
        return fleet_view.build(fleet, operator=principal.role is Role.OPERATOR)

    async def lease(self, request: Request) -> Response:
        """A lease's page; the browser fetches it again to refresh it."""
        principal = reader(request)
        name = request.path_params["lease"]
        values: dict[str, Any] = {"root": "..", "user": principal, "can_log_out": self._can_log_out}
        try:
            shown = await self._lease(principal, name)
        except NotFound as error:
            return page("missing.html", 404, sentence=str(error), **values)
        except MoorageError as error:
            status = problems.STATUS.get(type(error), 503)
            return page("missing.html", status, sentence=str(error), **values)
        return page("lease.html", lease=shown, **values)

    async def _lease(self, principal: Principal, name: str) -> Mapping[str, Any]:
        view = await self._calls(principal, "get", lease=name)
        whole = view.lease.id
        events = await self._calls(principal, "events", lease=whole, limit=MAX_EVENTS)
        segments = await self._calls(principal, "ledger", lease=whole)
        operator = principal.role is Role.OPERATOR
        return lease_view.build(view, events, segments, datetime.now(UTC), operator=operator)

    async def log(self, request: Request) -> Response:
        """A piece of the lease's log, from byte `offset`."""
        principal = reader(request)
        text = request.query_params.get("offset", "0")
        if not text.isdigit():
            raise Invalid("offset", text, "give the number of a byte, 0 or more")
        chunk = await self._calls(principal, "logs", lease=request.path_params["lease"], offset=int(text))
        body = {"text": chunk.text, "next": chunk.next, "end": chunk.end}
        return JSONResponse(body, headers={"Cache-Control": "no-store"})

    async def act(self, request: Request) -> Response:
        """An operator's action: POST ./actions/<method> with the method's arguments as one JSON object."""
        principal = reader(request)
        method = request.path_params["method"]
        if method not in ACTIONS:
            raise NotFound(f"there is no action {method!r}; there are {', '.join(ACTIONS)}")
        if principal.role is not Role.OPERATOR:
            raise Denied(f"{principal.name} is {principal.role}: {method} needs the role operator")
        arguments = _arguments(method, await bodies.read(request, BODY_LIMIT))
        await self._calls(principal, method, **arguments)
        return Response(status_code=204)


def _arguments(method: str, content: bytes) -> dict[str, Any]:
    """The arguments of an action, all in the body: what the route has in its path is taken from there too."""
    route = BY_METHOD[method]
    try:
        body = json.loads(content)
    except ValueError as error:
        raise Invalid("body", content[:80].decode(errors="replace"), "send a JSON object") from error
    if not isinstance(body, dict):
        raise Invalid("body", body, "send a JSON object")
    path = {name: body.pop(name, "") for name in route.in_path}
    for name, value in path.items():
        if not isinstance(value, str) or not value:
            raise Invalid(name, value, "name it")
    return route.incoming(path, {}, json.dumps(body).encode())


def add_routes(app: FastAPI, calls: Calls, login: Bearer | None) -> None:
    """The pages, what they fetch, and, where `login` is given, how a browser gets in."""
    pages = Pages(calls, can_log_out=login is not None)
    for path, endpoint in {
        "/": pages.fleet,
        "/fleet.json": pages.fleet_json,
        "/leases/{lease}": pages.lease,
        "/leases/{lease}/log.json": pages.log,
        "/icon.svg": icon,
    }.items():
        app.add_api_route(path, endpoint, methods=["GET"], include_in_schema=False, response_model=None)
    app.add_api_route("/actions/{method}", pages.act, methods=["POST"], include_in_schema=False, response_model=None)
    app.mount("/static", StaticFiles(directory=HERE / "static"), name="static")
    if login is not None:
        sessions.add_routes(app, login)


async def icon(_request: Request) -> Response:
    """The page's icon, for menus."""
    return FileResponse(HERE / "static" / "icon.svg", media_type="image/svg+xml")
