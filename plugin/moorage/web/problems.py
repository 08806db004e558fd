"""Errors as problem documents (RFC 9457), with the sentence that the error has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse, Response
from pydantic_core import PydanticSerializationError
from starlette.exceptions import HTTPException as StarletteHTTPException

from moorage.api.codec import plain
from moorage.api.errors import Conflict, Denied, Invalid, NotFound, Unavailable

STATUS: Mapping[type[Exception], int] = {Invalid: 422, NotFound: 404, Conflict: 409, Denied: 403, Unavailable: 503}


def problem(status: int, kind: str, sentence: str, **more: Any) -> Response:
    """A problem document; `kind` is a word that programs can rely on."""
    body = {"type": f"urn:moorage:{kind}", "title": kind, "status": status, "detail": sentence, **more}
    return JSONResponse(body, status, headers={"Cache-Control": "no-store"}, media_type="application/problem+json")


def of_error(error: Exception) -> Response:
    """The problem document of one of our errors, or of an HTTP error of the framework."""
    if isinstance(error, Invalid):
        return problem(422, "invalid", str(error), field=error.field, value=_json(error.value), fix=error.fix)
    if isinstance(error, StarletteHTTPException):
        return problem(error.status_code, "http", str(error.detail))
    return problem(STATUS.get(type(error), 500), type(error).__name__.lower(), str(error))


def not_authenticated(error: Exception) -> Response:
    """No token, or a wrong one."""
    answer = problem(401, "denied", str(error))
    answer.headers["WWW-Authenticate"] = "Bearer"
    return answer


def install(app: FastAPI) -> None:
    """Answer every error of the app with a problem document."""
    for kind in (*STATUS, StarletteHTTPException, HTTPException):
        app.add_exception_handler(kind, _known)
    app.add_exception_handler(Exception, _unknown)


def _known(_: Request, error: Exception) -> Response:
    return of_error(error)


def _unknown(_request: Request, _error: Exception) -> Response:
    # Starlette raises it again after this answer, so that the server logs it with its trace.
    return problem(500, "failed", "the broker failed at this request; its log says where")


def _json(value: object) -> Any:
    try:
        return plain(value)
    except (PydanticSerializationError, ValueError, TypeError):
        return repr(value)
