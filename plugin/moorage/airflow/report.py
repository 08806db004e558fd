"""What the task's log says at the end: the job's last lines, and a table of attempts, resizes and dollars."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from moorage.api.errors import MoorageError
from moorage.api.values import Event, EventKind

if TYPE_CHECKING:
    from moorage.airflow.hook import MoorageHook
    from moorage.api.protocols import LeaseApi

#: Lines of the job's log that go into the task's log, and into an exception.
TAIL_LINES = 200
RAISED_LINES = 20
#: Bounds on how much of a long lease is read back.
MAX_LOG_READS = 500
MAX_EVENT_READS = 40
EVENT_PAGE = 500

_TOLD = (EventKind.RESIZED, EventKind.RESUMED, EventKind.RETRIED, EventKind.LOST, EventKind.WARNED)
_SPLIT = ("busy", "idle", "lost", "overhead", "unknown")


def write(log: Any, hook: MoorageHook, ended: Mapping[str, Any]) -> str:
    """Write it all to the task's log; return the last lines for an exception ("" if the broker cannot be asked)."""
    lines: Sequence[str] = ()
    try:
        with hook.get_conn() as api:
            lines = tail(api, ended["lease"])
            events = tuple(history(api, ended["lease"]))
    except MoorageError as error:
        log.warning("The job's log and history cannot be read now: %s", error)
        events = ()
    for line in lines:
        log.info("[job] %s", line)
    for line in table(ended, events):
        log.info("%s", line)
    return "\n".join(lines[-RAISED_LINES:])


def tail(api: LeaseApi, lease: str) -> Sequence[str]:
    """The last `TAIL_LINES` lines of the job's log."""
    kept: deque[str] = deque(maxlen=TAIL_LINES)
    offset, rest = 0, ""
    for _ in range(MAX_LOG_READS):
        chunk = api.logs(lease, offset)
        *lines, rest = (rest + chunk.text).split("\n")
        kept.extend(lines)
        if chunk.end or chunk.next == offset:
            break
        offset = chunk.next
    if rest:
        kept.append(rest)
    return list(kept)


def history(api: LeaseApi, lease: str) -> Iterator[Event]:
    """Events that the table tells, oldest first."""
    since = 0
    for _ in range(MAX_EVENT_READS):
        page = api.events(since, lease, EVENT_PAGE)
        yield from (event for event in page if event.kind in _TOLD)
        if len(page) < EVENT_PAGE:
            return
        since = page[-1].seq


def table(ended: Mapping[str, Any], events: Sequence[Event]) -> Iterator[str]:
    """The summary, line by line."""
    cost = {name: Decimal(value) for name, value in ended["cost"].items()}
    resizes = [event for event in events if event.kind is EventKind.RESIZED]
    yield f"Lease {ended['lease']}: {ended['outcome'] or ended['state']}. {ended['reason']}"
    yield f"  attempts       {ended['attempts']}"
    yield f"  interruptions  {ended['interruptions']}"
    yield f"  resizes        {len(resizes)}"
    for event in events:
        yield f"    {event.at:%H:%M:%S}  {event.kind:<8} {event.sentence}"
    yield f"  cost           ${cost['total_usd']:.4f} for {cost['gpu_seconds'] / 3600:.4f} GPU-hours"
    yield "                 " + ", ".join(f"{name} ${cost[f'{name}_usd']:.4f}" for name in _SPLIT)
    yield f"                 saved ${cost['saved_usd']:.4f} against on-demand prices"
    run = ended["notes"].get("mlflow.run_url") or ended["notes"].get("mlflow.run_id")
    if run:
        yield f"  MLflow         {run}"
