"""A broker whose story is written down: the recorder reads it as it happens, on a clock that may run faster.

     0    2 3        20          40 42  45 47                 80 81
n1        [overhead|busy ........busy][..][overhead|lost|busy....]
n2        [overhead|busy ........]x       |
n3                   [overhead|busy..][..]
                     grow 2->3   lost retry  grant             end
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

from moorage.api import codec
from moorage.api.errors import NotFound
from moorage.api.values import Event, EventKind, LeaseView, Segment
from moorage.core.cost import cost
from moorage.core.job import Activity, Job
from moorage.core.lease import Lease, LeaseState, Outcome
from moorage.core.request import CapacityType, Request, Topology

LENGTH_S = 81


@dataclass(kw_only=True)
class Story:
    """One lease from submission to end."""

    lease: Lease
    events: list[Event]
    segments: list[Segment]


def story(lease: str, start: datetime) -> Story:
    """See the drawing. Progress each second: one step, loss 100/(step + 1)."""
    owner = {"airflow.dag_id": "digits", "airflow.task_id": "train", "airflow.run_id": "r1"}
    request = Request(workers=(2, 4), capacity=CapacityType.SPOT, topology=Topology(preferred="rack"))
    value = Lease(
        id=lease,
        owner=owner,
        generation=1,
        team="research",
        request=request,
        job=Job(entrypoint=("python", "train.py")),
        submitted_at=start,
        interruptions=1,
    )
    told = Story(lease=value, events=[], segments=[])
    _journal(told, start)
    _ledger(told, start)
    return told


def _journal(told: Story, start: datetime) -> None:
    def add(second: float, kind: EventKind, sentence: str, node: str | None = None, **facts: float | str) -> None:
        told.events.append(
            Event(
                seq=len(told.events) + 1,
                at=start + timedelta(seconds=second),
                kind=kind,
                sentence=sentence,
                who="ana" if kind is EventKind.SUBMITTED else "broker",
                lease=None if kind is EventKind.NOTICE else told.lease.id,
                node=node,
                team="research",
                facts=facts,
            )
        )

    def progress(first: int, last: int, step: int, gpus: int) -> int:
        for second in range(first, last):
            step += 1
            add(
                second,
                EventKind.PROGRESS,
                f"step {step}",
                epoch=1 if second < 42 else 2,
                phase="training",
                step=step,
                loss=100 / (step + 1),
                throughput=50.0 * gpus,
                gpus=gpus,
                **{"metric.accuracy": 1 - 1 / (step + 1)},
            )
        return step

    add(0, EventKind.SUBMITTED, "ana asks for 2 to 4 workers", epoch=0)
    add(1, EventKind.HELD, "waits for 2 GPUs in one rack", epoch=0)
    add(2, EventKind.GRANTED, "2 GPUs in rack r1", epoch=1, workers=2, gpus=2, level="rack", nodes="n1,n2")
    add(2.5, EventKind.PROGRESS, "starts", epoch=1, phase="starting", gpus=2)
    add(3, EventKind.STARTED, "the attempt was heard", epoch=1)
    step = progress(4, 20, 0, 2)
    add(
        20,
        EventKind.RESIZED,
        "a third worker pays off",
        epoch=1,
        why="grow",
        revision=2,
        gpus=3,
        **{"from": 2, "to": 3},
    )
    step = progress(22, 38, step, 3)
    add(38, EventKind.NOTICE, "n2 goes at 40", node="n2", epoch=1, deadline="soon", source="aws")
    add(40, EventKind.LOST, "n2 is <lost>", node="n2", epoch=1, workers=1, notice=1)
    add(42, EventKind.RETRIED, "the gang is below its min", epoch=1, fault=0, interruption=1)
    add(45, EventKind.GRANTED, "1 node", epoch=2, workers=2, gpus=2, level="host", nodes="n1")
    add(46, EventKind.STARTED, "the attempt was heard", epoch=2)
    add(
        47,
        EventKind.RESUMED,
        "resumed at 31",
        epoch=2,
        step=31,
        best_step=32,
        steps_lost=1,
        seconds_stopped=9.5,
        workers=2,
    )
    progress(48, 80, step - 1, 2)
    add(80, EventKind.STOPPING, "done", epoch=2)
    add(LENGTH_S, EventKind.ENDED, "trained to the end", epoch=2, outcome="succeeded")


def _ledger(told: Story, start: datetime) -> None:
    def add(number: int, epoch: int, node: str, gpus: tuple[int, ...], *parts: tuple[float, float, Activity]) -> None:
        for first, last, activity in parts:
            told.segments.append(
                Segment(
                    id=len(told.segments) + 1,
                    allocation=f"{told.lease.id}.{number}",
                    lease=told.lease.id,
                    epoch=epoch,
                    team="research",
                    node=node,
                    pool="spot",
                    gpus=gpus,
                    activity=activity,
                    price=Decimal("3.3333"),
                    on_demand_price=Decimal("9.99"),
                    start=start + timedelta(seconds=first),
                    end=start + timedelta(seconds=last),
                )
            )

    over, busy, lost = Activity.OVERHEAD, Activity.BUSY, Activity.LOST
    add(1, 1, "n1", (0,), (2, 4, over), (4, 40, busy), (40, 43, over))
    add(2, 1, "n2", (3,), (2, 4, over), (4, 40, busy))
    add(3, 1, "n3", (0,), (20, 22, over), (22, 40, busy), (40, 42, over))
    add(4, 2, "n1", (0, 1), (45, 47.123457, over), (47.123457, 49, lost), (49, 80, busy), (80, LENGTH_S, over))


@dataclass(kw_only=True)
class Scripted:
    """The recorder's `Source`. `folder`: where `begin` (Unix seconds, real clock) and the notes are kept."""

    folder: Path
    story: Story
    speed: float
    calls: int = field(default=0)

    @classmethod
    def opened(cls, folder: Path, lease: str, speed: float) -> Scripted:
        """The same story for every process that opens the folder."""
        begin = folder / "begin"
        if not begin.exists():
            begin.write_text(repr(time.time()))
        start = datetime.fromtimestamp(round(float(begin.read_text()), 3), UTC)
        return cls(folder=folder, story=story(lease, start), speed=speed)

    def now(self) -> datetime:
        start = self.story.lease.submitted_at
        return start + (datetime.now(UTC) - start) * self.speed

    @property
    def over(self) -> bool:
        return self.now() > self.story.events[-1].at

    def get(self, lease: str) -> LeaseView:
        if lease != self.story.lease.id:
            raise NotFound(lease)
        value = self.story.lease
        if self.over:
            value = replace(value, state=LeaseState.ENDED, outcome=Outcome.SUCCEEDED)
        return LeaseView(lease=value, cost=cost(self.ledger(lease), self.now()), revision=1)

    def note(self, lease: str, notes: dict[str, str]) -> None:
        with (self.folder / "notes").open("a") as file:
            file.write(json.dumps({"lease": lease, **notes}) + "\n")

    def notes(self) -> list[dict[str, str]]:
        path = self.folder / "notes"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def events(self, since: int = 0, lease: str | None = None, limit: int = 500, timeout: float = 0) -> Sequence[Event]:
        deadline = time.monotonic() + timeout
        while True:
            now = self.now()
            found = [event for event in self.story.events if event.seq > since and event.at <= now][:limit]
            if found or time.monotonic() >= deadline:
                # Through the codec, as over HTTP.
                return [codec.loads(Event, codec.dumps(event)) for event in found]
            time.sleep(0.02)

    def ledger(self, lease: str) -> Sequence[Segment]:
        now = self.now()
        known = [segment for segment in self.story.segments if segment.start <= now]
        return [segment if segment.end and segment.end <= now else replace(segment, end=None) for segment in known]
