"""Values that only the wire needs; what core already has (Lease, Node, Job, Policy, ...) is said as it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from moorage.core.cost import Cost, Segment
from moorage.core.fleet import Gpu, Node
from moorage.core.job import Evidence, Job
from moorage.core.lease import AllocationRole, Lease
from moorage.core.request import Request

__all__ = [
    "Cost",
    "Event",
    "EventKind",
    "Explanation",
    "Fleet",
    "GpuUse",
    "Held",
    "Labels",
    "LeaseView",
    "LogChunk",
    "NodeReport",
    "NodeView",
    "Notice",
    "Order",
    "Orders",
    "PolicyRevision",
    "Renewal",
    "Segment",
    "Submission",
    "Task",
    "TaskPhase",
    "TokenView",
    "Want",
]

#: Owner labels: what `LeaseApi.find` searches by.
Labels = Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """A request with its owner and job.

    The key is `owner` + the number of leases of that owner that have ended: submitting again while one lives finds it.
    """

    owner: Labels
    request: Request
    job: Job | None = None
    #: The caller's own id of this call: repeated (the reply was lost), it returns the first answer.
    client_id: str
    #: Only an operator may name another team than the token's.
    team: str | None = None
    #: An ended lease whose checkpoints are continued.
    resume_from: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseView:
    """A lease as its owner sees it."""

    lease: Lease
    cost: Cost
    #: Rises with every change of the lease: what `watch` waits for.
    revision: int


class EventKind(StrEnum):
    """Kinds of journal rows, each with its facts. Every row of a lease also has ``epoch``."""

    SUBMITTED = "submitted"
    #: A queued lease's reason changed.
    HELD = "held"
    #: workers, gpus, level, nodes (comma separated).
    GRANTED = "granted"
    #: The attempt was heard for the first time.
    STARTED = "started"
    #: At most one a second: phase, step, samples, samples_total, loss, throughput, workers, checkpoint_step, gpus
    #: (held now), and ``metric.<name>`` for each metric of the progress.
    PROGRESS = "progress"
    #: The target changed: from, to (workers), why, revision, gpus.
    RESIZED = "resized"
    #: Training again after a resize, an interruption or a retry: step, best_step, steps_lost, seconds_stopped (since
    #: the last heartbeat in phase training), workers.
    RESUMED = "resumed"
    #: An attempt is over and the lease queued again: fault, interruption (0 or 1).
    RETRIED = "retried"
    WARNED = "warned"
    STOPPING = "stopping"
    #: outcome.
    ENDED = "ended"
    #: A node got one: deadline (ISO 8601), source.
    NOTICE = "notice"
    #: A node is lost; one row for the node, and one for each lease that held something there: workers, notice (0 or 1).
    LOST = "lost"
    #: A node joined, came back, restarted its agent, or was cordoned or drained.
    NODE = "node"
    #: allocation, state.
    ALLOCATION = "allocation"
    POLICY = "policy"
    TOKEN = "token"
    NOTE = "note"


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One row of the journal. `seq` is gapless per broker database; `who` is the principal's name or ``broker``."""

    seq: int
    at: datetime
    kind: EventKind
    sentence: str
    who: str = "broker"
    lease: str | None = None
    node: str | None = None
    team: str | None = None
    facts: Mapping[str, str | int | float | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogChunk:
    """Bytes [offset, next) of a log, decoded with replacement. `end`: nothing more will come."""

    text: str
    next: int
    end: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Where a request fits, or why not. `fits`: now. `ever`: on this fleet when it is empty."""

    fits: bool
    ever: bool
    sentence: str
    #: node -> device indices, when it fits.
    placement: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    level: str = ""


# --- agents


class TaskPhase(StrEnum):
    """What an agent says of one allocation."""

    STARTING = "starting"
    RUNNING = "running"
    EXITED = "exited"


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One allocation as its agent has it. An allocation that is not reported has no processes on the node."""

    allocation: str
    lease: str
    epoch: int
    phase: TaskPhase
    #: Head: ``host:port`` of the Ray head, once it listens.
    address: str | None = None
    #: Head: whether the driver was started. Its end is `evidence`.
    driver: bool = False
    #: How the process (process job) or driver (head) ended; for a worker, how its raylet did.
    evidence: Evidence | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """The cloud's warning. `deadline` None: a recommendation only, which never drains."""

    deadline: datetime | None
    source: str
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReport:
    """What a node has: facts, notice, and every task. Complete: what is absent is gone."""

    node: str
    #: One per agent process; a new one tells the broker that the agent restarted.
    incarnation: str
    version: str
    gpus: tuple[Gpu, ...]
    cpus: float | None
    memory: int | None
    labels: Labels
    tasks: tuple[Task, ...] = ()
    notice: Notice | None = None
    #: Revision of the orders that the node has already acted on; None: none yet. An allocation that was never reported
    #: is known to be absent (and not just not heard of yet) only from its order's revision on.
    orders_seen: int | None = None


class Want(StrEnum):
    RUN = "run"
    #: Ray drain with reason PREEMPTION at `drain_by`; the processes go on until then.
    DRAIN = "drain"
    #: End the processes now and report them gone.
    STOP = "stop"


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What should be true of one allocation on the node. An allocation without an order is to be stopped."""

    allocation: str
    lease: str
    epoch: int
    role: AllocationRole
    team: str
    gpus: tuple[int, ...]
    want: Want
    job: Job | None
    #: For the job: MOORAGE_URL, MOORAGE_LEASE, MOORAGE_EPOCH, MOORAGE_TOKEN (can only renew this lease and epoch),
    #: MOORAGE_STORAGE, MLFLOW_RUN_ID, ... Never logged.
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    #: Worker: the head's address; None: not up yet, wait.
    head: str | None = None
    #: The lease's own Ray cluster token. Never logged.
    ray_token: str | None = field(default=None, repr=False)
    #: Head: start the driver now (enough workers are up).
    driver: bool = False
    drain_by: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Orders:
    """All orders of a node, and the revision to wait behind."""

    revision: int
    orders: tuple[Order, ...]


# --- trainers


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """One worker allocation of the answer to `renew`."""

    allocation: str
    node: str
    workers: int
    gpus: tuple[int, ...]
    #: Its raylet was reported running.
    ready: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Renewal:
    """The answer to a heartbeat: absolute, so a lost one costs nothing."""

    #: Worker allocations to hold, in rank order.
    hold: tuple[Held, ...]
    target_revision: int
    #: When allocations outside `hold` are taken in any case.
    by: datetime | None = None
    why: str = ""
    reason: str = ""
    warnings: tuple[str, ...] = ()
    #: Checkpoint and exit; the reason. None: go on.
    stop: str | None = None
    notes: Labels = field(default_factory=dict)


# --- operators


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuUse:
    """Who holds one GPU. `lease` None: free (or not known, when its node is stale or lost)."""

    index: int
    lease: str | None = None
    allocation: str | None = None
    team: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView:
    """A node as operators see it."""

    node: Node
    gpus: tuple[GpuUse, ...]
    #: One word: ready, cordoned, draining, notice, stale, lost.
    condition: str
    #: Seconds (hearing clock) since its last report. None: never heard.
    silent_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """What the fleet page draws."""

    at: datetime
    nodes: tuple[NodeView, ...]
    #: Queued leases in the order in which they will be tried; `Lease.reason` says why each waits.
    queue: tuple[LeaseView, ...]
    #: Active and stopping leases.
    leases: tuple[LeaseView, ...]
    frozen: bool
    revision: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenView:
    """A token without its secret."""

    id: str
    name: str
    role: str
    team: str | None
    node: str | None
    created_at: datetime
    revoked_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyRevision:
    """One stored policy: its number, when and by whom."""

    revision: int
    at: datetime
    who: str
