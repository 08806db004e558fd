"""What can never be right on this fleet is refused at once, with the field, its value and the fix."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from itertools import islice

from moorage.core.columns import columns
from moorage.core.explain import excluded
from moorage.core.fleet import Node
from moorage.core.gang import find_place
from moorage.core.invalid import Invalid
from moorage.core.job import Job
from moorage.core.place import NotPlaced
from moorage.core.policy import Policy
from moorage.core.request import Request
from moorage.core.state import State

#: Nodes that are tried first.
SOME = 128


def admit(request: Request, job: Job | None, state: State, policy: Policy, now: datetime) -> None:
    """Return if the request may wait for its turn.

    A fleet without nodes refuses nothing for its size: nodes may still join.

    Raises:
        Invalid: the request can never be granted on this fleet, or is already over.
    """
    possible(request, policy, now)
    if job is None and request.stop_at is None:
        raise Invalid("stop_at", None, "a lease without a job needs a time at which it is stopped")
    if state.nodes:
        _models(request, state)
        _largest(request, state)
        _ever(request, job, state, policy)


def possible(request: Request, policy: Policy, now: datetime) -> None:
    """Refuse what can be right on no fleet.

    Raises:
        Invalid: a topology level that policy does not know, or a time that is over.
    """
    _levels(request, policy)
    _times(request, now)


def _levels(request: Request, policy: Policy) -> None:
    wish = request.topology
    for field, level in (("topology.required", wish.required), ("topology.preferred", wish.preferred)):
        if level is not None and level not in policy.level_names:
            raise Invalid(field, level, f"name one of the fleet's levels: {', '.join(policy.level_names)}")


def _times(request: Request, now: datetime) -> None:
    for field, at in (("deadline", request.deadline), ("stop_at", request.stop_at)):
        if at is not None and at <= now:
            raise Invalid(field, at.isoformat(), f"give a time in the future; it is {now.isoformat()}")


def _models(request: Request, state: State) -> None:
    if not request.models or any(_of_models(request, state)):
        return
    known = sorted({gpu.model for node in state.nodes.values() for gpu in node.gpus})
    raise Invalid("models", request.models, f"the fleet has {_listed(known)}")


def _listed(words: Iterable[str]) -> str:
    return ", ".join(words) or "no GPU"


def _largest(request: Request, state: State) -> None:
    largest = max(len(node.gpus) for node in state.nodes.values())
    if request.gpus_per_worker > largest:
        raise Invalid("gpus_per_worker", request.gpus_per_worker, f"can never fit: largest node has {largest}")


def _ever(request: Request, job: Job | None, state: State, policy: Policy) -> None:
    """What fits on some of the nodes fits on all: most requests are let in without a look at the whole fleet."""
    some = State(nodes=dict(islice(_of_models(request, state), SOME)))
    if some.nodes and not isinstance(find_place(columns(some, policy).emptied(), request, job)[1], NotPlaced):
        return
    count, answer = find_place(columns(state, policy).emptied(), request, job)
    if isinstance(answer, NotPlaced):
        raise Invalid("workers", request.workers, never_because(request, count, answer))


def _of_models(request: Request, state: State) -> Iterator[tuple[str, Node]]:
    for name, node in state.nodes.items():
        if not request.models or any(gpu.model in request.models for gpu in node.gpus):
            yield name, node


def never_because(request: Request, workers: int, answer: NotPlaced) -> str:
    """Why the gang does not fit even on the empty fleet that gave this answer."""
    counted = [reason for reason in answer.reasons if reason.nodes]
    why = f"; {excluded(counted)}" if counted else ""
    return f"can never fit: {_room(request, workers, answer)}{why}"


def _room(request: Request, workers: int, answer: NotPlaced) -> str:
    facts = answer.reasons[0].facts
    if "level" not in facts:
        return f"the whole fleet has room for {facts['fits']} of {workers} workers"
    needed = workers * request.gpus_per_worker
    largest = f"{facts['largest']} with {facts['free']}" if facts["largest"] else "none"
    return f"it needs {needed} GPUs in one {facts['level']}, and the largest {facts['level']} is {largest}"
