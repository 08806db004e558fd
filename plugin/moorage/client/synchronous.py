"""The four protocols over HTTP."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Mapping
from functools import wraps
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, cast

import httpx

from moorage.api.auth import Principal
from moorage.api.protocols import LeaseApi, NodeApi, OpsApi, TrainApi
from moorage.api.routes import BY_METHOD, Route
from moorage.client import wire
from moorage.client.retry import Retry

P = ParamSpec("P")
R = TypeVar("R")


def over_http(method: Callable[Concatenate[Any, P], R]) -> Callable[Concatenate[Any, P], R]:
    """A protocol's method, called over HTTP; its name and signature are the protocol's."""
    route = BY_METHOD[method.__name__]
    signature = inspect.signature(method)

    @wraps(method)
    def call(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> R:
        bound = signature.bind(self, *args, **kwargs)
        return cast(R, self._call(route, dict(bound.arguments)))

    return call


class Client:
    """`api.protocols.Api` of the broker at `url`. May be used by several threads; not across a fork.

    Args:
        token: shown as a bearer token; never logged.
        timeout: seconds to connect, and for an answer (after a long poll's own wait).
        retry_for: seconds without an answer after which `Unavailable` is raised.
        act_for: the person for whom an operator's token acts, for the audit log.
    """

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
        self._http = httpx.Client(base_url=self.url, timeout=timeout, verify=wire.is_secure(self.url))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Client({self.url!r})"

    def close(self) -> None:
        """Close the connections, also those of clients made by `acting`."""
        self._http.close()

    def acting(self, principal: Principal) -> Client:
        """The same broker and token, speaking for `principal`; shares this client's connections."""
        other = Client.__new__(Client)
        other.url, other._timeout, other._retry_for, other._http = self.url, self._timeout, self._retry_for, self._http
        other._headers = self._headers | wire.headers(None, principal.name)
        return other

    def _call(self, route: Route, arguments: Mapping[str, Any]) -> Any:
        outgoing = route.outgoing(arguments)
        timeout = wire.seconds(self._timeout, float(arguments.get("timeout", 0)))
        retry = Retry(self.url, self._retry_for, self._timeout)
        while True:
            started = time.monotonic()
            request = wire.request(self._http, outgoing, timeout)
            request.headers.update(self._headers)
            answer = self._try(request)
            if isinstance(answer, httpx.Response):
                return wire.result(route, answer, self.url)
            time.sleep(retry.pause(started, time.monotonic(), answer))

    def _try(self, request: httpx.Request) -> httpx.Response | str:
        """The answer, or why there is none yet."""
        try:
            answer = self._http.send(request)
        except wire.BROKEN as error:
            return wire.why(error)
        return wire.busy(answer) or answer

    # Owners.
    put_code = over_http(LeaseApi.put_code)
    get_code = over_http(LeaseApi.get_code)
    submit = over_http(LeaseApi.submit)
    run = over_http(LeaseApi.run)
    get = over_http(LeaseApi.get)
    find = over_http(LeaseApi.find)
    watch = over_http(LeaseApi.watch)
    unwatch = over_http(LeaseApi.unwatch)
    resize = over_http(LeaseApi.resize)
    release = over_http(LeaseApi.release)
    give_back = over_http(LeaseApi.give_back)
    note = over_http(LeaseApi.note)
    logs = over_http(LeaseApi.logs)
    events = over_http(LeaseApi.events)
    ledger = over_http(LeaseApi.ledger)
    explain = over_http(LeaseApi.explain)
    what_if = over_http(LeaseApi.what_if)
    # Trainers.
    renew = over_http(TrainApi.renew)
    # Agents.
    report = over_http(NodeApi.report)
    orders = over_http(NodeApi.orders)
    put_logs = over_http(NodeApi.put_logs)
    # Operators.
    fleet = over_http(OpsApi.fleet)
    cordon = over_http(OpsApi.cordon)
    drain = over_http(OpsApi.drain)
    lose = over_http(OpsApi.lose)
    priority = over_http(OpsApi.priority)
    freeze = over_http(OpsApi.freeze)
    policy = over_http(OpsApi.policy)
    apply_policy = over_http(OpsApi.apply_policy)
    policy_history = over_http(OpsApi.policy_history)
    make_token = over_http(OpsApi.make_token)
    tokens = over_http(OpsApi.tokens)
    revoke_token = over_http(OpsApi.revoke_token)
