"""One lease as its page shows it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

from moorage.api.values import Event, LeaseView, Segment
from moorage.core.job import Activity
from moorage.core.lease import LeaseState
from moorage.web import fleet_view, text, timeline

#: Rows of the event list, newest first.
MAX_EVENTS = 200


@dataclass(frozen=True, slots=True)
class Share:
    """One part of the cost bar, in percent of the total."""

    word: str
    usd: str
    percent: float
    start: float


def build(
    view: LeaseView, events: Sequence[Event], segments: Sequence[Segment], now: datetime, *, operator: bool
) -> dict[str, Any]:
    """What the template needs. `events` oldest first."""
    lease = view.lease
    told = [event for event in events if event.kind != "progress"]
    end = lease.ended_at or now
    return {
        "id": lease.id,
        **fleet_view.mark(lease.id),
        "owner": text.owner(lease.owner),
        "team": lease.team,
        "state": (lease.outcome and str(lease.outcome)) or fleet_view.state_word(lease),
        "reason": lease.reason,
        "asks": text.asks(lease.request),
        "tiles": tiles(view, end),
        "shares": shares(view),
        "done": fleet_view.done(lease),
        "facts": facts(view, now),
        "timeline": timeline.draw(lease.granted_at or lease.submitted_at, end, segments, told),
        "activities": [str(kind) for kind in Activity if any(segment.activity is kind for segment in segments)],
        "events": [_event(event) for event in reversed(told[-MAX_EVENTS:])],
        "may_release": operator and lease.state not in (LeaseState.STOPPING, LeaseState.ENDED),
        "live": lease.state is not LeaseState.ENDED,
    }


def tiles(view: LeaseView, end: datetime) -> list[tuple[str, str, str]]:
    """(heading, value, note) of the figures at the top."""
    lease, cost, progress = view.lease, view.cost, view.lease.progress
    gpus = sum(len(allocation.gpus) for allocation in lease.live)
    hours = cost.gpu_seconds / Decimal(3600)
    saved = f"{text.usd(cost.saved_usd)} less than on demand" if cost.saved_usd > 0 else f"{hours:.2f} GPU-hours"
    target = lease.target.reason or ("no change asked for" if lease.state.active else "")
    return [
        ("Spent", text.usd(cost.total_usd), saved),
        ("Workers", fleet_view.workers(lease), f"{text.many(gpus, 'GPU')} held. {target}".strip()),
        ("Step", text.count(progress.step if progress else None), str(progress.phase) if progress else "not heard yet"),
        ("Loss", text.loss(progress.loss if progress else None), _rate(progress.throughput if progress else None)),
        ("Attempt", str(lease.epoch), _trouble(lease.interruptions, lease.failures)),
        ("Age", text.since(lease.submitted_at, end), f"submitted at {lease.submitted_at:%H:%M:%S} UTC"),
    ]


def _rate(throughput: float | None) -> str:
    return "speed not known" if throughput is None else f"{throughput:,.0f} samples/s"


def _trouble(interruptions: int, failures: int) -> str:
    return f"{text.many(interruptions, 'interruption')}, {text.many(failures, 'failure')}"


def shares(view: LeaseView) -> list[Share]:
    """The cost split; nothing where nothing was spent."""
    cost = view.cost
    parts: Mapping[Activity, Decimal] = {
        Activity.BUSY: cost.busy_usd,
        Activity.OVERHEAD: cost.overhead_usd,
        Activity.IDLE: cost.idle_usd,
        Activity.LOST: cost.lost_usd,
        Activity.UNKNOWN: cost.unknown_usd,
    }
    if cost.total_usd <= 0:
        return []
    found: list[Share] = []
    start = 0.0
    for activity, amount in parts.items():
        percent = float(100 * amount / cost.total_usd)
        found.append(Share(str(activity), text.usd(amount), round(percent, 1), round(start, 2)))
        start += percent
    return found


def facts(view: LeaseView, now: datetime) -> list[tuple[str, str]]:
    """(term, value) pairs; what is not known is left out."""
    lease, request, job = view.lease, view.lease.request, view.lease.job
    progress = lease.progress
    pairs: list[tuple[str, str | None]] = [
        ("Asks", text.asks(request)),
        ("Where", fleet_view.where(lease)),
        ("Target", _target(view)),
        ("Job", f"{job.kind}: {' '.join(job.entrypoint)}" if job else "none: a lease without a job"),
        ("Newest checkpoint", _checkpoint(progress.checkpoint_step if progress else None)),
        ("Samples", _samples(view)),
        ("Budget", text.usd(request.budget_usd) if request.budget_usd is not None else None),
        ("Deadline", _until(request.deadline, now)),
        ("Stops at", _until(request.stop_at, now)),
        ("Generation", str(lease.generation)),
        ("Continues", lease.resume_from),
        ("Result", lease.result),
        *((key, value) for key, value in sorted(lease.owner.items()) if value != "-1"),
        *((key, value) for key, value in sorted(lease.notes.items())),
        ("Says", (progress.message or None) if progress else None),
    ]
    return [(term, value) for term, value in pairs if value]


def _target(view: LeaseView) -> str | None:
    target = view.lease.target
    if not target.hold:
        return None
    why = f" ({target.why})" if target.why else ""
    return f"{text.many(len(target.hold), 'allocation')}{why}, revision {target.revision}"


def _checkpoint(step: int | None) -> str | None:
    return None if step is None else f"step {text.count(step)}"


def _samples(view: LeaseView) -> str | None:
    progress = view.lease.progress
    if progress is None or progress.samples_done is None:
        return None
    return f"{text.count(progress.samples_done)} of {text.count(progress.samples_total)}"


def _until(at: datetime | None, now: datetime) -> str | None:
    if at is None:
        return None
    left = (at - now).total_seconds()
    return f"{text.stamp(at)}, {f'in {text.span(left)}' if left > 0 else f'{text.span(-left)} ago'}"


def _event(event: Event) -> dict[str, str]:
    return {
        "at": f"{event.at:%H:%M:%S}",
        "title": text.stamp(event.at),
        "kind": str(event.kind),
        "sentence": event.sentence,
        "who": event.who,
    }
