"""What an Airflow trigger needs, without blocking its event loop."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import wraps
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, cast

import httpx

from moorage.api.protocols import LeaseApi
from moorage.api.routes import BY_METHOD, Route
from moorage.client import wire
from moorage.client.retry import Retry

P = ParamSpec("P")
R = TypeVar("R")


def over_http(method: Callable[Concatenate[Any, P], R]) -> Callable[Concatenate[Any, P], Awaitable[R]]:
    """A protocol's method, awaited over HTTP; its name and arguments are the protocol's."""
    route = BY_METHOD[method.__name__]
    signature = inspect.signature(method)

    @wraps(method)
    async def call(self: AsyncClient, /, *args: P.args, **kwargs: P.kwargs) -> R:
        bound = signature.bind(self, *args, **kwargs)
        return cast(R, await self._call(route, dict(bound.arguments)))

    return call


class AsyncClient:
    """`watch`, `unwatch` and `get` of the broker at `url`; arguments as `Client` has them. One event loop."""

    def __init__(
        self,
        url: str,
        token: str | None,
        *,
        timeout: float = 10,
        retry_for: float = 30,
        act_for: str | None = None,
    ) -> None:
        self.url = wire.base_url(url)
        self._timeout = timeout
        self._retry_for = retry_for
        self._headers = wire.headers(token, act_for)
        self._http = httpx.AsyncClient(base_url=self.url, timeout=timeout, verify=wire.is_secure(self.url))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"AsyncClient({self.url!r})"

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def _call(self, route: Route, arguments: Mapping[str, Any]) -> Any:
        outgoing = route.outgoing(arguments)
        timeout = wire.seconds(self._timeout, float(arguments.get("timeout", 0)))
        retry = Retry(self.url, self._retry_for, self._timeout)
        while True:
            started = time.monotonic()
            request = wire.request(self._http, outgoing, timeout)
            request.headers.update(self._headers)
            answer = await self._try(request)
            if isinstance(answer, httpx.Response):
                return wire.result(route, answer, self.url)
            await asyncio.sleep(retry.pause(started, time.monotonic(), answer))

    async def _try(self, request: httpx.Request) -> httpx.Response | str:
        """The answer, or why there is none yet."""
        try:
            answer = await self._http.send(request)
        except wire.BROKEN as error:
            return wire.why(error)
        return wire.busy(answer) or answer

    get = over_http(LeaseApi.get)
    watch = over_http(LeaseApi.watch)
    unwatch = over_http(LeaseApi.unwatch)
