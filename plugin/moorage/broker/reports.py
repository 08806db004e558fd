"""What an agent's report means: which allocations run, which ended and how, which are gone."""

from __future__ import annotations

from dataclasses import replace

from moorage.api.values import EventKind, NodeReport, Task, TaskPhase
from moorage.broker.draft import Draft
from moorage.broker.journal import Said
from moorage.broker.memory import Memory, Reported
from moorage.core import follow
from moorage.core.decision import Drop
from moorage.core.facts import describe
from moorage.core.failure import judge
from moorage.core.fleet import Node
from moorage.core.job import Evidence, JobKind
from moorage.core.lease import Allocation, AllocationRole, AllocationState, Lease, LeaseState

#: Raylets of one attempt that may end by themselves before the attempt is over; each is replaced until then.
DEATHS = 3
GONE = "the agent has no process of it any more"


def take(draft: Draft, report: NodeReport) -> Reported:
    """Change the draft by a report; returns what to remember of it once the draft is true."""
    tasks = {task.allocation: task for task in report.tasks}
    before = draft.memory.reported.get(report.node)
    node = _node(draft, report, tasks)
    if not node.lost:
        for lease_id in sorted(draft.memory.homes.get(report.node, ())):
            for allocation in draft.state.leases[lease_id].live:
                if allocation.node == report.node:
                    _allocation(draft, allocation, tasks.get(allocation.id), report, before)
    speaks = frozenset(
        (task.lease, task.epoch) for task in report.tasks if not node.lost and _speaks(draft, report.node, task)
    )
    given = before.given if before else 0
    return Reported(report.incarnation, frozenset(tasks), report, speaks, given=given)


def take_again(draft: Draft, node_id: str) -> None:
    """The node said the same again: it, and the attempts that it speaks for, were heard."""
    draft.put_node(replace(draft.state.nodes[node_id], heard=draft.state.heard))
    for lease_id, epoch in draft.memory.reported[node_id].speaks:
        lease = draft.state.leases.get(lease_id)
        if lease is not None and lease.epoch == epoch and _listens(lease):
            draft.put(follow.heard(lease, None, draft.policy, draft.now, draft.state.heard))


def _listens(lease: Lease) -> bool:
    """Whether an attempt of the lease may be heard."""
    return lease.state.active or lease.state is LeaseState.STOPPING


def _speaks(draft: Draft, node: str, task: Task) -> bool:
    """Whether this task says that an attempt runs."""
    lease = draft.state.leases.get(task.lease)
    a = next((a for a in lease.live if a.id == task.allocation and a.node == node), None) if lease else None
    if lease is None or a is None or task.phase is not TaskPhase.RUNNING:
        return False
    return a.epoch == lease.epoch and _listens(lease) and _is_attempt(lease, a, task)


# --- the node


def _node(draft: Draft, report: NodeReport, tasks: dict[str, Task]) -> Node:
    old = draft.state.nodes.get(report.node)
    deadline = report.notice.deadline if report.notice else None
    node = replace(
        old or Node(id=report.node),
        gpus=report.gpus,
        cpus=report.cpus,
        memory=report.memory,
        labels=dict(report.labels),
        notice_deadline=deadline,
        lost=bool(old and old.lost) and not _clean(draft.memory, report.node, tasks),
        heard=draft.state.heard,
    )
    node = describe(node, draft.policy)
    draft.put_node(old if old == node else node)
    _tell(draft, old, node, report)
    return node


def _clean(memory: Memory, node: str, tasks: dict[str, Task]) -> bool:
    """Whether nothing is left on a lost node: everything that it held was freed when it was lost."""
    held = {a.id for lease in memory.leases_on(node) for a in lease.live}
    return all(task.phase is TaskPhase.EXITED or task.allocation in held for task in tasks.values())


def _tell(draft: Draft, old: Node | None, node: Node, report: NodeReport) -> None:
    known = draft.memory.reported.get(node.id)
    if known is not None and known.incarnation != report.incarnation:
        draft.tell(EventKind.NODE, f"{node.id} restarted its agent", node=node.id)
    if (old.notice_deadline if old else None) == node.notice_deadline:
        return
    if report.notice is None or node.notice_deadline is None:
        draft.tell(EventKind.NOTICE, f"{node.id}: the notice was withdrawn", node=node.id)
        return
    at = node.notice_deadline.isoformat()
    facts = {"deadline": at, "source": report.notice.source}
    draft.say(Said(EventKind.NOTICE, f"{node.id} goes at {at}: {report.notice.source}", facts), node=node.id)


# --- its allocations


def _allocation(draft: Draft, a: Allocation, task: Task | None, report: NodeReport, before: Reported | None) -> None:
    match task:
        case None:
            if _is_gone(draft.memory, a, report, before):
                _ended(draft, a, Evidence(exit_code=None, agent_error=GONE))
        case Task(phase=TaskPhase.STARTING):
            return
        case Task(phase=TaskPhase.RUNNING):
            _runs(draft, a, task)
        case Task():
            _ended(draft, a, task.evidence or Evidence(exit_code=None, agent_error=GONE))


def _is_gone(memory: Memory, a: Allocation, report: NodeReport, before: Reported | None) -> bool:
    """Whether an allocation that the report does not have was there, or can never start any more."""
    if a.state is AllocationState.HELD:
        return True
    if before and before.incarnation == report.incarnation and a.id in before.allocations:
        return True
    if a.state is AllocationState.RESERVED:
        return False
    # Told to go before it was seen running: only an agent that knows so will not start it after this report.
    orders = memory.orders.get(a.node)
    seen = report.orders_seen if report.orders_seen is not None else (before.given if before else 0)
    return orders is None or seen >= orders.revision


def _runs(draft: Draft, a: Allocation, task: Task) -> None:
    lease = follow.started(draft.state.leases[a.lease], a.id, draft.now)
    if a.epoch == lease.epoch:
        lease = _heard(draft, lease, a, task)
    draft.put(lease)


def _heard(draft: Draft, lease: Lease, a: Allocation, task: Task) -> Lease:
    memo = draft.memo(lease.id)
    if a.role is AllocationRole.HEAD:
        if task.address and (memo.head, memo.head_epoch) != (task.address, a.epoch):
            draft.remember(lease.id, head=task.address, head_epoch=a.epoch)
        if task.driver and memo.driver_epoch != a.epoch:
            draft.remember(lease.id, driver_epoch=a.epoch)
    if _listens(lease) and _is_attempt(lease, a, task):
        return follow.heard(lease, None, draft.policy, draft.now, draft.state.heard)
    return lease


def _is_attempt(lease: Lease, a: Allocation, task: Task) -> bool:
    """Whether this process is the attempt: the job itself, or its driver, or raylets that nobody else speaks for."""
    match a.role:
        case AllocationRole.PROCESS:
            return True
        case AllocationRole.HEAD:
            return task.driver
        case AllocationRole.WORKER:
            return lease.job is None or lease.job.kind is JobKind.RAYLET


def _ended(draft: Draft, a: Allocation, evidence: Evidence) -> None:
    """Its processes are gone: first what that means for the attempt, then the GPUs are free."""
    lease = draft.state.leases[a.lease]
    if a.epoch == lease.epoch and draft.memo(lease.id).over_epoch < a.epoch:
        if a.role is not AllocationRole.WORKER:
            _over(draft, lease, evidence)
        # One outside the target was let go: it may leave whenever it likes.
        elif a.id in lease.target.hold and a.state is not AllocationState.DRAINING and lease.state.active:
            _died(draft, lease, a, evidence)
    draft.put(follow.gone(draft.state.leases[lease.id], a.id, draft.now))


def _over(draft: Draft, lease: Lease, evidence: Evidence) -> None:
    """The attempt's own process ended."""
    draft.remember(lease.id, over_epoch=lease.epoch)
    if _listens(lease):
        draft.apply(judge(lease, evidence, draft.policy, draft.now))
        if evidence.marker is not None:
            draft.put(replace(draft.state.leases[lease.id], result=evidence.marker))


def _died(draft: Draft, lease: Lease, a: Allocation, evidence: Evidence) -> None:
    """A raylet of the target ended by itself: it is replaced, unless that happens again and again."""
    memo = draft.memo(lease.id)
    died = 1 + (memo.died if memo.died_epoch == a.epoch else 0)
    draft.remember(lease.id, died=died, died_epoch=a.epoch)
    if died > DEATHS:
        _over(draft, lease, evidence)
        return
    why = evidence.agent_error or f"exit code {evidence.exit_code}"
    draft.apply(Drop(lease=lease.id, allocation=a.id, reason=f"the raylet on {a.node} ended: {why}", by=draft.now))
