"""What the recorder wants written to MLflow: values with fixed times, so that writing one twice changes nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import IntEnum
from typing import Any, Literal

RunStatus = Literal["SCHEDULED", "RUNNING", "FINISHED", "FAILED", "KILLED"]


class Worth(IntEnum):
    """What a full spool may give up, cheapest first."""

    #: One cumulative cost point: a later one of the same lease says more.
    COST = 0
    #: Points of a training curve: every second one may go.
    SERIES = 1
    #: Never given up.
    KEEP = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One metric value. MLflow drops a second one that is equal in all four fields."""

    key: str
    value: float
    #: Unix milliseconds.
    at: int
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenRun:
    """There is a run for this lease (epoch 0) or this attempt of it (epoch >= 1)."""

    lease: str
    epoch: int
    name: str
    #: Unix milliseconds.
    start: int
    tags: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """Metric points, params and tags of one run."""

    lease: str
    epoch: int
    points: tuple[Point, ...] = ()
    params: Mapping[str, str] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    worth: Worth = Worth.KEEP


@dataclass(frozen=True, slots=True, kw_only=True)
class Attach:
    """A text artifact. `table`: it is JSON in MLflow's table format."""

    lease: str
    epoch: int
    path: str
    text: str
    table: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SetStatus:
    """The run's status; `end` (Unix milliseconds) for one that is over."""

    lease: str
    epoch: int
    status: RunStatus
    end: int | None = None


Operation = OpenRun | Write | Attach | SetStatus

_KINDS: Mapping[str, type[OpenRun | Write | Attach | SetStatus]] = {
    kind.__name__: kind for kind in (OpenRun, Write, Attach, SetStatus)
}


def worth(operation: Operation) -> Worth:
    """What a full spool may do with it."""
    return operation.worth if isinstance(operation, Write) else Worth.KEEP


def encode(operation: Operation) -> str:
    """JSON. Not the api's codec: that one turns a loss of NaN into null, and MLflow takes NaN."""
    return json.dumps({"kind": type(operation).__name__, **asdict(operation)})


def decode(text: str) -> Operation:
    """The operation back from `encode`."""
    fields: dict[str, Any] = json.loads(text)
    kind = _KINDS[fields.pop("kind")]
    if kind is Write:
        fields["points"] = tuple(Point(**point) for point in fields["points"])
        fields["worth"] = Worth(fields["worth"])
    return kind(**fields)
