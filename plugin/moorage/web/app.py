"""The one FastAPI app: the api over HTTP, and the operators' pages."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from starlette.middleware.gzip import GZipMiddleware

from moorage import __version__
from moorage.api.auth import Principal
from moorage.api.protocols import Api, Changes
from moorage.api.routes import PREFIX
from moorage.web import openapi, pages, problems, rest
from moorage.web.hub import Hub
from moorage.web.security import Authenticate, Bearer, Guard

#: Broker calls at once.
THREADS = 16


def create_app(
    acting: Callable[[Principal], Api],
    authenticate: Authenticate,
    changes: Changes | None = None,
    *,
    api: bool = True,
    alive: Callable[[], bool] | None = None,
    threads: int = THREADS,
) -> FastAPI:
    """The app. It may be mounted anywhere: its pages use relative addresses only.

    ``app.state.end_polls()`` answers every long poll at once, for a server that ends; call it in the event loop.

    Args:
        acting: the api for a principal, for example ``broker.acting``.
        authenticate: the principal of a request; raises `Denied` (or an HTTPException). May be a coroutine function.
        changes: wakes long polls; None: they answer at once.
        api: whether ``/api/v1`` is there, besides the pages.
        alive: whether the broker's loop lives, for ``/healthz``; None: not known.
        threads: broker calls at once; calls that wait for a change hold none.
    """
    hub = Hub(changes)

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        yield
        hub.close()

    app = FastAPI(
        title="Moorage", version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None
    )
    calls = rest.Calls(acting, hub, threads)
    login = authenticate if isinstance(authenticate, Bearer) else None
    problems.install(app)
    app.state.end_polls = hub.close
    app.add_api_route("/healthz", _health(alive), methods=["GET"], response_model=None)
    if api:
        app.add_api_route(f"{PREFIX}/openapi.json", _openapi, methods=["GET"], response_model=None)
        rest.add_routes(app, calls)
    pages.add_routes(app, calls, login)
    _guard(app, authenticate, has_login=login is not None)
    return app


def _guard(app: FastAPI, authenticate: Authenticate, *, has_login: bool) -> None:
    """Close everything, then compress answers (the last one added sees a request first)."""
    open_paths = frozenset({"/healthz", "/login", "/icon.svg"} if has_login else {"/healthz"})
    open_below = "/static/" if has_login else ""
    app.add_middleware(Guard, authenticate=authenticate, open_paths=open_paths, open_below=open_below)
    app.add_middleware(GZipMiddleware, minimum_size=1024)


def _health(alive: Callable[[], bool] | None) -> Callable[[Request], Response]:
    def health(_request: Request) -> Response:
        """Open to everybody: the version, and whether the broker's loop lives."""
        lives = None if alive is None else alive()
        broker = {None: "unknown", True: "alive", False: "dead"}[lives]
        return JSONResponse({"version": __version__, "broker": broker}, 503 if lives is False else 200)

    return health


async def _openapi(_request: Request) -> Response:
    return JSONResponse(openapi.document())
