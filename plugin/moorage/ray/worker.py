"""One training worker: take a seat, set the devices, run the user's loop, say how it ended."""

from __future__ import annotations

import json
import math
import os
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from moorage import settings
from moorage.checkpoint import Store
from moorage.core.invalid import Invalid
from moorage.ray.job import Job
from moorage.ray.link import RayLink
from moorage.ray.words import Joiner, LoopFailed, Stopped

#: Of a result: it travels in the agent's report.
RESULT_LIMIT = 64 * 1024

#: An ended lease is read whole, whatever number of attempts it had.
ANY_EPOCH = 1 << 40

Loop = Callable[[Any, Job], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """What every worker of a run is told."""

    loop: Loop
    config: Mapping[str, Any]
    #: Actor handle of the gang.
    gang: Any
    storage: str | None
    #: Storage of an ended lease, read where `storage` has no checkpoint yet.
    resume_from: str | None
    epoch: int
    keep: int
    global_batch: int
    samples_total: int | None
    #: Device seconds per local sample on a fake GPU; None on a real one.
    sample_s: float | None


def run(spec: Spec) -> None:
    """Runs on each worker. Rank 0 leaves the result with the gang.

    Raises:
        LoopFailed: the loop raised; carries the user's traceback.
        GangLost: through no fault of the loop.
    """
    link = RayLink(spec.gang)
    seat = link.join(_joiner())
    if seat.visible:
        # Ray gave each worker its own raylet's devices; peers on a node must see each other's. Before CUDA starts.
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, seat.visible))
    try:
        job = Job(
            seat,
            link,
            Store(spec.storage, epoch=spec.epoch, keep=spec.keep) if spec.storage else None,
            earlier=Store(spec.resume_from, epoch=ANY_EPOCH) if spec.resume_from else None,
            global_batch=spec.global_batch,
            samples_total=spec.samples_total,
            sample_s=_sample_s(spec),
        )
        result = as_json(spec.loop(spec.config, job))
    except Stopped:
        return
    except Exception:  # noqa: BLE001 - whatever it is, it is the user's, and travels as text.
        raise LoopFailed(_users_part(traceback.format_exc())) from None
    job.finish()
    if job.rank == 0:
        link.conclude(seat.group, result, job.checkpoint)


def _sample_s(spec: Spec) -> float | None:
    """This node's own word, where its raylet has one: a fleet may have fake and real GPUs."""
    here = os.environ.get(settings.FAKE_SAMPLE_SECONDS)
    return float(here) if here else spec.sample_s


def as_json(result: Any) -> str:
    """The loop's result as JSON; NumPy numbers become numbers.

    Raises:
        Invalid: it is not JSON, or larger than 64 KiB.
    """
    try:
        text = json.dumps(_finite(json.loads(json.dumps({} if result is None else result, default=_number))))
    except (TypeError, ValueError) as error:
        raise Invalid("result", type(result).__name__, f"return JSON from train_loop ({error})") from error
    if len(text.encode()) > RESULT_LIMIT:
        raise Invalid("result", f"{len(text)} characters", "return at most 64 KiB; publish() arrays and return the URL")
    return text


def _finite(value: Any) -> Any:
    """What is not a number is not known: JSON has no NaN."""
    match value:
        case dict():
            return {key: _finite(item) for key, item in value.items()}
        case list():
            return [_finite(item) for item in value]
        case float() if not math.isfinite(value):
            return None
        case _:
            return value


def _number(value: Any) -> Any:
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    raise TypeError(f"a {type(value).__name__} is not JSON")


def _users_part(text: str) -> str:
    """Without the frame of this file."""
    lines = text.splitlines(keepends=True)
    mine = next((i for i, line in enumerate(lines) if __file__ in line), None)
    if mine is None:
        return text
    after = next((i for i in range(mine + 1, len(lines)) if lines[i].startswith("  File ")), None)
    return text if after is None else "".join(lines[:mine] + lines[after:])


def _joiner() -> Joiner:
    from moorage.ray.internals import this_worker

    return this_worker()
