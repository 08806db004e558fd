"""A broker's lease face in memory, granted by hand, for tests of what the hook says to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

import pytest

from moorage.api.errors import NotFound, Unavailable
from moorage.api.values import LeaseView, Submission
from moorage.core.cost import Cost
from moorage.core.invalid import Invalid
from moorage.core.lease import Allocation, AllocationRole, AllocationState, Lease, LeaseState, Outcome
from moorage.ray.demand import Cluster

NOW = datetime(2026, 11, 30, 20, 0, tzinfo=UTC)


@dataclass
class Clock:
    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Desk:
    """`LeaseApi` as far as the hook uses it, with the rules of owners, client ids and generations."""

    leases: dict[str, Lease] = field(default_factory=dict)
    answers: dict[str, str] = field(default_factory=dict)
    calls: list[tuple[str, ...]] = field(default_factory=list)
    down: bool = False
    refuse: Callable[[Submission], Invalid | None] = lambda submission: None

    def _call(self, *words: str) -> None:
        self.calls.append(words)
        if self.down:
            raise Unavailable("http://127.0.0.1:1 does not answer")

    def said(self, verb: str) -> list[tuple[str, ...]]:
        return [words[1:] for words in self.calls if words[0] == verb]

    # --- LeaseApi

    def submit(self, submission: Submission) -> LeaseView:
        self._call("submit", submission.client_id)
        problem = self.refuse(submission)
        if problem is not None:
            raise problem
        if submission.client_id in self.answers:
            return view(self.leases[self.answers[submission.client_id]])
        same = [x for x in self.leases.values() if x.owner == submission.owner]
        live = [x for x in same if x.state is not LeaseState.ENDED]
        if not live:
            lease = Lease(
                id=f"l{len(self.leases) + 1}",
                owner=submission.owner,
                generation=1 + len(same),
                team="ml",
                request=submission.request,
                job=submission.job,
                submitted_at=NOW,
                reason="waits for GPUs",
            )
            self.leases[lease.id] = lease
            live = [lease]
        self.answers[submission.client_id] = live[0].id
        return view(live[0])

    def find(self, owner: Mapping[str, str], *, live: bool = False, limit: int = 100) -> Sequence[LeaseView]:
        self._call("find")
        found = [x for x in self.leases.values() if owner.items() <= x.owner.items()]
        return [view(x) for x in reversed(found) if not live or x.state is not LeaseState.ENDED][:limit]

    def release(self, lease: str, reason: str, client_id: str, force: bool = False) -> LeaseView:
        self._call("release", lease, reason)
        return view(self.end(lease, Outcome.STOPPED, reason))

    def give_back(self, lease: str, allocations: Sequence[str], client_id: str) -> LeaseView:
        self._call("give_back", lease, *allocations)
        if lease not in self.leases:
            raise NotFound(f"no lease {lease}")
        return view(self._move(lease, AllocationState.DRAINING, *allocations))

    def watch(self, lease: str, watcher: str, since: int = 0, timeout: float = 0) -> LeaseView:
        self._call("watch", lease, watcher)
        return view(self.leases[lease])

    # --- what the broker and the agents do

    def grant(self, lease: str) -> list[str]:
        """Reserve all allocations; returns their ids."""
        x = self.leases[lease]
        made = tuple(
            Allocation(
                id=f"{x.id}.{x.allocations_made + n + 1}",
                lease=x.id,
                epoch=x.epoch + 1,
                node=f"n{n}",
                role=AllocationRole.WORKER,
                gpus=tuple(range(x.request.gpus_per_worker)),
                workers=1,
            )
            for n in range(x.request.workers[0])
        )
        state = LeaseState.GRANTED
        self.leases[lease] = replace(
            x, state=state, epoch=x.epoch + 1, allocations=made, allocations_made=x.allocations_made + len(made)
        )
        return [a.id for a in made]

    def hold(self, *allocations: str) -> None:
        for a in allocations:
            self._move(a.rpartition(".")[0], AllocationState.HELD, a)

    def free(self, *allocations: str) -> None:
        for a in allocations:
            lease = self._move(a.rpartition(".")[0], AllocationState.FREED, a)
            if not lease.live:
                self.end(lease.id, Outcome.SUCCEEDED, "its last allocation was given back")

    def end(self, lease: str, outcome: Outcome, reason: str = "") -> Lease:
        x = replace(self.leases[lease], state=LeaseState.ENDED, outcome=outcome, reason=reason, allocations=())
        self.leases[lease] = x
        return x

    def _move(self, lease: str, state: AllocationState, *ids: str) -> Lease:
        x = self.leases[lease]
        self.leases[lease] = replace(
            x, allocations=tuple(replace(a, state=state) if a.id in ids else a for a in x.allocations)
        )
        return self.leases[lease]


def view(lease: Lease) -> LeaseView:
    return LeaseView(lease=lease, cost=Cost(), revision=1)


@pytest.fixture
def desk() -> Desk:
    return Desk()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def cluster() -> Cluster:
    return Cluster(address="10.0.0.1:6379", head="head", session="session_1")
