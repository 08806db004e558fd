"""What a lease costs, as MLflow operations: points while it runs, and the final account. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal

from moorage.api.values import Cost
from moorage.core.lease import Lease, Outcome
from moorage.mlflow.operations import Operation, Point, RunStatus, SetStatus, Worth, Write
from moorage.mlflow.tracked import Tracked
from moorage.mlflow.translate import allocated, ended_tags


def live_gpus(lease: Lease) -> int:
    """GPUs that its allocations take now."""
    return sum(len(allocation.gpus) for allocation in lease.live)


def cost_values(cost: Cost) -> dict[str, float]:
    """The cost metrics of a lease, in dollars and GPU-hours."""
    dollars = {
        "total": cost.total_usd,
        "busy": cost.busy_usd,
        "idle": cost.idle_usd,
        "lost": cost.lost_usd,
        "overhead": cost.overhead_usd,
        "unknown": cost.unknown_usd,
        "saved": cost.saved_usd,
    }
    return {f"cost/{key}_usd": float(value) for key, value in dollars.items()} | {
        "cost/gpu_hours": float(cost.gpu_seconds / 3600)
    }


def cost_point(seen: Tracked, cost: Cost, step: int, worth: Worth = Worth.COST) -> tuple[Tracked, list[Operation]]:
    """One point of every cost metric at `step` seconds since the lease was submitted, and the description.

    The counter only rises: MLflow's latest value is the one with the highest step, whenever it was written.
    """
    step = max(step, seen.cost_step + 1)
    at = seen.submitted + step * 1000
    values = cost_values(cost)
    if worth is Worth.COST and seen.cost_step >= 0:
        seconds = step - seen.cost_step
        values["cost/usd_per_hour"] = float((cost.total_usd - Decimal(seen.cost_usd)) * 3600 / seconds)
    points = tuple(Point(key=key, value=value, at=at, step=step) for key, value in values.items())
    now = replace(seen, cost_step=step, cost_usd=str(cost.total_usd))
    operations: list[Operation] = [Write(lease=seen.lease, epoch=0, points=points, worth=worth)]
    note = describe(now, cost)
    if note == seen.note:
        return now, operations
    tags = Write(lease=seen.lease, epoch=0, tags={"mlflow.note.content": note}, worth=worth)
    return replace(now, note=note), [*operations, tags]


def money(amount: Decimal) -> str:
    """``$1,234.50``; below a dollar with four decimals, so that a short run does not read as free."""
    return f"${amount:,.2f}" if abs(amount) >= 1 or amount == 0 else f"${amount:.4f}"


def describe(seen: Tracked, cost: Cost) -> str:
    """The run's description. Plain text first: MLflow's run table shows the first 18 characters."""
    parts = [money(cost.total_usd), f"{cost.gpu_seconds / 3600:.2f} GPU-h"]
    parts += [f"saved {money(cost.saved_usd)}"] if cost.saved_usd else []
    parts += [plural(seen.interruptions, "interruption")] if seen.interruptions else []
    parts += [seen.outcome or seen.state]
    split = {
        "busy": cost.busy_usd,
        "idle": cost.idle_usd,
        "lost": cost.lost_usd,
        "overhead": cost.overhead_usd,
        "unknown": cost.unknown_usd,
    }
    table = [f"| {' | '.join(split)} |", "|" + "--|" * len(split), f"| {' | '.join(map(money, split.values()))} |"]
    lines = [" · ".join(parts), "", *table]
    return "\n".join([*lines, "", seen.reason] if seen.reason else lines)


def plural(number: int, thing: str) -> str:
    return f"{number} {thing}" + ("" if number == 1 else "s")


_STATUS: Mapping[str, RunStatus] = {
    Outcome.SUCCEEDED: "FINISHED",
    Outcome.FAILED: "FAILED",
    Outcome.STOPPED: "KILLED",
}


def closing(seen: Tracked, cost: Cost, attempts: Mapping[int, Decimal]) -> tuple[Tracked, list[Operation]]:
    """The final account of a lease whose ledger is closed. `attempts`: dollars by epoch."""
    end = seen.ended or seen.submitted
    now, operations = cost_point(replace(seen, state="ended"), cost, seen.step_at(end + 999), Worth.KEEP)
    now, gpus = allocated(now, end, 0)
    status = _STATUS.get(seen.outcome, "KILLED")
    last: list[Operation] = []
    if seen.epoch:
        last = [
            Write(lease=seen.lease, epoch=seen.epoch, tags=ended_tags(seen.outcome, seen.reason)),
            SetStatus(lease=seen.lease, epoch=seen.epoch, status=status, end=end),
        ]
    mine: list[Operation] = [
        Write(lease=seen.lease, epoch=0, tags={"moorage.state": "ended"} | ended_tags(seen.outcome, seen.reason)),
        SetStatus(lease=seen.lease, epoch=0, status=status, end=end),
    ]
    return replace(now, done=True), [*operations, *gpus, *attempt_costs(now, attempts), *last, *mine]


def attempt_costs(seen: Tracked, attempts: Mapping[int, Decimal]) -> list[Operation]:
    """Each attempt's dollars under a key of its own: a search by total cost must not find parent and child."""
    step = seen.cost_step
    at = seen.submitted + step * 1000
    return [
        Write(
            lease=seen.lease,
            epoch=epoch,
            points=(Point(key="attempt/cost_usd", value=float(usd), at=at, step=step),),
        )
        for epoch, usd in sorted(attempts.items())
        if epoch > 0
    ]
