"""Whole runs: nothing is booked twice, every job ends, gangs grow and shrink, dollars add up."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from decimal import Decimal
from random import Random

import pytest

from moorage.core.decision import Decisions
from moorage.core.fleet import Gpu, Node
from moorage.core.job import Job, JobKind
from moorage.core.lease import LeaseState, Outcome
from moorage.core.policy import Policy
from moorage.core.request import CapacityType, Request, Topology
from moorage.core.state import State
from moorage.sim.engine import simulate
from moorage.sim.result import Result
from moorage.sim.work import Arrival, Outage, Work

#: Real waits: `make test` runs them, `make check` does not.
pytestmark = pytest.mark.slow

POLICY = Policy()
PROCESS = Job(kind=JobKind.PROCESS, entrypoint=("python", "x.py"))
SPOT = CapacityType.SPOT


def node(name: str, rack: str, gpus: int = 4, *, spot: bool = False) -> Node:
    return Node(
        id=name,
        gpus=tuple(Gpu(index=i, uuid=f"{name}-{i}", model="H100") for i in range(gpus)),
        domains={"rack": rack},
        capacity=SPOT if spot else CapacityType.ON_DEMAND,
        pool="spot" if spot else "on-demand",
        price=Decimal("0.60") if spot else Decimal("2.00"),
        on_demand_price=Decimal("2.00"),
    )


def demo() -> list[Node]:
    """
    rack a: od1 [0123] 2.00   s1 [0123] 0.60 spot
    rack b: od2 [0123] 2.00   s2 [0123] 0.60 spot
    """
    return [node("od1", "a"), node("s1", "a", spot=True), node("od2", "b"), node("s2", "b", spot=True)]


def elastic(name: str = "x", **more: object) -> Arrival:
    wants = Request(workers=(1, 4), capacity=SPOT, topology=Topology(preferred="rack"))
    return Arrival(**{"id": name, "request": wants, **more})


def nothing_is_booked_twice(state: State, answer: Decisions, now: float) -> None:
    held = Counter(
        (a.node, gpu)
        for lease in state.leases.values()
        for a in lease.live
        for gpu in a.gpus
    )  # fmt: skip
    twice = [key for key, count in held.items() if count > 1]
    assert not twice, f"at {now}: {twice}"
    known = {(n.id, gpu.index) for n in state.nodes.values() for gpu in n.gpus}
    assert held.keys() <= known


def run(nodes: list[Node], arrivals: list[Arrival], until: float = 5000, **more: object) -> Result:
    return simulate(nodes, arrivals, **{"policy": POLICY, "until": until, "watch": nothing_is_booked_twice, **more})


def ended(result: Result) -> set[tuple[LeaseState, Outcome | None]]:
    return {(lease.state, lease.outcome) for lease in result.leases.values()}


DONE = {(LeaseState.ENDED, Outcome.SUCCEEDED)}


def test_one_elastic_job_grows_and_shrinks() -> None:
    result = run(demo(), [elastic()])
    assert ended(result) == DONE
    assert [(r.before, r.after, r.why) for r in result.resizes] == [(1, 4, "grow"), (4, 1, "shrink")]
    assert "the loss is flat" in result.resizes[1].reason
    alone = 10_000 / 30
    assert result.run_time("x") is not None
    assert result.run_time("x") < alone, "faster than one worker, resizes and start included"


def test_a_spot_notice_moves_it_and_loses_nothing() -> None:
    result = run(demo(), [elastic()], outages=[Outage(node="s1", at=80, notice_s=20)])
    assert ended(result) == DONE
    assert [r.why for r in result.resizes if r.why == "notice"] == ["notice"]
    x = result.leases["x"]
    assert (x.epoch, x.interruptions, x.failures) == (1, 0, 0), "the same attempt, on other GPUs"
    assert result.repeated["x"] == 0


def test_a_node_that_goes_without_a_word() -> None:
    """The gang is short until the node is declared lost; the attempt is silent on it all the while."""
    policy = replace(POLICY, node_lost_s=60.0)
    result = run(demo(), [elastic()], outages=[Outage(node="s1", at=70)], policy=policy)
    assert ended(result) == DONE
    assert result.repeated["x"] > 0


def test_the_heads_node_goes_and_comes_back() -> None:
    policy = replace(POLICY, node_lost_s=60.0)
    result = run(demo(), [elastic()], outages=[Outage(node="od1", at=70, back=300)], policy=policy)
    assert ended(result) == DONE
    assert result.leases["x"].epoch == 2


def test_a_budget_stops_it_in_time() -> None:
    wants = Request(workers=(4, 4), budget_usd=Decimal("0.50"))
    result = run(demo(), [Arrival(id="x", request=wants, work=Work(samples=100_000))])
    x = result.leases["x"]
    assert x.outcome is Outcome.STOPPED
    assert Decimal("0.43") < result.costs["x"].total_usd <= Decimal("0.50")
    assert x.warnings.keys() == {"budget"}


def test_costs_add_up_and_show_what_was_saved() -> None:
    found = run(demo(), [elastic()]).costs["x"]
    parts = (found.busy_usd, found.idle_usd, found.lost_usd, found.overhead_usd, found.unknown_usd)
    assert sum(parts, Decimal(0)) == found.total_usd > 0
    assert found.busy_usd > found.overhead_usd > 0
    assert found.saved_usd > found.total_usd, "spot at 0.60 instead of 2.00"


def test_a_better_claim_gets_its_gpus_within_the_grace() -> None:
    low = [
        Arrival(id=f"low{n}", request=Request(gpus_per_worker=4, priority=0), work=Work(samples=9000)) for n in range(2)
    ]
    high = Arrival(id="high", at=60, request=Request(gpus_per_worker=4, priority=9), work=Work(samples=3000))
    result = run([node("n1", "a"), node("n2", "a")], [*low, high])
    assert ended(result) == DONE
    assert result.waits["high"] <= POLICY.stop_grace_s + 3
    victim = next(lease for name, lease in result.leases.items() if name != "high" and lease.epoch > 1)
    assert (victim.failures, victim.interruptions) == (0, 0)


def crowd(seed: int) -> tuple[list[Arrival], list[Outage]]:
    random = Random(seed)
    arrivals = []
    for n in range(30):
        low = random.choice((1, 1, 2))
        wants = Request(
            workers=(low, low * random.choice((1, 2, 4))),
            gpus_per_worker=random.choice((1, 1, 2)),
            capacity=random.choice((SPOT, CapacityType.ON_DEMAND)),
            priority=random.choice((0, 0, 1, 5)),
            topology=random.choice((Topology(), Topology(preferred="rack"), Topology(required="rack"))),
        )
        job = PROCESS if random.random() < 0.3 else Job(kind=JobKind.RAY, entrypoint=("x",))
        work = Work(samples=random.randrange(1000, 6000), flat_after=random.choice((0.5, 0.9)))
        if job is PROCESS:
            wants = replace(wants, workers=(1, 1))
        arrivals.append(
            Arrival(
                id=f"j{n:02}", at=random.randrange(600), team=random.choice("rgb"), request=wants, job=job, work=work
            )
        )
    outages = [
        Outage(node="s1", at=200, notice_s=random.choice((None, 30)), back=500),
        Outage(node="od2", at=400, notice_s=random.choice((None, 120)), back=900),
    ]
    return arrivals, outages


@pytest.mark.parametrize("seed", range(4))
def test_a_crowd_with_outages_all_ends(seed: int) -> None:
    arrivals, outages = crowd(seed)
    policy = replace(POLICY, node_lost_s=60.0)
    result = run(demo(), arrivals, until=8000, outages=outages, seed=seed, policy=policy)
    assert ended(result) == DONE
    assert {lease.failures for lease in result.leases.values()} == {0}
    assert result.utilisation is not None
    assert 0 < result.utilisation <= 1
    for name, found in result.costs.items():
        parts = (found.busy_usd, found.idle_usd, found.lost_usd, found.overhead_usd, found.unknown_usd)
        assert sum(parts, Decimal(0)) == found.total_usd > 0, name


def test_the_same_seed_is_the_same_run() -> None:
    arrivals, outages = crowd(1)
    one = run(demo(), arrivals[:8], until=2000, outages=outages, seed=5)
    two = run(demo(), arrivals[:8], until=2000, outages=outages, seed=5)
    other = run(demo(), arrivals[:8], until=2000, outages=outages, seed=6)
    assert one == two
    assert one != other
