"""What a lease costs: ledger segments, and exact sums over them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import ROUND_FLOOR, Decimal, localcontext

from moorage.core.job import Activity, JobKind, Phase, Progress
from moorage.core.lease import Lease, LeaseState
from moorage.core.policy import Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Dollars and GPU-seconds of a lease. busy + idle + lost + overhead + unknown = total, exactly."""

    total_usd: Decimal = Decimal(0)
    busy_usd: Decimal = Decimal(0)
    idle_usd: Decimal = Decimal(0)
    lost_usd: Decimal = Decimal(0)
    overhead_usd: Decimal = Decimal(0)
    unknown_usd: Decimal = Decimal(0)
    #: The same GPU-seconds at the on-demand price of then, minus `total_usd`.
    saved_usd: Decimal = Decimal(0)
    gpu_seconds: Decimal = Decimal(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """One allocation at one price and one activity for one interval. Closed ones never change. `end` None: open."""

    id: int
    allocation: str
    lease: str
    epoch: int
    team: str
    node: str
    pool: str
    gpus: tuple[int, ...]
    activity: Activity
    #: USD per GPU-hour, paid and on demand.
    price: Decimal
    on_demand_price: Decimal
    start: datetime
    end: datetime | None = None


#: Amounts are said to the millionth of a dollar.
MICRO = Decimal("0.000001")
_MICROSECONDS_PER_HOUR = 3_600_000_000
_PARTS = {
    Activity.BUSY: "busy_usd",
    Activity.IDLE: "idle_usd",
    Activity.LOST: "lost_usd",
    Activity.OVERHEAD: "overhead_usd",
    Activity.UNKNOWN: "unknown_usd",
}


def cost(segments: Iterable[Segment], now: datetime) -> Cost:
    """The exact sum over segments, open ones until `now`. Rounded once, to 1e-6 USD; the parts add up to the total."""
    paid = dict.fromkeys(Activity, Decimal(0))
    on_demand, time = Decimal(0), 0
    with localcontext() as context:
        context.prec = 60
        for segment in segments:
            gpu_time = len(segment.gpus) * _microseconds(segment, now)
            paid[segment.activity] += gpu_time * segment.price
            on_demand += gpu_time * segment.on_demand_price
            time += gpu_time
        total = _dollars(sum(paid.values(), Decimal(0)))
        parts = _apportion(total, paid)
        saved = (on_demand - sum(paid.values(), Decimal(0))) / _MICROSECONDS_PER_HOUR
        return Cost(
            total_usd=total,
            saved_usd=saved.quantize(MICRO),
            gpu_seconds=Decimal(time) / 1_000_000,
            **{_PARTS[activity]: part for activity, part in parts.items()},
        )


def _microseconds(segment: Segment, now: datetime) -> int:
    return max(0, ((segment.end or now) - segment.start) // timedelta(microseconds=1))


def _dollars(gpu_price_time: Decimal) -> Decimal:
    return (gpu_price_time / _MICROSECONDS_PER_HOUR).quantize(MICRO)


def _apportion(total: Decimal, paid: Mapping[Activity, Decimal]) -> dict[Activity, Decimal]:
    """Parts rounded so that they add up: each rounded down, the rest to the largest remainders."""
    exact = {activity: amount / _MICROSECONDS_PER_HOUR for activity, amount in paid.items()}
    parts = {activity: amount.quantize(MICRO, ROUND_FLOOR) for activity, amount in exact.items()}
    missing = int((total - sum(parts.values(), Decimal(0))) / MICRO)
    by_remainder = sorted(exact, key=lambda activity: parts[activity] - exact[activity])
    for activity in by_remainder[:missing]:
        parts[activity] += MICRO
    return parts


def activity(lease: Lease, policy: Policy, heard: float) -> Activity:
    """What the lease's GPU time is now; `heard` is the hearing clock."""
    if lease.job is None:
        return Activity.IDLE
    if lease.state is not LeaseState.RUNNING:
        return Activity.OVERHEAD
    if lease.attempt_heard is None or heard - lease.attempt_heard > policy.unknown_after_s:
        return Activity.UNKNOWN
    if lease.progress is None:
        # A process that never says anything is taken at its agent's word: it runs. A silent trainer still starts.
        return Activity.OVERHEAD if lease.job.kind is JobKind.RAY else Activity.BUSY
    return _trains(lease, lease.progress)


def _trains(lease: Lease, progress: Progress) -> Activity:
    again = progress.step is not None and progress.step < lease.best_step
    if progress.phase is Phase.TRAINING and again:
        return Activity.LOST
    return progress.phase.activity
