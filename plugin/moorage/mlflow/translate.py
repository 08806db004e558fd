"""From journal rows to MLflow operations. Pure: the same rows give the same operations, so nothing doubles."""

from __future__ import annotations

from dataclasses import replace
from typing import assert_never

from moorage.api.values import Event, EventKind
from moorage.mlflow.opening import millis, name
from moorage.mlflow.operations import OpenRun, Operation, Point, RunStatus, SetStatus, Worth, Write
from moorage.mlflow.tracked import Tracked


def translate(event: Event, seen: Tracked) -> tuple[Tracked, list[Operation]]:
    """What one row of a lease that is tracked means for its runs."""
    match event.kind:
        case EventKind.GRANTED:
            return _granted(event, seen)
        case EventKind.STARTED:
            return _state(seen, "running")
        case EventKind.PROGRESS:
            return _progress(event, seen)
        case EventKind.RESIZED:
            return seen, [_attempt_workers(event, seen, "to")]
        case EventKind.RESUMED:
            return _resumed(event, seen)
        case EventKind.RETRIED:
            return _retried(event, seen)
        case EventKind.STOPPING:
            return _state(replace(seen, reason=event.sentence), "stopping")
        case EventKind.ENDED:
            ended = replace(seen, ended=millis(event.at), outcome=_text(event, "outcome"), reason=event.sentence)
            return ended, []
        case (
            EventKind.SUBMITTED
            | EventKind.HELD
            | EventKind.LOST
            | EventKind.WARNED
            | EventKind.NOTICE
            | EventKind.NODE
            | EventKind.ALLOCATION
            | EventKind.POLICY
            | EventKind.TOKEN
            | EventKind.NOTE
        ):
            return seen, []
        case _:
            assert_never(event.kind)


def told(event: Event, seen: Tracked) -> bool:
    """Whether the row belongs in the lease's table and timeline: of the heartbeats, only those with a new phase."""
    match event.kind:
        case EventKind.PROGRESS:
            return _text(event, "phase") != seen.phase
        case EventKind.NOTE | EventKind.TOKEN | EventKind.POLICY:
            return False
        case _:
            return True


def _granted(event: Event, seen: Tracked) -> tuple[Tracked, list[Operation]]:
    epoch, at = int(_number(event, "epoch") or seen.epoch + 1), millis(event.at)
    now = replace(seen, epoch=epoch, state="granted", phase="")
    tags = {
        "moorage.kind": "attempt",
        "moorage.lease": seen.lease,
        "moorage.epoch": str(epoch),
        "moorage.level": _text(event, "level"),
        "moorage.nodes": _text(event, "nodes"),
        "mlflow.source.name": "moorage",
        "mlflow.source.type": "JOB",
    }
    child = OpenRun(lease=seen.lease, epoch=epoch, name=f"attempt {epoch}", start=at, tags=tags)
    operations: list[Operation] = [
        child,
        _attempt_workers(event, now, "workers"),
        SetStatus(lease=seen.lease, epoch=0, status="RUNNING"),
        _tags(now),
    ]
    now, gpus = allocated(now, at, _count(event, "gpus"))
    return now, operations + gpus


def _progress(event: Event, seen: Tracked) -> tuple[Tracked, list[Operation]]:
    at = millis(event.at)
    step = int(_number(event, "step") or 0)
    values = {key: _number(event, key) for key in ("loss", "throughput")}
    values |= {
        name(key.removeprefix("metric.")): _number(event, key) for key in event.facts if key.startswith("metric.")
    }
    points = tuple(Point(key=k, value=v, at=at, step=step) for k, v in values.items() if v is not None)
    curve = [Write(lease=seen.lease, epoch=0, points=points, worth=Worth.SERIES)] if points else []
    now, gpus = allocated(replace(seen, phase=_text(event, "phase")), at, _count(event, "gpus"))
    return now, [*curve, *gpus]


def _resumed(event: Event, seen: Tracked) -> tuple[Tracked, list[Operation]]:
    at = millis(event.at)
    points = [
        Point(key=f"elastic/{key}", value=value, at=at, step=seen.step_at(at))
        for key in ("steps_lost", "seconds_stopped")
        if (value := _number(event, key)) is not None
    ]
    return seen, [Write(lease=seen.lease, epoch=0, points=tuple(points))] if points else []


def _retried(event: Event, seen: Tracked) -> tuple[Tracked, list[Operation]]:
    fault, interruption = bool(_number(event, "fault")), bool(_number(event, "interruption"))
    outcome = "failed" if fault else "interrupted" if interruption else "retried"
    end: RunStatus = "FAILED" if fault else "KILLED"
    operations: list[Operation] = [
        Write(lease=seen.lease, epoch=seen.epoch, tags=ended_tags(outcome, event.sentence)),
        SetStatus(lease=seen.lease, epoch=seen.epoch, status=end, end=millis(event.at)),
        SetStatus(lease=seen.lease, epoch=0, status="SCHEDULED"),
    ]
    now, state = _state(replace(seen, reason=event.sentence), "queued")
    return now, [*(operations if seen.epoch else []), *state]


def _state(seen: Tracked, state: str) -> tuple[Tracked, list[Operation]]:
    now = replace(seen, state=state)
    return now, [_tags(now)]


def _tags(seen: Tracked) -> Write:
    return Write(lease=seen.lease, epoch=0, tags={"moorage.state": seen.state})


def ended_tags(outcome: str, reason: str) -> dict[str, str]:
    return {"moorage.outcome": outcome, "moorage.reason": reason[:8000]}


def _attempt_workers(event: Event, seen: Tracked, fact: str) -> Write:
    at, workers = millis(event.at), _number(event, fact)
    step = seen.step_at(at)
    points = () if workers is None else (Point(key="attempt/workers", value=workers, at=at, step=step),)
    return Write(lease=seen.lease, epoch=seen.epoch or 1, points=points)


def allocated(seen: Tracked, at: int, gpus: int | None) -> tuple[Tracked, list[Operation]]:
    """gpu/allocated as a step function: the old value until the last millisecond, then the new one."""
    if gpus is None or gpus == seen.gpus:
        return seen, []
    # Two changes in one millisecond would let MLflow's "latest" be the larger of them.
    at = max(at, seen.gpus_at + 2)
    before = Point(key="gpu/allocated", value=seen.gpus, at=at - 1, step=seen.step_at(at - 1))
    after = Point(key="gpu/allocated", value=gpus, at=at, step=seen.step_at(at))
    write = Write(lease=seen.lease, epoch=0, points=(before, after))
    return replace(seen, gpus=gpus, gpus_at=at), [write]


def _number(event: Event, key: str) -> float | None:
    """None: the row does not say."""
    value = event.facts.get(key)
    if value is None or value == "":
        return None
    try:
        return float(value)
    except ValueError:
        return None


def _count(event: Event, key: str) -> int | None:
    value = _number(event, key)
    return None if value is None else int(value)


def _text(event: Event, key: str) -> str:
    return str(event.facts.get(key) or "")
