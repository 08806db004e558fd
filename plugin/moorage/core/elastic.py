"""Grow and shrink: goodput says how many workers help, the loss whether they are worth it; the budget bounds both."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from decimal import Decimal
from itertools import pairwise
from statistics import median

from moorage.core.decision import Retarget
from moorage.core.extend import growth, workers_of
from moorage.core.gang import kind_of, numbered, single_workers
from moorage.core.job import JobKind, Observation, Phase, Progress
from moorage.core.lease import Allocation, AllocationState, Lease, LeaseState, Why
from moorage.core.loss import Trend, trend
from moorage.core.order import quota_left
from moorage.core.place import Spot
from moorage.core.policy import Elastic
from moorage.core.round import Round
from moorage.core.throughput import Throughput, throughput


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What is known of one lease when it is judged."""

    lease: Lease
    progress: Progress
    workers: int
    samples_left: int
    samples_total: int
    speed: Throughput
    trend: Trend | None
    #: Seconds that a resize stops training.
    resize_s: float

    def seconds(self, workers: int) -> float:
        """Time that the samples left take at this size."""
        return self.samples_left / self.speed.rate(workers)


def elastic(round_: Round) -> None:
    """At most one resize of each lease that has settled at its size."""
    if round_.policy.frozen:
        return
    for lease in round_.leases():
        if lease.state is LeaseState.RUNNING and lease.request.elastic and kind_of(lease.job) is JobKind.RAY:
            round_.wake_in(round_.policy.rebalance_every_s)
            case = _case(round_, lease)
            resize = _resize(round_, case) if case else None
            if resize is not None:
                round_.add(resize)


def _case(round_: Round, lease: Lease) -> Case | None:
    """None while it is not settled, or does not say enough."""
    progress = lease.progress
    if progress is None or not _settled(round_, lease, progress):
        return None
    speed = throughput(lease.observations)
    if speed is None or progress.samples_total is None or progress.samples_done is None:
        return None
    rules = round_.policy.elastic
    return Case(
        lease=lease,
        progress=progress,
        workers=lease.workers,
        samples_left=max(0, progress.samples_total - progress.samples_done),
        samples_total=progress.samples_total,
        speed=speed,
        trend=trend(lease.observations, progress.samples_total, rules),
        resize_s=resize_seconds(lease.observations, rules.resize_cost_s),
    )


def _settled(round_: Round, lease: Lease, progress: Progress) -> bool:
    rules = round_.policy.elastic
    since = lease.resized_at or lease.granted_at
    if lease.short_since is not None or progress.phase is not Phase.TRAINING or since is None:
        return False
    if progress.target_revision < lease.target.revision or progress.workers != lease.workers:
        return False
    if lease.resized_at is not None and round_.now < lease.resized_at + timedelta(seconds=rules.cooldown_s):
        return False
    if any(a.state is not AllocationState.HELD for a in workers_of(lease)):
        return False
    return _observed_since(lease, since) >= rules.settle_observations


def _observed_since(lease: Lease, since: datetime) -> int:
    return sum(1 for point in lease.observations if point.at >= since and point.workers == lease.workers)


def resize_seconds(observations: tuple[Observation, ...], assumed: float) -> float:
    """The median pause in which the worker count changed, less an ordinary step; `assumed` until one was seen."""
    pairs = list(pairwise(observations))
    pauses = [(b.at - a.at).total_seconds() for a, b in pairs if a.workers != b.workers]
    steps = [(b.at - a.at).total_seconds() for a, b in pairs if a.workers == b.workers]
    if not pauses or not steps:
        return assumed
    return max(0.0, median(pauses) - median(steps))


def _resize(round_: Round, case: Case) -> Retarget | None:
    rules = round_.policy.elastic
    if case.trend is not None and case.trend.flat(rules):
        return _shrink_flat(case, case.trend)
    inefficient = _shrink_inefficient(round_, case)
    if inefficient is not None:
        return inefficient
    if case.trend is not None and not (case.trend.falls(rules) and _fell_below_flat(case.lease, case.trend, rules)):
        return None
    return _grow(round_, case)


def _fell_below_flat(lease: Lease, loss: Trend, rules: Elastic) -> bool:
    """Against going to and fro: a loss that was flat once is noise until it is clearly lower."""
    return lease.flat_loss is None or loss.after <= lease.flat_loss * (1 - rules.regrow_improvement)


# --- shrink


def _shrink_flat(case: Case, loss: Trend) -> Retarget | None:
    """More samples hardly help: as few GPUs as can be. Not for the last seconds, which a resize would outlast."""
    low = case.lease.request.workers[0]
    if case.workers <= low or case.seconds(case.workers) <= case.resize_s:
        return None
    reason = (
        f"shrink {case.workers} -> {low}: the loss is flat, {loss.before:.4g} to {loss.after:.4g} "
        f"({_percent(loss.improvement)}) in the last window; {_percent(_share_left(case))} of the samples left"
    )
    smaller = shrink(case.lease, low, Why.SHRINK, reason)
    return None if smaller is None else replace(smaller, flat_loss=loss.after)


def _shrink_inefficient(round_: Round, case: Case) -> Retarget | None:
    """A size that was measured to be worth less than its GPUs, with some margin against going to and fro."""
    enough = round_.policy.elastic.min_efficiency
    if case.workers not in case.speed.measured or case.speed.efficiency(case.workers) >= 0.9 * enough:
        return None
    smaller = [n for n in case.lease.request.counts if n < case.workers and case.speed.efficiency(n) >= enough]
    if not smaller or case.seconds(case.workers) <= case.resize_s:
        return None
    to = smaller[-1]
    reason = (
        f"shrink {case.workers} -> {to}: {case.speed.rate(case.workers):.3g} samples/s at {case.workers} workers is "
        f"{_percent(case.speed.efficiency(case.workers))} of {case.workers} times one worker's"
    )
    return shrink(case.lease, to, Why.SHRINK, reason)


def shrink(lease: Lease, to: int, why: Why, reason: str, by: datetime | None = None) -> Retarget | None:
    """Let go of the youngest extra workers until `to` are left, as far as whole allocations allow; None: none goes."""
    go = shed(lease, to)
    if not go:
        return None
    hold = tuple(a.id for a in lease.live if a.id in lease.target.hold and a not in go)
    return Retarget(lease=lease.id, hold=hold, add=(), why=why, reason=reason, by=by)


def shed(lease: Lease, to: int) -> tuple[Allocation, ...]:
    """The allocations to let go: extras (one worker each) before the gang's own, the youngest first."""
    left, go = lease.workers, []
    youngest_first = reversed(workers_of(lease))
    for allocation in sorted(youngest_first, key=lambda a: a.workers):
        if left - allocation.workers >= to:
            left -= allocation.workers
            go.append(allocation)
    return tuple(go) if left in lease.request.counts else ()


# --- grow


def _grow(round_: Round, case: Case) -> Retarget | None:
    """The size that saves most, of those that pay for the resize, stay efficient, and are free near the gang."""
    if _others_wait(round_, case.lease) or _node_leaves(round_, case.lease):
        return None
    larger = [n for n in case.lease.request.counts if n > case.workers and _worth_it(round_, case, n)]
    for count in sorted(larger, key=lambda n: (case.seconds(n), n)):
        spots = growth(round_.fleet, case.lease, count - case.workers)
        if spots and _affordable(round_, case, count, spots):
            return _grown(case, count, spots)
    return None


def _others_wait(round_: Round, lease: Lease) -> bool:
    return any(other.request.priority >= lease.request.priority for other in round_.waiting)


def _node_leaves(round_: Round, lease: Lease) -> bool:
    """A node under the lease has a notice: first things first."""
    nodes = (round_.state.nodes.get(a.node) for a in lease.live)
    return any(node is not None and (node.notice_deadline is not None or node.draining) for node in nodes)


def _worth_it(round_: Round, case: Case, count: int) -> bool:
    rules = round_.policy.elastic
    saved = case.seconds(case.workers) - case.seconds(count)
    left = quota_left(case.lease, round_.state, round_.policy)
    more = (count - case.workers) * case.lease.request.gpus_per_worker
    within_quota = left is None or more <= left
    return (
        within_quota and saved > rules.payback * case.resize_s and case.speed.efficiency(count) >= rules.min_efficiency
    )


def _affordable(round_: Round, case: Case, count: int, spots: tuple[Spot, ...]) -> bool:
    """Whether the whole of what is left fits into the budget at that size."""
    budget = case.lease.request.budget_usd
    if budget is None:
        return True
    nodes = round_.state.nodes
    hourly = sum((len(spot.gpus) * nodes[spot.node].price for spot in spots), Decimal(0))
    hourly += sum((len(a.gpus) * nodes[a.node].price for a in case.lease.live if a.node in nodes), Decimal(0))
    seconds = Decimal(str(round(case.seconds(count) + case.resize_s + round_.policy.stop_grace_s, 3)))
    return case.lease.spent_usd + hourly * seconds / 3600 <= budget


def _grown(case: Case, count: int, spots: tuple[Spot, ...]) -> Retarget:
    lease = case.lease
    add = numbered(lease, tuple(single_workers(lease, spots)))
    hold = tuple(a.id for a in lease.live if a.id in lease.target.hold)
    return Retarget(
        lease=lease.id, hold=(*hold, *(a.id for a in add)), add=add, why=Why.GROW, reason=_why_grow(case, count)
    )


def _why_grow(case: Case, count: int) -> str:
    now, then = case.speed.rate(case.workers), case.speed.rate(count)
    how = f"{then:.3g} measured" if count in case.speed.measured else f"about {then:.3g} expected"
    saved = case.seconds(case.workers) - case.seconds(count)
    s = "s" if case.workers != 1 else ""
    return (
        f"grow {case.workers} -> {count}: {now:.3g} samples/s at {case.workers} worker{s}, {how} at {count}; "
        f"{_percent(_share_left(case))} of the samples left and {_loss_words(case.trend)}; "
        f"saves about {saved:.0f} s for a resize of {case.resize_s:.0f} s"
    )


def _loss_words(loss: Trend | None) -> str:
    if loss is None:
        return "the loss says nothing yet"
    window = "in the last window" if loss.covered >= 1 else f"in {_percent(loss.covered)} of a window"
    return f"the loss fell {_percent(loss.improvement)} {window}"


def _share_left(case: Case) -> float:
    return case.samples_left / case.samples_total if case.samples_total else 0.0


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if abs(share) >= 0.1 else f"{100 * share:.1f} %"
