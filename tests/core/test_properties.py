"""A random walk of fleets, leases, agents and trainers: what must never happen, whatever does."""

from __future__ import annotations

import pickle
from collections import Counter
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from core_builders import HEARD, PROCESS, RAY, RAYLET, T0, lease, node, request, training
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from moorage.core.apply import apply
from moorage.core.decide import decide
from moorage.core.decision import Claim, Decision, Grant, Hold, Retarget, Retry, Stop, Warn
from moorage.core.failure import judge
from moorage.core.follow import gone, heard, started
from moorage.core.job import Evidence, JobKind
from moorage.core.lease import AllocationRole, AllocationState, Lease, LeaseState, Outcome, Why
from moorage.core.order import held_by_team
from moorage.core.policy import Policy, Team
from moorage.core.request import CapacityType
from moorage.core.state import State

POLICY = Policy(teams=(Team(name="red", quota=6), Team(name="blue", weight=2.0)), node_lost_s=60.0)

nodes = st.builds(
    lambda n, gpus, rack, islands, spot, cpus: node(
        f"n{n}",
        gpus,
        rack,
        islands=islands,
        capacity=CapacityType.SPOT if spot else CapacityType.ON_DEMAND,
        cpus=cpus,
    ),
    n=st.integers(0, 5),
    gpus=st.sampled_from((0, 2, 4, 8)),
    rack=st.sampled_from((None, "a", "b")),
    islands=st.sampled_from((0, 2, 4)),
    spot=st.booleans(),
    cpus=st.sampled_from((None, 4.0, 64.0)),
)
wants = st.builds(
    lambda low, factor, gpus, wish, spot, priority, cpus: request(
        low,
        low * factor,
        gpus,
        **wish,
        capacity=CapacityType.SPOT if spot else CapacityType.ON_DEMAND,
        priority=priority,
        cpus_per_worker=cpus,
    ),
    low=st.sampled_from((1, 1, 2)),
    factor=st.integers(1, 3),
    gpus=st.sampled_from((1, 1, 2)),
    wish=st.sampled_from(
        ({}, {"preferred": "rack"}, {"required": "rack"}, {"required": "host"}, {"required": "island"})
    ),
    spot=st.booleans(),
    priority=st.integers(0, 2),
    cpus=st.sampled_from((0, 0, 1)),
)
pick = st.integers(0, 1000)


class Walk(RuleBasedStateMachine):
    """Events in any order; after each, one round of `decide`, checked."""

    def __init__(self) -> None:
        super().__init__()
        self.state = State(heard=HEARD)
        self.now: datetime = T0
        self.made = 0

    @initialize(fleet=st.lists(nodes, min_size=2, max_size=6, unique_by=lambda n: n.id))
    def fleet(self, fleet: list[Any]) -> None:
        self.state = self.state.with_nodes(*fleet)

    def chosen(self, number: int, *states: LeaseState) -> Lease | None:
        some = [one for _, one in sorted(self.state.leases.items()) if one.state in states]
        return some[number % len(some)] if some else None

    # --- events

    @precondition(lambda self: len(self.state.leases) < 8)
    @rule(want=wants, job=st.sampled_from((RAY, RAY, PROCESS, RAYLET, None)), team=st.sampled_from(("red", "blue")))
    def submit(self, want: Any, job: Any, team: str) -> None:
        self.made += 1
        new = lease(f"l{self.made:02}", want, job, team=team, submitted_at=self.now)
        self.state = self.state.with_leases(new)
        self.round()

    @rule(seconds=st.sampled_from((1.0, 5.0, 20.0, 61.0)), quiet=pick, hush=st.booleans())
    def time(self, seconds: float, quiet: int, hush: bool) -> None:
        """Time passes; if `hush`, one node and one attempt are silent."""
        self.now += timedelta(seconds=seconds)
        later = self.state.heard + seconds
        names = sorted(self.state.nodes)
        silent = names[quiet % len(names)] if hush else ""
        alive = (replace(n, heard=later) for n in self.state.nodes.values() if n.id != silent and not n.lost)
        self.state = self.state.with_nodes(*alive).hearing(later)
        self.round()

    @rule(number=pick)
    def start(self, number: int) -> None:
        """All that is reserved starts, and one attempt is heard."""
        one = self.chosen(number, LeaseState.GRANTED, LeaseState.RUNNING)
        if one is not None:
            self.put(self.started(one))
            self.round()

    def started(self, one: Lease) -> Lease:
        for allocation in one.live:
            one = started(one, allocation.id, self.now)
        return heard(one, None, POLICY, self.now, self.state.heard)

    @rule(number=pick, step=st.integers(0, 50), rate=st.floats(1, 100), loss=st.floats(0, 2))
    def beat(self, number: int, step: int, rate: float, loss: float) -> None:
        one = self.chosen(number, LeaseState.GRANTED, LeaseState.RUNNING, LeaseState.STOPPING)
        if one is None:
            return
        progress = training(one, step=step, samples_done=10 * step, samples_total=600, throughput=rate, loss=loss)
        ray = one.job is not None and one.job.kind is JobKind.RAY
        self.put(heard(one, progress if ray else None, POLICY, self.now, self.state.heard))
        self.round()

    @rule(number=pick, flat=st.booleans())
    def settle(self, number: int, flat: bool) -> None:
        """Long calm training at one size, the loss falling or flat: the elastic stage gets to work."""
        one = self.chosen(number, LeaseState.GRANTED, LeaseState.RUNNING)
        if one is None or one.job is None or one.job.kind is not JobKind.RAY:
            return
        one = self.started(one)
        for n in range(8):
            self.now += timedelta(seconds=2)
            beat = training(
                one,
                step=20 + n,
                samples_done=200 + 10 * n,
                samples_total=9999,
                throughput=5.0 * one.workers,
                loss=9 / (n + 1),
            )
            one = heard(one, beat, POLICY, self.now, self.state.heard)
        self.put(one)
        self.round()

    @rule(number=pick)
    def release(self, number: int) -> None:
        one = self.chosen(number, LeaseState.QUEUED, LeaseState.GRANTED, LeaseState.RUNNING, LeaseState.STOPPING)
        if one is not None:
            self.do(Stop(lease=one.id, outcome=Outcome.STOPPED, reason="released", by=self.now))
            self.round()

    @rule(number=pick, code=st.sampled_from((0, 1, 137)))
    def exits(self, number: int, code: int) -> None:
        one = self.chosen(number, LeaseState.RUNNING, LeaseState.STOPPING)
        if one is not None:
            self.do(judge(one, Evidence(exit_code=code), POLICY, self.now))
            self.round()

    @rule()
    def agents_clear(self) -> None:
        """What drains is gone."""
        for one in tuple(self.state.leases.values()):
            for allocation in one.live:
                if allocation.state is AllocationState.DRAINING:
                    one = gone(one, allocation.id, self.now)
            self.put(one)
        self.round()

    @rule()
    def all_is_well(self) -> None:
        """Every node reports and takes work again."""
        well = (
            replace(n, lost=False, cordoned=False, draining=False, notice_deadline=None, heard=self.state.heard)
            for n in self.state.nodes.values()
        )
        self.state = self.state.with_nodes(*well)
        self.round()

    @rule(number=pick, dies=pick)
    def process_dies(self, number: int, dies: int) -> None:
        one = self.chosen(number, LeaseState.RUNNING)
        if one is not None and one.live:
            self.put(gone(one, one.live[dies % len(one.live)].id, self.now))
            self.round()

    @rule(number=pick, what=st.sampled_from(("cordoned", "draining", "notice", "well", "back")))
    def operate(self, number: int, what: str) -> None:
        names = sorted(self.state.nodes)
        one = self.state.nodes[names[number % len(names)]]
        if what == "notice":
            one = replace(one, notice_deadline=self.now + timedelta(seconds=30))
        elif what == "back":
            one = replace(one, lost=False, heard=self.state.heard, notice_deadline=None)
        else:
            one = replace(one, cordoned=what == "cordoned", draining=what == "draining", notice_deadline=None)
        self.state = self.state.with_nodes(one)
        self.round()

    # --- one round, checked

    def put(self, one: Lease | None) -> None:
        if one is not None:
            self.state = self.state.with_leases(one)

    def do(self, decision: Decision) -> None:
        self.state = apply(self.state, decision, POLICY, self.now)

    def round(self) -> None:
        before = pickle.dumps(self.state)
        answer = decide(self.state, POLICY, self.now)
        assert answer == decide(self.state, POLICY, self.now), "deterministic"
        assert pickle.loads(before) == self.state, "pure"
        assert answer.wake_at is None or answer.wake_at > self.now
        self.victims(answer.decisions)
        for decision in answer.decisions:
            self.check(decision)
            self.do(decision)
            self.within_quota(decision)
        ended = [one.id for one in self.state.leases.values() if one.state is LeaseState.ENDED]
        self.state = self.state.without_leases(*ended)

    def victims(self, decisions: tuple[Decision, ...]) -> None:
        """Nobody is evicted for an equal or weaker claim, and only inside a whole plan."""
        claims = [d for d in decisions if isinstance(d, Claim)]
        taken = {d.lease for d in decisions if isinstance(d, Retry) and d.preempted}
        taken |= {d.lease for d in decisions if isinstance(d, Retarget) and d.why is Why.PREEMPT}
        assert taken == {victim for claim in claims for victim in claim.victims}
        for claim in claims:
            mine = self.state.leases[claim.lease].request.priority
            assert all(self.state.leases[v].request.priority < mine for v in claim.victims)

    def check(self, decision: Decision) -> None:
        match decision:
            case Grant():
                self.check_grant(self.state.leases[decision.lease], decision)
            case Retarget():
                one = self.state.leases[decision.lease]
                known = {a.id for a in (*one.live, *decision.add)}
                assert set(decision.hold) <= known
                self.check_new(one, decision.add)
                workers = {a.id: a.workers for a in (*one.live, *decision.add)}
                if decision.why in (Why.GROW, Why.SHRINK, Why.PREEMPT):
                    assert sum(workers[id_] for id_ in decision.hold) in one.request.counts

    def check_grant(self, one: Lease, decision: Grant) -> None:
        """A whole gang or nothing, where it may be, in the domain that it must share."""
        assert decision.epoch == one.epoch + 1
        assert sum(a.workers for a in decision.allocations) in one.request.counts
        self.check_new(one, decision.allocations)
        spots = [a for a in decision.allocations if a.workers]
        assert all(len(a.gpus) == a.workers * one.request.gpus_per_worker for a in spots)
        on = [self.state.nodes[a.node] for a in spots]
        kinds = {a.role for a in decision.allocations}
        if one.job is None or one.job.kind is JobKind.PROCESS:
            assert kinds == {AllocationRole.PROCESS}
            assert len(spots) == 1
        match one.request.topology.required:
            case "rack":
                # One host is in one rack, named or not.
                assert len({n.id for n in on}) == 1 or len({n.domains["rack"] for n in on}) == 1
            case "host":
                assert len({n.id for n in on}) == 1
            case "island":
                islands = {(n.id, n.gpus[g].island) for n, a in zip(on, spots, strict=True) for g in a.gpus}
                assert len(islands) == 1

    def check_new(self, one: Lease, allocations: tuple[Any, ...]) -> None:
        """New allocations are on nodes that take work, on devices that exist."""
        assert len({a.id for a in (*one.allocations, *allocations)}) == len(one.allocations) + len(allocations)
        for a in allocations:
            where = self.state.nodes[a.node]
            assert not any((where.lost, where.cordoned, where.draining, where.notice_deadline))
            assert where.heard is not None
            assert self.state.heard - where.heard < POLICY.node_stale_s
            if a.workers:
                assert one.request.capacity.tolerates(where.capacity)
                assert set(a.gpus) <= {gpu.index for gpu in where.gpus}
                assert list(a.gpus) == sorted(set(a.gpus))

    def within_quota(self, decision: Decision) -> None:
        grows = isinstance(decision, Grant) or (isinstance(decision, Retarget) and decision.why is Why.GROW)
        if grows and self.state.leases[decision.lease].team == "red":
            assert held_by_team(self.state)["red"] <= 6

    # --- always

    @invariant()
    def no_gpu_is_held_twice(self) -> None:
        held = Counter((a.node, g) for one in self.state.leases.values() for a in one.live for g in a.gpus)
        assert all(count == 1 for count in held.values())

    @invariant()
    def states_fit_together(self) -> None:
        for one in self.state.leases.values():
            if one.state.active:
                assert one.epoch > 0
            if one.state is LeaseState.QUEUED:
                assert all(a.state is AllocationState.DRAINING for a in one.live)
            if one.state is LeaseState.STOPPING:
                assert one.live
                assert one.outcome is not None

    @precondition(lambda self: len(self.state.leases) > 2)
    @rule()
    def it_comes_to_rest(self) -> None:
        """With nothing new from the world, a few rounds later only the same holds are said."""
        for _ in range(6):
            answer = decide(self.state, POLICY, self.now)
            if all(isinstance(d, (Hold, Warn)) for d in answer.decisions):
                return
            self.round()
        raise AssertionError(answer.decisions)


TestWalk = Walk.TestCase
TestWalk.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
