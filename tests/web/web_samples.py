"""Hand-made fleets for the pages, and an api that only reads them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from random import Random

from moorage.api.errors import NotFound
from moorage.api.values import Cost, Event, EventKind, Fleet, GpuUse, LeaseView, LogChunk, NodeView, Segment
from moorage.core.fleet import Gpu, Node
from moorage.core.job import Activity, Job, JobKind, Phase, Progress
from moorage.core.lease import Allocation, AllocationRole, AllocationState, Lease, LeaseState, Outcome, Target, Why
from moorage.core.request import CapacityType, Request, Topology

#: The lease page counts from the real time.
NOW = datetime.now(UTC).replace(microsecond=0)
TRAIN = "0199f3a2-7c1e-7b4d-9a10-3f2c5d7e9a01"
SWEEP = "0199f3a1-02d4-7aa0-8c3b-5e6f7a8b9c02"
NOTEBOOK = "0199f39e-9b10-7c55-b1d2-1a2b3c4d5e03"
WAITING = "0199f3a3-11aa-7d01-a4b5-6c7d8e9fa004"
BIG = "0199f3a3-4f20-7e12-95c6-7d8e9fa0b105"


def ago(**span: float) -> datetime:
    return NOW - timedelta(**span)


def node(
    name: str,
    uses: Sequence[str | None],
    *,
    rack: str | None = "r1",
    spot: bool = False,
    condition: str = "ready",
    model: str = "H100",
    broken: Iterable[int] = (),
    price: str | None = None,
    **more: object,
) -> NodeView:
    """A node; `uses` names the lease of each GPU, or None."""
    gpus = tuple(
        Gpu(index=i, uuid=f"{name}-{i}", model=model, memory=80 << 30, healthy=i not in broken)
        for i in range(len(uses))
    )
    cost = Decimal(price or ("0.95" if spot else "2.49"))
    facts = Node(
        id=name,
        gpus=gpus,
        cpus=64,
        memory=512 << 30,
        domains={"zone": "eu-1a", "rack": rack} if rack else {},
        pool="h100-spot" if spot else "h100",
        capacity=CapacityType.SPOT if spot else CapacityType.ON_DEMAND,
        price=cost,
        on_demand_price=Decimal("2.49"),
        **more,  # type: ignore[arg-type]
    )
    held = tuple(
        GpuUse(index=i, lease=lease, allocation=f"{lease}.{i}" if lease else None, team="vision" if lease else None)
        for i, lease in enumerate(uses)
    )
    return NodeView(node=facts, gpus=held, condition=condition, silent_s=41.0 if condition == "stale" else 0.4)


def allocation(lease: str, number: int, where: str, gpus: Sequence[int], **more: object) -> Allocation:
    return Allocation(
        id=f"{lease}.{number}",
        lease=lease,
        epoch=2,
        node=where,
        role=AllocationRole.WORKER,
        gpus=tuple(gpus),
        workers=len(gpus),
        **{"state": AllocationState.HELD, **more},  # type: ignore[arg-type]
    )


def lease(
    name: str,
    owner: dict[str, str],
    *,
    state: LeaseState = LeaseState.RUNNING,
    allocations: Sequence[Allocation] = (),
    workers: tuple[int, int] = (1, 4),
    spent: str = "0",
    team: str = "vision",
    **more: object,
) -> LeaseView:
    request = Request(
        workers=workers, capacity=CapacityType.SPOT, topology=Topology(preferred="rack"), budget_usd=Decimal(5)
    )
    facts = {"request": request, "submitted_at": ago(minutes=9), **more, "epoch": 2}
    value = Lease(
        id=name,
        owner=owner,
        generation=1,
        team=team,
        job=Job(kind=JobKind.RAY, entrypoint=("python", "ray_jobs/train_digits.py"), max_retries=2),
        state=state,
        allocations=tuple(allocations),
        target=Target(
            hold=tuple(a.id for a in allocations), revision=3, why=Why.GROW, reason="4 workers finish 2 min sooner"
        ),
        **facts,  # type: ignore[arg-type]
    )
    total = Decimal(spent)
    cost = Cost(
        total_usd=total,
        busy_usd=total * Decimal("0.78"),
        overhead_usd=total * Decimal("0.12"),
        idle_usd=total * Decimal("0.04"),
        lost_usd=total * Decimal("0.05"),
        unknown_usd=total * Decimal("0.01"),
        saved_usd=total * Decimal("0.9"),
        gpu_seconds=Decimal(2140),
    )
    return LeaseView(lease=value, cost=cost, revision=7)


def airflow(dag: str, task: str, run: str = "manual__2026-11-30T11:50:00+00:00") -> dict[str, str]:
    return {"airflow.dag_id": dag, "airflow.task_id": task, "airflow.run_id": run, "airflow.map_index": "-1"}


def demo() -> Fleet:
    """4 nodes x 4 GPUs, two racks; the second rack is spot, and one of its nodes has a notice."""
    train = [
        allocation(TRAIN, 1, "node-a1", [0, 1]),
        allocation(TRAIN, 2, "node-a2", [0]),
        allocation(TRAIN, 3, "node-b1", [2], state=AllocationState.DRAINING),
    ]
    sweep = [allocation(SWEEP, 1, "node-b2", [0, 1, 2])]
    notebook = [allocation(NOTEBOOK, 1, "node-a1", [3])]
    progress = Progress(
        phase=Phase.TRAINING,
        step=1840,
        samples_done=117_760,
        samples_total=180_000,
        loss=0.21347,
        throughput=412.0,
        workers=3,
        checkpoint_step=1800,
    )
    return Fleet(
        at=NOW,
        nodes=(
            node("node-a1", [TRAIN, TRAIN, None, NOTEBOOK]),
            node("node-a2", [TRAIN, None, None, None], broken=[3]),
            node(
                "node-b1",
                [None, None, TRAIN, None],
                rack="r2",
                spot=True,
                condition="notice",
                notice_deadline=NOW + timedelta(seconds=94),
            ),
            node("node-b2", [SWEEP, SWEEP, SWEEP, None], rack="r2", spot=True),
        ),
        queue=(
            lease(
                WAITING,
                airflow("train_llm_adapter", "fine_tune"),
                state=LeaseState.QUEUED,
                workers=(2, 2),
                team="language",
                submitted_at=ago(minutes=4),
                request=Request(
                    workers=(2, 2), gpus_per_worker=4, models=("H100",), topology=Topology(required="rack")
                ),
                reason="2 x 4 H100 in one rack: largest free rack is r1 with 4; 1 node has a notice",
            ),
        ),
        leases=(
            lease(
                TRAIN,
                airflow("train_digits", "train"),
                allocations=train,
                spent="0.8423",
                epoch=2,
                interruptions=1,
                granted_at=ago(minutes=8),
                progress=progress,
                reason="moving off node-b1: its cloud takes it in 94 s",
                notes={"mlflow.run_id": "9f3a1c0d2b"},
                best_step=1840,
            ),
            lease(
                SWEEP,
                airflow("sweep_augmentations", "trial") | {"airflow.map_index": "7"},
                allocations=sweep,
                spent="12.4071",
                granted_at=ago(hours=3),
                epoch=1,
                team="language",
                progress=Progress(phase=Phase.CHECKPOINTING, step=20_400, loss=1.084, samples_done=9, samples_total=10),
            ),
            lease(
                NOTEBOOK,
                {"person": "mara"},
                state=LeaseState.GRANTED,
                allocations=notebook,
                workers=(1, 1),
                spent="0.0415",
                granted_at=ago(minutes=1),
                epoch=1,
                reason="waits for its first heartbeat",
            ),
        ),
        frozen=False,
        revision=41,
    )


def empty() -> Fleet:
    return Fleet(at=NOW, nodes=(), queue=(), leases=(), frozen=False, revision=0)


def long_names() -> Fleet:
    """Names as long as clouds and people make them."""
    dag = "nightly_retraining_of_the_recommendation_model_for_all_european_storefronts_v2"
    where = "gke-production-europe-west4-gpu-h100-spot-pool-7f9c1d2e-xk4q.europe-west4-a.internal"
    rack = "projects-123456789-zones-europe-west4-a-blocks-0b8e4f-subblocks-77aa19"
    held = lease(
        TRAIN,
        airflow(dag, "train_with_elastic_workers_and_early_stopping_on_validation_loss"),
        allocations=[allocation(TRAIN, 1, where, [0, 1])],
        team="recommendations-and-personalisation-research",
        spent="123456.78",
        granted_at=ago(days=12),
        reason="x" * 300,
    )
    waits = lease(BIG, airflow(dag, "t" * 120), state=LeaseState.QUEUED, reason="no " * 120, team="t" * 90)
    view = node(where, [TRAIN, TRAIN, *[None] * 6], rack=rack, spot=True, condition="stale")
    return Fleet(at=NOW, nodes=(view,), queue=(waits,), leases=(held,), frozen=True, revision=3)


def large(nodes: int = 1000) -> Fleet:
    """Nodes of 8 GPUs in racks of 25, some trouble here and there."""
    random = Random(7)
    ids = [f"0199f3a2-{n:04x}-7b4d-9a10-3f2c5d7e{n:04x}" for n in range(60)]
    views, at = [], 0
    while at < nodes:
        gang, holder = random.choice([1, 1, 2, 4, 8, 12]), random.choice(ids)
        for _ in range(min(gang, nodes - at)):
            idle, part = random.random() < 0.18, random.randint(1, 8) if gang == 1 else 8
            uses = [None] * 8 if idle else [holder] * part + [None] * (8 - part)
            trouble = random.random()
            condition = (
                "stale"
                if trouble < 0.01
                else "draining"
                if trouble < 0.02
                else "notice"
                if trouble < 0.035
                else "ready"
            )
            broken = [7] if trouble > 0.985 and uses[7] is None else []
            views.append(
                node(
                    f"gpu-{at:04}",
                    uses,
                    rack=f"r{at // 25 + 1}",
                    spot=at // 25 % 3 == 2,
                    condition=condition,
                    broken=broken,
                )
            )
            at += 1
    leases = tuple(
        lease(one, airflow(f"pipeline_{n:02}", "train"), spent=f"{n * 3.7:.2f}", granted_at=ago(hours=n / 3))
        for n, one in enumerate(ids)
    )
    return Fleet(at=NOW, nodes=tuple(views), queue=demo().queue, leases=leases, frozen=False, revision=9)


def story() -> tuple[Sequence[Event], Sequence[Segment]]:
    """The life of TRAIN: grows, gets a notice, loses a node, resumes."""
    start = ago(minutes=8)

    def at(seconds: float) -> datetime:
        return start + timedelta(seconds=seconds)

    told = [
        (-60, EventKind.SUBMITTED, "1-4 workers x 1 GPU, spot, one rack preferred", None),
        (0, EventKind.GRANTED, "granted 1 GPU on node-b1, one host", None),
        (9, EventKind.STARTED, "the attempt was heard for the first time", None),
        (60, EventKind.RESIZED, "1 to 3 workers: 3 workers finish 4 min sooner", None),
        (69, EventKind.RESUMED, "training again at step 420 after 9.1 s, 0 steps lost", None),
        (230, EventKind.NOTICE, "node-b1: the cloud takes it in 120 s (aws-imds)", "node-b1"),
        (350, EventKind.LOST, "node-b1 is lost: silent past its notice", "node-b1"),
        (362, EventKind.RESUMED, "training again at step 1311 after 12.4 s, 1 step lost", None),
        (430, EventKind.NOTE, "mlflow.run_id: 9f3a1c0d2b", None),
    ]
    events = [
        Event(
            seq=n,
            at=at(s),
            kind=kind,
            sentence=said,
            lease=TRAIN,
            node=where,
            who="airflow:mara" if n == 0 else "broker",
        )
        for n, (s, kind, said, where) in enumerate(told)
    ]
    work = Activity
    bars = [
        ("1", "node-b1", (2,), [(0, 12, work.OVERHEAD), (12, 345, work.BUSY), (345, 350, work.LOST)]),
        (
            "2",
            "node-a1",
            (0, 1),
            [(60, 70, work.OVERHEAD), (70, 350, work.BUSY), (350, 362, work.OVERHEAD), (362, None, work.BUSY)],
        ),
        ("3", "node-a2", (0,), [(352, 362, work.OVERHEAD), (362, 470, work.BUSY), (470, None, work.IDLE)]),
    ]
    segments = [
        Segment(
            id=hash((n, s)) % 1000,
            allocation=f"{TRAIN}.{n}",
            lease=TRAIN,
            epoch=2,
            team="vision",
            node=where,
            pool="h100",
            gpus=gpus,
            activity=kind,
            price=Decimal("0.95"),
            on_demand_price=Decimal("2.49"),
            start=at(s),
            end=None if e is None else at(e),
        )
        for n, where, gpus, parts in bars
        for s, e, kind in parts
    ]
    return events, segments


class Reading:
    """The few methods that pages call, answered from one fleet. `calls` remembers what an operator did."""

    def __init__(self, fleet: Fleet) -> None:
        self.value = fleet
        self.calls: list[tuple[str, dict[str, object]]] = []

    def fleet(self) -> Fleet:
        return self.value

    def get(self, lease: str) -> LeaseView:
        for view in (*self.value.leases, *self.value.queue):
            if view.lease.id.startswith(lease):
                return view
        raise NotFound(f"no lease {lease!r}: `moorage leases` lists them")

    def events(self, since: int = 0, lease: str | None = None, limit: int = 500, timeout: float = 0) -> Sequence[Event]:
        return story()[0]

    def ledger(self, lease: str) -> Sequence[Segment]:
        return story()[1]

    def logs(self, lease: str, offset: int = 0, timeout: float = 0) -> LogChunk:
        whole = "".join(f"step {n * 10:>5}  loss {2.3 / (1 + n / 9):.4f}  workers 3\n" for n in range(120))
        return LogChunk(text=whole[offset:], next=len(whole), end=False)

    def cordon(self, node: str, on: bool, client_id: str) -> None:
        self.calls.append(("cordon", {"node": node, "on": on, "client_id": client_id}))

    def drain(self, node: str, client_id: str) -> None:
        self.calls.append(("drain", {"node": node, "client_id": client_id}))

    def release(self, lease: str, reason: str, client_id: str, force: bool = False) -> LeaseView:
        self.calls.append(("release", {"lease": lease, "reason": reason, "client_id": client_id, "force": force}))
        return self.get(lease)


OUTCOMES = tuple(Outcome)
