"""Leases that end before their job does: time, budget, a silent owner. And warnings before that, each once."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal

from moorage.core.decision import Stop, Warn
from moorage.core.explain import clock
from moorage.core.job import OwnerSilent
from moorage.core.lease import Lease, LeaseState, Outcome
from moorage.core.round import Round
from moorage.core.state import State


def stops(round_: Round) -> None:
    """Stop or warn; what stops already is left alone."""
    for lease in round_.leases():
        if lease.state in (LeaseState.STOPPING, LeaseState.ENDED):
            continue
        why = next((why for why in (rule(round_, lease) for rule in RULES) if why), None)
        if why is not None:
            by = round_.now + timedelta(seconds=round_.policy.stop_grace_s)
            round_.add(Stop(lease=lease.id, outcome=Outcome.STOPPED, reason=why, by=by))
        else:
            _warn(round_, lease)


def _out_of_time(round_: Round, lease: Lease) -> str | None:
    at = lease.request.stop_at
    round_.wake(at)
    return f"its stop_at, {clock(at)}, has passed" if at is not None and round_.now >= at else None


def _out_of_budget(round_: Round, lease: Lease) -> str | None:
    """Spend and what the stop itself may cost must stay within the budget."""
    budget = lease.request.budget_usd
    if budget is None:
        return None
    rate = dollars_per_second(lease, round_.state)
    stop = rate * Decimal(str(round_.policy.stop_grace_s))
    left = budget - lease.spent_usd - stop
    if left > 0:
        _wake_at_spend(round_, left, rate)
        return None
    return f"its budget of {budget} USD is used: {lease.spent_usd:.4f} spent, and the stop may cost {stop:.4f}"


def _wake_at_spend(round_: Round, left: Decimal, rate: Decimal) -> None:
    if rate > 0:
        round_.wake_in(min(float(left / rate), 86400.0) + 0.001)


def dollars_per_second(lease: Lease, state: State) -> Decimal:
    """What the lease's live allocations cost now."""
    held = ((len(a.gpus), state.nodes.get(a.node)) for a in lease.live)
    hourly = sum((count * node.price for count, node in held if node is not None), Decimal(0))
    return hourly / 3600


def _owner_silent(round_: Round, lease: Lease) -> str | None:
    """A queued or jobless lease is cancelled; a running job goes on, unless it said otherwise."""
    if lease.owner_heard is None:
        return None
    grace = round_.policy.owner_grace_s if lease.job else round_.policy.owner_grace_jobless_s
    running = lease.job is not None and lease.state is not LeaseState.QUEUED
    if running and lease.job is not None and lease.job.on_owner_silent is OwnerSilent.CONTINUE:
        return None
    quiet = round_.state.heard - lease.owner_heard
    round_.wake_in(grace - quiet)
    return f"its owner was silent for {quiet:.0f} s" if quiet >= grace else None


RULES: tuple[Callable[[Round, Lease], str | None], ...] = (_out_of_time, _out_of_budget, _owner_silent)


def _warn(round_: Round, lease: Lease) -> None:
    for key, rule in WARNINGS.items():
        words = None if key in lease.warnings else rule(round_, lease)
        if words is not None:
            round_.add(Warn(lease=lease.id, key=key, reason=words))


def _budget_nears(round_: Round, lease: Lease) -> str | None:
    budget = lease.request.budget_usd
    if budget is None:
        return None
    mark = budget * Decimal(str(round_.policy.budget_warn))
    if lease.spent_usd < mark:
        _wake_at_spend(round_, mark - lease.spent_usd, dollars_per_second(lease, round_.state))
        return None
    return f"{100 * lease.spent_usd / budget:.0f} % of the budget of {budget} USD is spent"


def _deadline_missed(round_: Round, lease: Lease) -> str | None:
    at = lease.request.deadline
    round_.wake(at)
    return f"its deadline, {clock(at)}, has passed; it goes on" if at is not None and round_.now >= at else None


WARNINGS: dict[str, Callable[[Round, Lease], str | None]] = {"budget": _budget_nears, "deadline": _deadline_missed}
