"""From an operator's arguments, often strings after templating, to a `Request` and a `Job`. No clock in here."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from moorage.api import codec
from moorage.core.invalid import Invalid
from moorage.core.request import Request, Topology

#: What Jinja makes of a value that is not there.
_ABSENT = ("", "None")


def given(value: object) -> bool:
    """Whether an optional argument was given; a template that renders to nothing was not."""
    return value is not None and not (isinstance(value, str) and value.strip() in _ABSENT)


def request(options: Mapping[str, Any], now: datetime) -> Request:
    """The request that an operator's arguments mean.

    Args:
        options: `Request`'s fields, each as its own type or as the string a template made of it. A `timedelta` as
            ``deadline`` or ``stop_at`` counts from `now`.
        now: aware; the moment of submission.

    Raises:
        Invalid: naming the argument, its value and the fix.
    """
    plain = {name: value for name, value in options.items() if given(value)}
    for name, read in _READERS.items():
        if name in plain:
            plain[name] = read(name, plain[name])
    for name in ("deadline", "stop_at"):
        if name in plain:
            plain[name] = moment(name, plain[name], now)
    return codec.build(Request, plain)


def refuse_past(asked: Request, now: datetime) -> None:
    """Refuse a deadline that a first submission cannot keep; a late retry may still run. Raises `Invalid`."""
    if asked.deadline is not None and asked.deadline <= now:
        raise Invalid("deadline", asked.deadline.isoformat(), f"it is in the past ({now:%Y-%m-%d %H:%M} UTC now)")


def job(options: Mapping[str, Any]) -> dict[str, Any]:
    """``env``, ``secrets``, ``storage`` and ``max_retries`` as `Job` wants them; those not given are left out.

    Raises:
        Invalid: naming the argument, its value and the fix.
    """
    plain = {name: value for name, value in options.items() if given(value)}
    return {name: _JOB_READERS[name](name, value) for name, value in plain.items()}


def workers(field: str, value: object) -> tuple[int, int]:
    """``4``, ``(1, 4)``, ``"4"``, ``"1-4"`` or ``"(1, 4)"``; one number is both min and max."""
    if isinstance(value, str):
        value = _literal(re.sub(r"^\s*(\d+)\s*[-,:]\s*(\d+)\s*$", r"(\1, \2)", value))
    match value:
        case bool():
            pass
        case int():
            return value, value
        case [int(low), int(high)]:
            return low, high
    raise Invalid(field, value, "give one number, or (min, max)")


def names(field: str, value: object) -> tuple[str, ...]:
    """A sequence of strings, or one string with commas."""
    if isinstance(value, str):
        literal = _literal(value)
        value = literal if isinstance(literal, list | tuple) else value.split(",")
    if not isinstance(value, Iterable) or not all(isinstance(name, str) for name in value):
        raise Invalid(field, value, "give a list of names")
    return tuple(name.strip() for name in value if name.strip())


def topology(field: str, value: object) -> Topology:
    """A `Topology`, or a mapping (or its text) with ``required`` and ``preferred``."""
    if isinstance(value, Topology):
        return value
    known = ("required", "preferred")
    written = _literal(value) if isinstance(value, str) else value
    if isinstance(written, Mapping):
        written = {key: level for key, level in written.items() if given(level)}
    chosen = mapping(field, written)
    for key in chosen:
        if key not in known:
            raise Invalid(f"{field}.{key}", chosen[key], f"unknown; possible: {', '.join(known)}")
    return Topology(**chosen)


def mapping(field: str, value: object) -> dict[str, str]:
    """A mapping of strings, or the text of one."""
    if isinstance(value, str):
        value = _literal(value)
    if not isinstance(value, Mapping):
        raise Invalid(field, value, "give a mapping of strings")
    for key, item in value.items():
        if not isinstance(key, str) or not isinstance(item, str):
            raise Invalid(f"{field}.{key}", item, "must be a string")
    return dict(value)


def argv(field: str, value: object) -> tuple[str, ...]:
    """Words of a command; numbers become words."""
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise Invalid(field, value, "give a list of words, for example ['--epochs', 3]")
    return tuple(str(word) for word in value)


def moment(field: str, value: object, now: datetime) -> datetime:
    """An aware time: a datetime, an ISO 8601 string, or a `timedelta` from `now`."""
    match value:
        case timedelta():
            return now + value
        case datetime():
            at = value
        case str():
            try:
                at = datetime.fromisoformat(value.strip())
            except ValueError:
                raise Invalid(field, value, "give ISO 8601, for example 2026-11-30T20:00:00+00:00") from None
        case _:
            raise Invalid(field, value, "give a timedelta, a datetime or an ISO 8601 string")
    if at.tzinfo is None:
        raise Invalid(field, value, "give a time with a time zone, for example 2026-11-30T20:00:00+00:00")
    return at


def whole(field: str, value: object) -> int:
    """A whole number, or its text."""
    try:
        return int(str(value))
    except ValueError:
        raise Invalid(field, value, "give a whole number") from None


def earliest(*moments: datetime | None) -> datetime | None:
    """The first of those that are known."""
    return min((at for at in moments if at is not None), default=None)


def _literal(text: str) -> object:
    """A Python or JSON literal; the text itself if it is neither."""
    for read in (ast.literal_eval, json.loads):
        try:
            return read(text.strip())
        except (ValueError, SyntaxError):
            continue
    return text


def _text(field: str, value: object) -> str:
    if not isinstance(value, str):
        raise Invalid(field, value, "must be a string")
    return value


_JOB_READERS: Mapping[str, Callable[[str, Any], Any]] = {
    "env": mapping,
    "secrets": mapping,
    "storage": _text,
    "max_retries": whole,
}
_READERS: Mapping[str, Callable[[str, Any], Any]] = {
    "workers": workers,
    "models": names,
    "topology": topology,
    "labels": mapping,
}
