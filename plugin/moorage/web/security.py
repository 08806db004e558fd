"""Who may come in. Everything is closed but what is listed as open; a broker's roles are checked by the broker."""

from __future__ import annotations

import inspect
import secrets
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import cast

from fastapi import HTTPException, Request
from fastapi.responses import RedirectResponse, Response
from starlette.concurrency import run_in_threadpool
from starlette.types import ASGIApp, Receive, Scope, Send

from moorage.api.auth import Principal
from moorage.api.errors import Denied
from moorage.web import problems

Authenticate = Callable[[Request], Principal | Awaitable[Principal]]

COOKIE = "moorage_session"
#: Seconds that a browser stays logged in.
SESSION_S = 12 * 3600
#: Sessions kept; the oldest goes first.
MAX_SESSIONS = 1000
#: A browser sends neither from another site's form without asking first.
WRITE_TYPES = ("application/json", "application/octet-stream")


@dataclass(frozen=True, slots=True)
class Session:
    """A logged-in browser. The secret stays here and is checked at every request: a revoked token ends it."""

    secret: str
    until: float


class Bearer:
    """Authenticates by ``Authorization: Bearer``, or by the session cookie of a browser that logged in.

    Sessions live in memory: after a restart people log in again.
    """

    def __init__(self, authenticate_secret: Callable[[str], Principal]) -> None:
        self._authenticate = authenticate_secret
        self._sessions: OrderedDict[str, Session] = OrderedDict()

    def __call__(self, request: Request) -> Principal:
        """The caller. Raises `Denied`."""
        kind, _, secret = request.headers.get("authorization", "").partition(" ")
        if secret and kind.lower() == "bearer":
            return self._authenticate(secret.strip())
        return self._authenticate(self._session(request).secret)

    def log_in(self, secret: str) -> str:
        """A new session's id. Raises `Denied` for a wrong secret."""
        self._authenticate(secret)
        name = secrets.token_urlsafe(32)
        self._sessions[name] = Session(secret, time.monotonic() + SESSION_S)
        while len(self._sessions) > MAX_SESSIONS:
            self._sessions.popitem(last=False)
        return name

    def log_out(self, request: Request) -> None:
        """Forget the browser's session."""
        self._sessions.pop(request.cookies.get(COOKIE, ""), None)

    def _session(self, request: Request) -> Session:
        session = self._sessions.get(request.cookies.get(COOKIE, ""))
        if session is None or session.until < time.monotonic():
            raise Denied("no token: set MOORAGE_TOKEN or MOORAGE_TOKEN_FILE (HTTP: Authorization: Bearer), or log in")
        return session


def bearer(authenticate_secret: Callable[[str], Principal]) -> Bearer:
    """Tokens, looked up by the broker; and browsers that log in with one."""
    return Bearer(authenticate_secret)


class Guard:
    """Middleware: no route is reached without a principal, except those that are named open."""

    def __init__(self, app: ASGIApp, authenticate: Authenticate, open_paths: frozenset[str], open_below: str) -> None:
        self._app = app
        self._authenticate = authenticate
        self._open = open_paths
        self._below = open_below

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        refused = await self._refusal(Request(scope, receive))
        await (refused or self._app)(scope, receive, send)

    async def _refusal(self, request: Request) -> Response | None:
        """Why not; None: come in, as `request.state.principal`."""
        path = path_below(request.scope)
        if request.method == "POST" and not _writes_safely(request):
            return problems.problem(415, "http", f"send a POST with content type {' or '.join(WRITE_TYPES)}")
        if path in self._open or (self._below and path.startswith(self._below)):
            return None
        try:
            request.state.principal = await self._principal(request)
        except Denied as error:
            return self._unknown(request, path, error)
        except HTTPException as error:
            return problems.of_error(error)
        return None

    async def _principal(self, request: Request) -> Principal:
        if inspect.iscoroutinefunction(self._authenticate):
            return cast(Principal, await self._authenticate(request))
        found = await run_in_threadpool(self._authenticate, request)
        return await found if inspect.isawaitable(found) else found

    def _unknown(self, request: Request, path: str, error: Denied) -> Response:
        wants_page = request.method == "GET" and "text/html" in request.headers.get("accept", "")
        if wants_page and "/login" in self._open:
            return RedirectResponse("../" * (path.count("/") - 1) + "login", 303)
        return problems.not_authenticated(error)


def path_below(scope: Scope) -> str:
    """The path below where the app is mounted."""
    path, root = str(scope["path"]), str(scope.get("root_path", ""))
    # As Starlette's router sees it, so that what is open here is what is routed there.
    return path[len(root) :] if root and path.startswith(f"{root}/") else path


def _writes_safely(request: Request) -> bool:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    return kind in WRITE_TYPES
