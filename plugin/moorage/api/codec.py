"""One JSON codec for every value on the wire and in the database."""

from __future__ import annotations

from collections.abc import Hashable
from functools import cache
from typing import Any, TypeVar, cast

from pydantic import TypeAdapter, ValidationError

from moorage.core.invalid import Invalid

T = TypeVar("T")


@cache
def _cached(kind: Hashable) -> TypeAdapter[Any]:
    return TypeAdapter(cast(Any, kind))


def adapter(kind: Any) -> TypeAdapter[Any]:
    """The (cached) pydantic adapter of a type."""
    return _cached(kind)


def dumps(value: object, kind: Any = None) -> bytes:
    """JSON of a value; decimals are strings, times are ISO 8601. `kind` where it is not the value's own class."""
    return adapter(kind or type(value)).dump_json(value)


def loads(kind: type[T], text: bytes | str) -> T:
    """The value; unknown fields are ignored, so that a newer minor version can be read.

    Raises:
        Invalid: naming the first field that is wrong, its value and the fix.
    """
    try:
        return cast(T, adapter(kind).validate_json(text))
    except ValidationError as error:
        raise invalid(error) from error


def plain(value: object, kind: Any = None) -> Any:
    """The value as JSON-able dicts, lists and scalars."""
    return adapter(kind or type(value)).dump_python(value, mode="json")


def build(kind: type[T], value: object) -> T:
    """The value of `kind` from plain dicts and lists (for example TOML). Raises `Invalid` like `loads`."""
    try:
        return cast(T, adapter(kind).validate_python(value))
    except ValidationError as error:
        raise invalid(error) from error


def invalid(error: ValidationError) -> Invalid:
    """Our sentence for pydantic's first complaint; a complaint of our own passes as it is."""
    first = error.errors()[0]
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, Invalid):
        return cause
    where = ".".join(str(part) for part in first["loc"]) or "body"
    return Invalid(where, first.get("input"), first["msg"])
