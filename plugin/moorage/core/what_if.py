"""Where a request would go now, if it were alone in the queue. Changes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from moorage.core.admit import never_because
from moorage.core.columns import columns
from moorage.core.decision import Code, Reason
from moorage.core.explain import wanted, where, why_waiting
from moorage.core.place import Placed, place
from moorage.core.policy import Policy
from moorage.core.request import Request
from moorage.core.state import State


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """The answer. `fits`: now. `ever`: on this fleet when it is empty."""

    fits: bool
    ever: bool
    sentence: str
    #: node -> device indices, when it fits.
    placement: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    level: str = ""
    reasons: tuple[Reason, ...] = ()


def what_if(state: State, policy: Policy, request: Request, now: datetime) -> WhatIf:  # noqa: ARG001 - hazards will need it
    """Place the min gang, as a job of many nodes would be. "No" is a value with reasons, never an exception."""
    workers = request.workers[0]
    if not state.nodes:
        reasons = (Reason(code=Code.NO_NODES),)
        return WhatIf(fits=False, ever=True, sentence=why_waiting(request, workers, reasons), reasons=reasons)
    fleet = columns(state, policy)
    answer = place(fleet, request, workers)
    if isinstance(answer, Placed):
        return _fits(request, workers, answer)
    best = place(fleet.emptied(), request, workers)
    if not isinstance(best, Placed):
        never = Reason(code=Code.NEVER)
        sentence = f"{wanted(request, workers)}: {never_because(request, workers, best)}"
        return WhatIf(fits=False, ever=False, sentence=sentence, reasons=(never, *best.reasons))
    sentence = why_waiting(request, workers, answer.reasons)
    return WhatIf(fits=False, ever=True, sentence=sentence, reasons=answer.reasons)


def _fits(request: Request, workers: int, placed: Placed) -> WhatIf:
    return WhatIf(
        fits=True,
        ever=True,
        sentence=f"{wanted(request, workers)}: fits now on {where(placed)}",
        placement={spot.node: spot.gpus for spot in placed.spots},
        level=placed.level,
    )
