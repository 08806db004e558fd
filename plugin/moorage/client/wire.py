"""What both clients share: headers, and what an answer or a failure means. No connection here."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote

import httpx

from moorage import __version__
from moorage.api.codec import loads
from moorage.api.errors import Conflict, Denied, Invalid, MoorageError, NotFound, Unavailable
from moorage.api.routes import ACT_FOR, PREFIX, Outgoing, Route
from moorage.api.versions import HEADER, work_together

#: Statuses of a server or proxy that cannot answer now.
RETRIED = frozenset({502, 503, 504})
#: Failures without an answer. Repeating is right only because every call of the protocols is safe to repeat.
BROKEN = (httpx.NetworkError, httpx.TimeoutException, httpx.RemoteProtocolError)

_BY_STATUS: Mapping[int, Callable[[str], MoorageError]] = {
    401: Denied,
    403: Denied,
    404: NotFound,
    409: Conflict,
}


def base_url(url: str) -> str:
    """The address without a trailing slash.

    Raises:
        Invalid: it is not an http or https address.
    """
    scheme, _, rest = url.partition("://")
    if scheme not in ("http", "https") or not rest.strip("/"):
        raise Invalid("url", url, "give an address like http://127.0.0.1:8740")
    return url.rstrip("/")


def is_secure(url: str) -> bool:
    """Whether certificates matter; where not, they need not be loaded, which takes as long as a call."""
    return url.startswith("https://")


def headers(token: str | None, act_for: str | None) -> dict[str, str]:
    """Headers of every call; never logged.

    Raises:
        Invalid: the token could not be a token; it is not shown.
    """
    sent = {HEADER: __version__, "User-Agent": f"moorage/{__version__}"}
    if token is not None:
        if not (token.isascii() and token.isprintable() and token and " " not in token):
            raise Invalid("token", "(not shown)", "give the one word that `moorage token create` printed")
        sent["Authorization"] = f"Bearer {token}"
    if act_for is not None:
        sent[ACT_FOR] = quote(act_for, safe="")
    return sent


def request(client: httpx.Client | httpx.AsyncClient, call: Outgoing, timeout: httpx.Timeout) -> httpx.Request:
    """The HTTP request of a call."""
    kind = {"Content-Type": call.content_type} if call.content_type else {}
    return client.build_request(
        call.verb, PREFIX + call.path, params=dict(call.query), content=call.content, headers=kind, timeout=timeout
    )


def seconds(timeout: float, poll: float) -> httpx.Timeout:
    """A long poll waits for its answer as long as it asked the broker to wait, and then as long as any call."""
    return httpx.Timeout(timeout, read=timeout + poll)


def result(route: Route, answer: httpx.Response, url: str) -> Any:
    """The value of an answer, or its error raised.

    Raises:
        Invalid, NotFound, Conflict, Denied, Unavailable: as the broker said it.
    """
    check_version(answer, url)
    if answer.is_success:
        return route.load(answer.content)
    raise failure(answer, url)


def busy(answer: httpx.Response) -> str | None:
    """Why a server or proxy cannot answer now; None: this is an answer."""
    if answer.status_code not in RETRIED:
        return None
    said = problem(answer)
    return str(said["detail"]) if said else f"it answered {answer.status_code} ({answer.reason_phrase})"


def check_version(answer: httpx.Response, url: str) -> None:
    """Refuse a broker that is more than one minor version away."""
    theirs = answer.headers.get(HEADER, __version__)
    if not work_together(__version__, theirs):
        raise Conflict(
            f"the broker at {url} is Moorage {theirs} and this client is {__version__}: "
            "bring them within one minor version of each other"
        )


def failure(answer: httpx.Response, url: str) -> MoorageError | Invalid:
    """The error of an answer that is not a success."""
    said = problem(answer)
    if said is None:
        return Unavailable(f"{url} answered {answer.status_code} without a reason: is a Moorage broker there?")
    if "field" in said:
        return _invalid(said)
    other = Conflict if answer.is_client_error else Unavailable
    return _BY_STATUS.get(answer.status_code, other)(str(said["detail"]))


def problem(answer: httpx.Response) -> Mapping[str, Any] | None:
    """The problem document (RFC 9457) of an answer. None: it is not one, so a proxy or another server spoke."""
    if not answer.headers.get("content-type", "").startswith("application/problem+json"):
        return None
    try:
        said = loads(dict[str, Any], answer.content)
    except Invalid:
        return None
    return said if "detail" in said else None


def _invalid(said: Mapping[str, Any]) -> Invalid:
    error = Invalid(str(said["field"]), _tuples(said.get("value")), str(said.get("fix", "")))
    # JSON has fewer types than Python; the sentence stays the broker's.
    error.args = (said["detail"],)
    return error


def _tuples(value: Any) -> Any:
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value


def why(error: httpx.TransportError) -> str:
    """What went wrong in the words of the operating system where it knows: ``connection refused``."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, socket.gaierror):
            return "its name cannot be resolved"
        if isinstance(cause, OSError) and cause.errno is not None and cause.errno in errno.errorcode:
            return os.strerror(cause.errno).lower()
        cause = cause.__cause__ or cause.__context__
    if isinstance(error, httpx.TimeoutException):
        return "it did not answer in time"
    text = str(error) or type(error).__name__
    return text[0].lower() + text[1:]
