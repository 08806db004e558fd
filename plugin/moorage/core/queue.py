"""The queue: each lease in its order is granted, makes room for itself, or waits with reasons."""

from __future__ import annotations

from datetime import datetime

from moorage.core.decision import Code, Hold, Reason
from moorage.core.explain import clock, names, why_waiting
from moorage.core.gang import counts_to_try, find_place, grant
from moorage.core.lease import Lease
from moorage.core.order import ordered, quota_left, team_of
from moorage.core.place import Placed
from moorage.core.preempt import decisions, freed, keeps_waiting, plan, soon_free
from moorage.core.round import Round


def queue(round_: Round) -> None:
    """Try every queued lease once; small ones pass a large one that does not fit."""
    for lease in ordered(round_.state, round_.policy):
        if lease.not_before is not None and lease.not_before > round_.now:
            _back_off(round_, lease, lease.not_before)
            continue
        reason = _over_quota(round_, lease)
        if reason is not None:
            hold(round_, lease, (reason,))
        elif not round_.state.nodes:
            hold(round_, lease, (Reason(code=Code.NO_NODES),))
        else:
            _try(round_, lease)


def _back_off(round_: Round, lease: Lease, until: datetime) -> None:
    """Its sentence stays: the retry's own says what happened and when it is tried again."""
    round_.wake(until)
    reason = Reason(code=Code.BACK_OFF, facts={"at": clock(until)})
    round_.add(Hold(lease=lease.id, reasons=(reason,), reason=lease.reason))


def _over_quota(round_: Round, lease: Lease) -> Reason | None:
    left = quota_left(lease, round_.state, round_.policy)
    smallest = lease.request.workers[0] * lease.request.gpus_per_worker
    if left is None or smallest <= left:
        return None
    quota = team_of(lease.team, round_.policy).quota or 0
    return Reason(code=Code.QUOTA, facts={"team": lease.team, "quota": str(quota), "held": str(quota - left)})


def _try(round_: Round, lease: Lease) -> None:
    """Grant; or keep what drains already for it; or take from weaker claims, if that is a whole plan; or wait."""
    count, answer = find_place(round_.fleet, lease.request, lease.job, most=_most(round_, lease))
    if isinstance(answer, Placed):
        round_.add(grant(round_.fleet, lease, answer, count))
        return
    round_.waiting.append(lease)
    placed = keeps_waiting(round_, lease) or _preempt(round_, lease)
    if placed is None:
        hold(round_, lease, answer.reasons)
    else:
        _reserve(round_, lease, placed)


def _preempt(round_: Round, lease: Lease) -> Placed | None:
    chosen = plan(round_, lease, freed(round_.fleet, soon_free(round_)))
    if chosen is None:
        return None
    for decision in decisions(round_, lease, chosen):
        round_.add(decision)
    return chosen.placed


def _reserve(round_: Round, lease: Lease, placed: Placed) -> None:
    """Nobody behind it in the queue may have these GPUs; it is all computed anew in the next round."""
    round_.reserve(lease, placed.spots)
    round_.wake_in(round_.policy.rebalance_every_s)
    gpus = sum(len(spot.gpus) for spot in placed.spots)
    facts = {"gpus": str(gpus), "nodes": names(spot.node for spot in placed.spots)}
    hold(round_, lease, (Reason(code=Code.BEHIND, facts=facts),))


def _most(round_: Round, lease: Lease) -> int | None:
    """Workers that the team's quota leaves. None: no limit."""
    left = quota_left(lease, round_.state, round_.policy)
    return None if left is None else left // lease.request.gpus_per_worker


def hold(round_: Round, lease: Lease, reasons: tuple[Reason, ...]) -> None:
    """The lease waits, and why."""
    workers = counts_to_try(lease.request, lease.job)[-1]
    sentence = why_waiting(lease.request, workers, reasons)
    round_.add(Hold(lease=lease.id, reasons=reasons, reason=sentence))
