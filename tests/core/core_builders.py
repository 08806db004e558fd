"""Short builders for fleets and leases. Times are T0 plus seconds; the hearing clock starts at 1000."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from moorage.core.apply import apply
from moorage.core.decide import decide
from moorage.core.decision import Decision, Decisions
from moorage.core.fleet import Gpu, Node
from moorage.core.follow import heard, started
from moorage.core.job import Job, JobKind, Phase, Progress
from moorage.core.lease import Lease
from moorage.core.policy import Policy
from moorage.core.request import CapacityType, Request, Topology
from moorage.core.state import State

T0 = datetime(2026, 12, 1, 12, 0, 0, tzinfo=UTC)
HEARD = 1000.0
POLICY = Policy()

RAY = Job(kind=JobKind.RAY, entrypoint=("python", "train.py"))
PROCESS = Job(kind=JobKind.PROCESS, entrypoint=("python", "task.py"))
RAYLET = Job(kind=JobKind.RAYLET, head="10.0.0.1:6379")


def at(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


def node(
    name: str,
    gpus: int | tuple[Gpu, ...] = 4,
    rack: str | None = None,
    *,
    islands: int = 0,
    model: str = "H100",
    **more: Any,
) -> Node:
    """A well node. `islands`: GPUs per NVLink island; 0: islands are not known. `gpus` may be given one by one."""
    devices = (
        gpus
        if isinstance(gpus, tuple)
        else tuple(
            Gpu(
                index=i,
                uuid=f"GPU-{name}-{i}",
                model=model,
                memory=80 << 30,
                island=i // islands if islands else None,
                healthy=True,
            )
            for i in range(gpus)
        )
    )
    facts = {"gpus": devices, "domains": {"rack": rack} if rack else {}, "heard": HEARD, "price": Decimal("2.00")}
    return Node(id=name, **{**facts, **more})


def spot(name: str, gpus: int = 4, rack: str | None = None, **more: Any) -> Node:
    return node(name, gpus, rack, **{"capacity": CapacityType.SPOT, "price": Decimal("0.60"), **more})


def request(low: int = 1, high: int | None = None, gpus: int = 1, **more: Any) -> Request:
    required, preferred = more.pop("required", None), more.pop("preferred", None)
    topology = Topology(required=required, preferred=preferred)
    return Request(workers=(low, high or low), gpus_per_worker=gpus, topology=topology, **more)


def lease(name: str, wants: Request | None = None, job: Job | None = RAY, **more: Any) -> Lease:
    facts = {"owner": {"test": name}, "generation": 1, "team": "red", "submitted_at": T0}
    return Lease(id=name, request=wants or request(), job=job, **{**facts, **more})


def fleet(*nodes: Node) -> State:
    return State(heard=HEARD).with_nodes(*nodes)


def step(state: State, policy: Policy = POLICY, now: datetime = T0) -> tuple[State, Decisions]:
    """Decide once and apply it all."""
    answer = decide(state, policy, now)
    return carry_out(state, answer.decisions, policy, now), answer


def carry_out(state: State, decisions: tuple[Decision, ...], policy: Policy = POLICY, now: datetime = T0) -> State:
    for decision in decisions:
        state = apply(state, decision, policy, now)
    return state


def of_kind(answer: Decisions, *kinds: type) -> list[Any]:
    return [decision for decision in answer.decisions if isinstance(decision, kinds)]


def training(one: Lease, **facts: Any) -> Progress:
    """A heartbeat of a gang that trains with all it should hold."""
    workers = [a for a in one.live if a.workers and a.id in one.target.hold]
    values = {
        "phase": Phase.TRAINING,
        "workers": one.workers,
        "using": tuple(a.id for a in workers),
        "target_revision": one.target.revision,
        "step": 1,
        "samples_done": 10,
        "samples_total": 1000,
    }
    return Progress(**{**values, **facts})


def run(state: State, name: str, now: datetime = T0, policy: Policy = POLICY, **facts: Any) -> State:
    """All its allocations start, and its attempt is heard training."""
    one = state.leases[name]
    for allocation in one.live:
        if allocation.id in one.target.hold:
            one = started(one, allocation.id, now)
    progress = training(one, **facts) if one.job and one.job.kind is JobKind.RAY else None
    return state.with_leases(heard(one, progress, policy, now, state.heard))


def running(state: State, *leases: Lease, now: datetime = T0, policy: Policy = POLICY) -> State:
    """The state with these leases granted and running."""
    state, _ = step(state.with_leases(*leases), policy, now)
    for one in leases:
        state = run(state, one.id, now, policy)
    return state


def hearing(state: State, seconds: float, *silent: str) -> State:
    """The hearing clock goes on; every node reports and every attempt is heard, but the silent ones."""
    later = state.heard + seconds
    nodes = [n if n.id in silent else replace(n, heard=later) for n in state.nodes.values()]
    speaking = (one for one in state.leases.values() if one.attempt_heard is not None and one.id not in silent)
    leases = [replace(one, attempt_heard=later) for one in speaking]
    return state.with_nodes(*nodes).with_leases(*leases).hearing(later)


def places(state: State, name: str) -> dict[str, tuple[int, ...]]:
    """node -> devices that the lease is to hold."""
    held: dict[str, tuple[int, ...]] = {}
    one = state.leases[name]
    for allocation in one.live:
        if allocation.gpus and allocation.id in one.target.hold:
            held[allocation.node] = tuple(sorted((*held.get(allocation.node, ()), *allocation.gpus)))
    return held
