"""How a browser logs in: with a token, once, for a session cookie that no script can read."""

from __future__ import annotations

import json

from fastapi import FastAPI, Request
from fastapi.responses import Response
from starlette.concurrency import run_in_threadpool

from moorage.api.errors import Denied, Invalid
from moorage.api.routes import BODY_LIMIT
from moorage.web import bodies, problems
from moorage.web.render import page
from moorage.web.security import COOKIE, SESSION_S, Bearer


class Login:
    """GET and POST ./login, POST ./logout."""

    def __init__(self, bearer: Bearer) -> None:
        self._bearer = bearer

    async def show(self, _request: Request) -> Response:
        """The form."""
        return page("login.html", root=".")

    async def enter(self, request: Request) -> Response:
        """Take ``{"token": ...}`` and set the cookie."""
        token = _token(await bodies.read(request, BODY_LIMIT))
        try:
            name = await run_in_threadpool(self._bearer.log_in, token)
        except Denied as error:
            return problems.not_authenticated(error)
        answer = Response(status_code=204)
        answer.set_cookie(
            COOKIE,
            name,
            max_age=SESSION_S,
            path=_root(request),
            secure=request.url.scheme == "https",
            httponly=True,
            samesite="strict",
        )
        return answer

    async def leave(self, request: Request) -> Response:
        """Forget the session."""
        self._bearer.log_out(request)
        answer = Response(status_code=204)
        answer.delete_cookie(COOKIE, path=_root(request))
        return answer


def _root(request: Request) -> str:
    return f"{request.scope.get('root_path', '')}/"


def _token(content: bytes) -> str:
    try:
        body = json.loads(content)
    except ValueError:
        body = None
    token = body.get("token") if isinstance(body, dict) else None
    if not isinstance(token, str) or not token.strip():
        raise Invalid("token", "", "paste a token")
    return token.strip()


def add_routes(app: FastAPI, bearer: Bearer) -> None:
    """The three routes."""
    login = Login(bearer)
    app.add_api_route("/login", login.show, methods=["GET"], include_in_schema=False, response_model=None)
    app.add_api_route("/login", login.enter, methods=["POST"], include_in_schema=False, response_model=None)
    app.add_api_route("/logout", login.leave, methods=["POST"], include_in_schema=False, response_model=None)
