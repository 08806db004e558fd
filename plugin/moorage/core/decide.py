"""The whole brain as one pure call: health -> attempts -> stops -> drops -> queue -> bounds -> elastic."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from moorage.core.attempts import attempts
from moorage.core.bounds import bounds
from moorage.core.decision import Decisions, Lose
from moorage.core.drops import drops
from moorage.core.elastic import elastic
from moorage.core.health import lost_at, lost_because
from moorage.core.policy import Policy
from moorage.core.queue import queue
from moorage.core.round import Round
from moorage.core.state import State
from moorage.core.stops import stops


def decide(state: State, policy: Policy, now: datetime) -> Decisions:
    """What should change now, in the order in which it is to be applied, and when to ask again.

    Pure: the same arguments give the same answer, and nothing is changed.
    """
    round_ = Round(state=state, policy=policy, now=now)
    for stage in STAGES:
        stage(round_)
    return Decisions(decisions=tuple(round_.decisions), wake_at=min(round_.times, default=None))


def health(round_: Round) -> None:
    """Nodes that are lost, whatever was on them."""
    for node in sorted(round_.state.nodes.values(), key=lambda node: node.id):
        why = lost_because(node, round_.state, round_.policy, round_.now)
        if why:
            round_.add(Lose(node=node.id, reason=why))
        else:
            round_.wake(lost_at(node, round_.state, round_.policy, round_.now))


#: In this order; each sees what the ones before it decided.
STAGES: tuple[Callable[[Round], None], ...] = (health, attempts, stops, drops, queue, bounds, elastic)
