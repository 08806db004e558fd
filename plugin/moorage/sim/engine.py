"""The loop: virtual seconds in which nodes report, agents obey, trainers train, and `decide` decides."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal

from moorage.core.apply import apply
from moorage.core.cost import Segment, activity, cost
from moorage.core.decide import decide
from moorage.core.decision import Decision, Decisions, Grant, Retarget
from moorage.core.failure import judge
from moorage.core.fleet import Node
from moorage.core.follow import gone, heard, started
from moorage.core.job import Activity, Evidence
from moorage.core.lease import Allocation, AllocationState, Lease, LeaseState
from moorage.core.policy import Policy
from moorage.core.state import State
from moorage.sim.result import Resize, Result
from moorage.sim.trainer import Trainer, fresh
from moorage.sim.work import Arrival, Outage

#: When every run starts. A fixed date: runs must not depend on the day they are made.
START = datetime(2026, 1, 1, tzinfo=UTC)

#: Called after each round with the state that it left, the decisions, and the virtual second.
Watch = Callable[[State, Decisions, float], None]


def simulate(
    nodes: Sequence[Node],
    arrivals: Sequence[Arrival],
    policy: Policy,
    until: float,
    *,
    outages: Sequence[Outage] = (),
    seed: int = 0,
    tick: float = 1.0,
    watch: Watch | None = None,
) -> Result:
    """Run until all leases ended, or `until` virtual seconds. The same arguments give the same result."""
    world = _World(
        state=State().with_nodes(*(replace(node, heard=0.0) for node in nodes)), policy=policy, seed=seed, tick=tick
    )
    todo = sorted(arrivals, key=lambda a: (a.at, a.id))
    while world.now < until and (todo or world.state.leases):
        while todo and todo[0].at <= world.now:
            world.arrive(todo.pop(0))
        world.nodes_live(outages)
        world.agents_obey()
        world.trainers_train()
        answer = world.decide()
        if watch is not None:
            watch(world.state, answer, world.now)
        world.account()
        world.now += tick
    return world.result()


@dataclass(slots=True)
class _World:
    """Everything that changes. Only the engine sees it."""

    state: State
    policy: Policy
    seed: int
    tick: float
    now: float = 0.0
    alive: frozenset[str] = frozenset()
    leaving: frozenset[str] = frozenset()
    trainers: dict[str, Trainer] = field(default_factory=dict)
    arrivals: dict[str, Arrival] = field(default_factory=dict)
    ended: dict[str, Lease] = field(default_factory=dict)
    waits: dict[str, float] = field(default_factory=dict)
    resizes: list[Resize] = field(default_factory=list)
    #: Allocation -> its open ledger segment.
    open: dict[str, Segment] = field(default_factory=dict)
    closed: dict[str, list[Segment]] = field(default_factory=dict)
    held: float = 0.0
    there: float = 0.0
    decides: int = 0

    @property
    def clock(self) -> datetime:
        return START + timedelta(seconds=self.now)

    # --- the world

    def arrive(self, arrival: Arrival) -> None:
        self.arrivals[arrival.id] = arrival
        self.trainers[arrival.id] = fresh(arrival.work, self.seed, arrival.id)
        lease = Lease(
            id=arrival.id,
            owner={"sim": arrival.id},
            generation=1,
            team=arrival.team,
            request=arrival.request,
            job=arrival.job,
            submitted_at=self.clock,
        )
        self.state = self.state.with_leases(lease)

    def nodes_live(self, outages: Sequence[Outage]) -> None:
        """Nodes report while they live; one that is back after it was lost reports that nothing is on it."""
        down = {o.node for o in outages if o.at <= self.now and (o.back is None or self.now < o.back)}
        notices = {o.node: o.at for o in outages if o.notice_s is not None and o.at - o.notice_s <= self.now}
        self.state = self.state.hearing(self.now)
        self.alive = frozenset(self.state.nodes) - down
        self.leaving = frozenset(name for name, at in notices.items() if self.now < at)
        self.state = self.state.with_nodes(*(self._reported(node, notices) for node in self._living()))

    def _living(self) -> Iterable[Node]:
        return (node for node in self.state.nodes.values() if node.id in self.alive)

    def _reported(self, node: Node, notices: dict[str, float]) -> Node:
        at = notices.get(node.id)
        deadline = START + timedelta(seconds=at) if at is not None and self.now < at else None
        return replace(node, heard=self.now, lost=False, notice_deadline=deadline)

    def agents_obey(self) -> None:
        """Reserved allocations start, draining ones end in time, and what a dead node held is gone when it is back."""
        for lease in tuple(self.state.leases.values()):
            after = lease
            for allocation in lease.live:
                after = self._obey(after, allocation)
            if after is not lease:
                self._replace(after)

    def _obey(self, lease: Lease, allocation: Allocation) -> Lease:
        if allocation.node not in self.alive:
            return lease
        if allocation.state is AllocationState.RESERVED:
            return started(lease, allocation.id, self.clock)
        over = allocation.drain_by is not None and allocation.drain_by <= self.clock
        if allocation.state is AllocationState.DRAINING and over:
            return gone(lease, allocation.id, self.clock)
        return lease

    def trainers_train(self) -> None:
        for lease in tuple(self.state.leases.values()):
            if lease.state.active or lease.state is LeaseState.STOPPING:
                self._train(lease, self.trainers[lease.id])

    def _train(self, lease: Lease, trainer: Trainer) -> None:
        if not trainer.tick(lease, self.alive, self.now, self.tick, self.leaving):
            return
        lease = heard(lease, trainer.progress(lease), self.policy, self.clock, self.now)
        self._replace(lease)
        if trainer.finished or lease.state is LeaseState.STOPPING:
            evidence = Evidence(exit_code=0, marker="{}" if trainer.finished else None)
            self._apply(judge(lease, evidence, self.policy, self.clock))

    # --- the broker's part

    def decide(self) -> Decisions:
        self.decides += 1
        self.state = self.state.with_leases(*(self._with_spend(lease) for lease in self.state.leases.values()))
        answer = decide(self.state, self.policy, self.clock)
        for decision in answer.decisions:
            self._note(decision)
            self._apply(decision)
        return answer

    def _with_spend(self, lease: Lease) -> Lease:
        if lease.request.budget_usd is None:
            return lease
        return replace(lease, spent_usd=self._cost(lease.id))

    def _cost(self, lease: str) -> Decimal:
        return cost(self._segments(lease), self.clock).total_usd

    def _segments(self, lease: str) -> list[Segment]:
        return [*self.closed.get(lease, ()), *(s for s in self.open.values() if s.lease == lease)]

    def _note(self, decision: Decision) -> None:
        match decision:
            case Grant() if decision.lease not in self.waits:
                self.waits[decision.lease] = self.now - self.arrivals[decision.lease].at
            case Retarget():
                lease = self.state.leases[decision.lease]
                new = {a.id: a.workers for a in (*lease.live, *decision.add)}
                after = sum(new.get(id_, 0) for id_ in decision.hold)
                self.resizes.append(
                    Resize(
                        at=self.now,
                        lease=lease.id,
                        before=lease.workers,
                        after=after,
                        why=decision.why.value,
                        reason=decision.reason,
                    )
                )

    def _apply(self, decision: Decision) -> None:
        self.state = apply(self.state, decision, self.policy, self.clock)
        for lease in tuple(self.state.leases.values()):
            if lease.state is LeaseState.ENDED:
                self._replace(lease)

    def _replace(self, lease: Lease) -> None:
        """The lease as it is now; one that ended leaves the state."""
        if lease.state is LeaseState.ENDED:
            self.ended[lease.id] = lease
            self.state = self.state.without_leases(lease.id)
        else:
            self.state = self.state.with_leases(lease)

    # --- the ledger

    def account(self) -> None:
        """Cut ledger segments where an allocation comes, goes or changes what it does."""
        live: dict[str, tuple[Lease, Allocation, Activity]] = {}
        for lease in self.state.leases.values():
            what = activity(lease, self.policy, self.now)
            live.update({a.id: (lease, a, what) for a in lease.live if a.gpus})
        for key, segment in tuple(self.open.items()):
            if key not in live or live[key][2] is not segment.activity:
                self.closed.setdefault(segment.lease, []).append(replace(segment, end=self.clock))
                del self.open[key]
        for key, (lease, allocation, what) in live.items():
            if key not in self.open:
                self.open[key] = self._segment(lease, allocation, what)
        self.held += self.tick * sum(len(a.gpus) for _, a, _ in live.values())
        self.there += self.tick * sum(len(node.gpus) for node in self._living())

    def _segment(self, lease: Lease, allocation: Allocation, what: Activity) -> Segment:
        node = self.state.nodes[allocation.node]
        return Segment(
            id=0,
            allocation=allocation.id,
            lease=lease.id,
            epoch=allocation.epoch,
            team=lease.team,
            node=node.id,
            pool=node.pool,
            gpus=allocation.gpus,
            activity=what,
            price=node.price,
            on_demand_price=node.on_demand_price,
            start=self.clock,
        )

    def result(self) -> Result:
        return Result(
            start=START,
            seconds=self.now,
            leases={**self.ended, **self.state.leases},
            waits=self.waits,
            costs={key: cost(self._segments(key), self.clock) for key in self.arrivals},
            resizes=tuple(self.resizes),
            repeated={key: trainer.repeated for key, trainer in self.trainers.items()},
            utilisation=self.held / self.there if self.there else None,
            decides=self.decides,
        )
