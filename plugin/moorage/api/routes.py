"""Where each call of the protocols lives over HTTP: one table, read by the client and by the server.

The table has only verbs and paths; arguments and answers are the protocol methods' own, so the two sides cannot drift.
An argument named in the path goes there. A GET sends the others as its query (text as it is, anything else as JSON).
A POST sends them as one JSON object, or, where `Route.body` names an argument, that argument alone.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any
from urllib.parse import quote

from pydantic import BaseModel, ValidationError, create_model

from moorage.api.codec import adapter, dumps, invalid, plain
from moorage.api.protocols import Api
from moorage.core.invalid import Invalid

#: Everything below is at this path.
PREFIX = "/api/v1"
#: Who an operator's token speaks for, for the audit log (percent-encoded).
ACT_FOR = "Moorage-Act-For"
JSON = "application/json"
BYTES = "application/octet-stream"
#: Largest request body in bytes; code may be larger.
BODY_LIMIT = 2 << 20
CODE_LIMIT = 40 << 20


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A call as it goes over the wire. `path` is below `PREFIX`."""

    verb: str
    path: str
    query: Mapping[str, str]
    content: bytes | None
    content_type: str | None


@dataclass(frozen=True, slots=True)
class Route:
    """One protocol method over HTTP."""

    method: str
    verb: str
    path: str
    #: Argument that is the whole body. None: a POST sends a JSON object of the arguments that are not in the path.
    body: str | None = None
    #: Largest body in bytes.
    limit: int = BODY_LIMIT

    @property
    def kinds(self) -> Mapping[str, Any]:
        """Argument name -> its type, in the protocol's order."""
        return {name: parameter.annotation for name, parameter in _parameters(self.method).items()}

    @property
    def answer(self) -> Any:
        """Type of the answer."""
        return _signature(self.method).return_annotation

    @property
    def polls(self) -> bool:
        """Whether the call may wait for a change."""
        return "timeout" in self.kinds

    @property
    def in_path(self) -> tuple[str, ...]:
        return tuple(name for name in self.kinds if f"{{{name}}}" in self.path)

    @property
    def in_query(self) -> tuple[str, ...]:
        """Arguments of the query string: all that have no better place."""
        if self.verb == "POST" and self.body is None:
            return ()
        return tuple(name for name in self.kinds if name not in self.in_path and name != self.body)

    @property
    def in_object(self) -> tuple[str, ...]:
        """Arguments of the JSON object that a POST sends."""
        if self.verb == "GET" or self.body is not None:
            return ()
        return tuple(name for name in self.kinds if name not in self.in_path)

    def required(self, name: str) -> bool:
        return _parameters(self.method)[name].default is inspect.Parameter.empty

    def outgoing(self, arguments: Mapping[str, Any]) -> Outgoing:
        """The request of a call. Raises `Invalid` if an argument cannot be a part of a path."""
        kinds = self.kinds
        for name in self.in_path:
            if arguments[name] in ("", ".", ".."):
                raise Invalid(name, arguments[name], "must not be empty")
        path = self.path.format_map({name: quote(str(arguments[name]), safe="") for name in self.in_path})
        query = {
            name: _to_query(arguments[name], kinds[name]) for name in self.in_query if arguments.get(name) is not None
        }
        if self.body is not None:
            value, kind = arguments[self.body], kinds[self.body]
            return Outgoing(self.verb, path, query, *(_to_body(value, kind)))
        if self.verb == "GET":
            return Outgoing(self.verb, path, query, None, None)
        sent = {name: plain(arguments[name], kinds[name]) for name in self.in_object if name in arguments}
        return Outgoing(self.verb, path, query, dumps(sent, dict[str, Any]), JSON)

    def incoming(self, path: Mapping[str, str], query: Mapping[str, str], content: bytes) -> dict[str, Any]:
        """The arguments of a request.

        Raises:
            Invalid: an argument is missing, or is not of its type.
        """
        arguments: dict[str, Any] = {name: path[name] for name in self.in_path}
        for name in self.in_query:
            if name in query:
                arguments[name] = _from_text(name, self.kinds[name], query[name])
            elif self.required(name):
                raise Invalid(name, None, "give it in the query")
        if self.body is not None:
            arguments[self.body] = _from_body(self.body, self.kinds[self.body], content)
        elif self.in_object:
            arguments |= _from_object(self, content)
        return arguments

    def dump(self, answer: object) -> tuple[bytes, str] | None:
        """Body and content type of an answer; None: there is nothing to say."""
        return None if self.answer is None else _to_body(answer, self.answer)

    def load(self, content: bytes) -> Any:
        """The answer of a call from its body."""
        return None if self.answer is None else _from_body(self.method, self.answer, content)


@cache
def _signature(method: str) -> inspect.Signature:
    return inspect.signature(getattr(Api, method), eval_str=True)


def _parameters(method: str) -> Mapping[str, inspect.Parameter]:
    return {name: value for name, value in _signature(method).parameters.items() if name != "self"}


@cache
def _model(method: str, names: tuple[str, ...]) -> type[BaseModel]:
    """A model of a POST's JSON object."""
    parameters = _parameters(method)
    fields: dict[str, Any] = {
        name: (
            parameters[name].annotation,
            ... if parameters[name].default is inspect.Parameter.empty else parameters[name].default,
        )
        for name in names
    }
    return create_model(method, **fields)


def _is_text(kind: Any) -> bool:
    return kind is str or kind == str | None


def _to_query(value: object, kind: Any) -> str:
    return str(value) if _is_text(kind) else dumps(value, kind).decode()


def _from_text(name: str, kind: Any, text: str) -> Any:
    return text if _is_text(kind) else _parse(name, kind, text.encode())


def _to_body(value: object, kind: Any) -> tuple[bytes, str]:
    return (bytes(value), BYTES) if isinstance(value, bytes) else (dumps(value, kind), JSON)


def _from_body(name: str, kind: Any, content: bytes) -> Any:
    return content if kind is bytes else _parse(name, kind, content)


def _parse(name: str, kind: Any, content: bytes) -> Any:
    try:
        return adapter(kind).validate_json(content)
    except ValidationError as error:
        raise _named(name, invalid(error)) from error


def _named(name: str, error: Invalid) -> Invalid:
    return Invalid(name, error.value, error.fix) if error.field == "body" else error


def _from_object(route: Route, content: bytes) -> dict[str, Any]:
    try:
        model = _model(route.method, route.in_object).model_validate_json(content or b"{}")
    except ValidationError as error:
        raise invalid(error) from error
    return {name: getattr(model, name) for name in route.in_object}


ROUTES: tuple[Route, ...] = (
    # Owners.
    Route("put_code", "POST", "/code", "code", CODE_LIMIT),
    Route("get_code", "GET", "/code/{digest}"),
    Route("submit", "POST", "/leases", "submission"),
    Route("find", "GET", "/leases"),
    Route("get", "GET", "/leases/{lease}"),
    Route("run", "POST", "/leases/{lease}/run"),
    # A heartbeat of the owner, so not a GET.
    Route("watch", "POST", "/leases/{lease}/watch"),
    Route("unwatch", "POST", "/leases/{lease}/unwatch"),
    Route("resize", "POST", "/leases/{lease}/resize"),
    Route("release", "POST", "/leases/{lease}/release"),
    Route("give_back", "POST", "/leases/{lease}/give-back"),
    Route("note", "POST", "/leases/{lease}/notes"),
    Route("logs", "GET", "/leases/{lease}/logs"),
    Route("ledger", "GET", "/leases/{lease}/ledger"),
    Route("explain", "GET", "/leases/{lease}/explanation"),
    Route("events", "GET", "/events"),
    # Changes nothing, but a request is too large for a query.
    Route("what_if", "POST", "/what-if", "request"),
    # Trainers.
    Route("renew", "POST", "/leases/{lease}/renew"),
    # Agents.
    Route("report", "POST", "/reports", "report"),
    Route("orders", "GET", "/nodes/{node}/orders"),
    Route("put_logs", "POST", "/nodes/{node}/logs", "text"),
    # Operators.
    Route("fleet", "GET", "/fleet"),
    Route("cordon", "POST", "/nodes/{node}/cordon"),
    Route("drain", "POST", "/nodes/{node}/drain"),
    Route("lose", "POST", "/nodes/{node}/lose"),
    Route("priority", "POST", "/leases/{lease}/priority"),
    Route("freeze", "POST", "/freeze"),
    Route("policy", "GET", "/policy"),
    Route("apply_policy", "POST", "/policy"),
    Route("policy_history", "GET", "/policy/history"),
    Route("make_token", "POST", "/tokens"),
    Route("tokens", "GET", "/tokens"),
    Route("revoke_token", "POST", "/tokens/{token_id}/revoke"),
)

BY_METHOD: Mapping[str, Route] = {route.method: route for route in ROUTES}
