"""What any broker must do, over whatever carries it: in process on SQLite or PostgreSQL, and over HTTP.

Each check is a function of a `World`. Import `CHECKS` and call each with a world of your own.
"""

from __future__ import annotations

import io
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from itertools import pairwise

import pytest
from fake_agent import FakeAgent

from moorage.api.auth import Principal, Role
from moorage.api.errors import Conflict, Denied, Invalid, NotFound
from moorage.api.ids import new_id
from moorage.api.protocols import Api
from moorage.api.values import EventKind, LeaseView, Submission, Want
from moorage.core.job import DoneWhen, Evidence, Job, JobKind, Phase, Progress
from moorage.core.lease import AllocationRole, AllocationState, LeaseState, Outcome
from moorage.core.policy import Policy, Pool
from moorage.core.request import Request, Topology

OPERATOR = Principal(name="olga", role=Role.OPERATOR)
VIEWER = Principal(name="vera", role=Role.VIEWER)
SUBMITTER = Principal(name="sam", role=Role.SUBMITTER, team="red")
OTHER_TEAM = Principal(name="tom", role=Role.SUBMITTER, team="blue")
PROCESS = Job(entrypoint=("python", "x.py"))
RAY = Job(kind=JobKind.RAY, entrypoint=("python", "train.py"), storage="file:///ckpt")


class World(ABC):
    """A broker, and time that passes when told."""

    @abstractmethod
    def api_for(self, principal: Principal) -> Api: ...

    @abstractmethod
    def step(self, seconds: float) -> None:
        """The clock goes on by this (at most 3), and the broker ticks once."""

    @abstractmethod
    def settle(self) -> None:
        """The broker decides until nothing changes."""

    # --- what checks say

    @property
    def owner(self) -> Api:
        return self.api_for(SUBMITTER)

    @property
    def operator(self) -> Api:
        return self.api_for(OPERATOR)

    def agent(self, node: str, gpus: int = 4, **labels: str) -> FakeAgent:
        """A node that has joined."""
        principal = Principal(name=f"agent-{node}", role=Role.AGENT, node=node)
        made = FakeAgent(lambda: self.api_for(principal), node, gpus, labels)
        made.report()
        return made

    def submit(
        self, job: Job | None = PROCESS, *, name: str = "run", api: Api | None = None, **request: object
    ) -> LeaseView:
        submission = Submission(
            owner={"name": name},
            request=Request(**request),
            job=job,
            client_id=new_id(),  # type: ignore[arg-type]
        )
        return (api or self.owner).submit(submission)

    def work(self, *agents: FakeAgent, rounds: int = 3) -> None:
        """The broker decides and the agents obey, until both are at rest."""
        for _ in range(rounds):
            self.settle()
            for agent in agents:
                agent.step()
        self.settle()

    def pass_time(self, seconds: int, *agents: FakeAgent) -> None:
        """Second by second, the agents reporting."""
        for _ in range(seconds):
            self.step(1)
            for agent in agents:
                agent.report()
            self.settle()

    def trainer(self, lease: str, epoch: int) -> Api:
        return self.api_for(Principal(name="trainer", role=Role.TRAINER, lease=lease, epoch=epoch))

    def renew(self, lease: str, epoch: int, **progress: object):
        said = Progress(**{"phase": Phase.TRAINING, **progress})  # type: ignore[arg-type]
        return self.trainer(lease, epoch).renew(lease, epoch, said)

    def get(self, lease: str) -> LeaseView:
        return self.operator.get(lease)

    def kinds(self, lease: str) -> list[EventKind]:
        return [event.kind for event in self.operator.events(lease=lease)]


def _zip() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("x.py", "print(1)")
    return file.getvalue()


# --- submit


def submit_is_idempotent_by_client_id(world: World) -> None:
    world.agent("n1")
    said = Submission(owner={"name": "a"}, request=Request(), job=PROCESS, client_id="c1")
    first = world.owner.submit(said)
    assert world.owner.submit(said) == first
    assert world.kinds(first.lease.id).count(EventKind.SUBMITTED) == 1


def a_client_id_belongs_to_one_method(world: World) -> None:
    world.agent("n1")
    lease = world.submit().lease.id
    world.owner.release(lease, "x", "c1")
    with pytest.raises(Conflict, match="c1 was used for release"):
        world.owner.resize(lease, (1, 2), "c1")


def submit_finds_the_owners_live_lease(world: World) -> None:
    world.agent("n1")
    first = world.submit().lease
    assert world.submit().lease.id == first.id
    world.owner.release(first.id, "enough", new_id())
    world.settle()
    second = world.submit().lease
    assert second.id != first.id
    assert (first.generation, second.generation) == (1, 2)


def another_team_cannot_take_an_owner_over(world: World) -> None:
    world.agent("n1")
    world.submit()
    with pytest.raises(Conflict, match="add a label"):
        world.submit(api=world.api_for(OTHER_TEAM))


def submit_refuses_what_can_never_be(world: World) -> None:
    world.agent("n1", 4)
    with pytest.raises(Invalid, match=r"gpus_per_worker=16: .*largest node has 4"):
        world.submit(gpus_per_worker=16)
    with pytest.raises(Invalid, match=r"job\.code"):
        world.submit(replace(PROCESS, code="0" * 64))
    with pytest.raises(Invalid, match="owner"):
        world.owner.submit(Submission(owner={}, request=Request(), job=PROCESS, client_id="c"))
    assert not list(world.operator.find({}))


def only_operators_name_a_team(world: World) -> None:
    world.agent("n1")
    said = Submission(owner={"a": "b"}, request=Request(), job=PROCESS, client_id="c", team="green")
    with pytest.raises(Denied):
        world.owner.submit(said)
    assert world.operator.submit(said).lease.team == "green"


def code_is_stored_by_digest(world: World) -> None:
    code = _zip()
    digest = world.owner.put_code(code)
    assert world.owner.put_code(code) == digest
    assert world.owner.get_code(digest) == code
    with pytest.raises(NotFound):
        world.owner.get_code("0" * 64)
    with pytest.raises(Invalid, match="send a zip"):
        world.owner.put_code(b"hello")


def resume_from_needs_an_ended_lease(world: World) -> None:
    agent = world.agent("n1")
    old = world.submit(replace(PROCESS, storage="file:///c")).lease
    again = Submission(
        owner={"name": "b"},
        request=Request(),
        job=replace(PROCESS, storage="file:///c"),
        client_id="x",
        resume_from=old.id,
    )
    with pytest.raises(Conflict, match="has not ended"):
        world.owner.submit(again)
    world.owner.release(old.id, "enough", new_id())
    world.settle()
    lease = world.owner.submit(replace(again, client_id="y")).lease
    world.work(agent)
    env = agent.orders.orders[0].env
    assert env["MOORAGE_RESUME_FROM"] == f"file:///c/red/{old.id}"
    assert env["MOORAGE_STORAGE"] == f"file:///c/red/{lease.id}"


# --- the life of a lease


def a_process_job_runs_and_succeeds(world: World) -> None:
    agent = world.agent("n1")
    lease = world.submit(replace(PROCESS, done_when=DoneWhen.MARKER)).lease.id
    world.work(agent)
    running = world.get(lease).lease
    assert (running.state, running.epoch) == (LeaseState.RUNNING, 1)
    agent.end(running.allocations[0].id, Evidence(exit_code=0, marker='{"accuracy": 0.9}'))
    world.work(agent)
    ended = world.get(lease).lease
    assert (ended.state, ended.outcome, ended.result) == (LeaseState.ENDED, Outcome.SUCCEEDED, '{"accuracy": 0.9}')
    kinds = world.kinds(lease)
    assert [k for k in kinds if k not in (EventKind.ALLOCATION, EventKind.HELD)] == [
        EventKind.SUBMITTED,
        EventKind.GRANTED,
        EventKind.STARTED,
        EventKind.ENDED,
    ]


def a_failing_job_fails_with_its_last_line(world: World) -> None:
    agent = world.agent("n1")
    lease = world.submit().lease.id
    world.work(agent)
    agent.end(f"{lease}.1", Evidence(exit_code=3, tail="Traceback\nValueError: no"))
    world.work(agent)
    ended = world.get(lease).lease
    assert ended.outcome is Outcome.FAILED
    assert "ValueError: no" in ended.reason


def a_killed_job_is_tried_again_and_the_old_attempt_is_fenced(world: World) -> None:
    agent = world.agent("n1")
    lease = world.submit().lease.id
    world.work(agent)
    agent.end(f"{lease}.1", Evidence(exit_code=None, signal=9))
    world.work(agent)
    world.pass_time(5, agent)
    world.work(agent)
    again = world.get(lease).lease
    assert (again.state, again.epoch) == (LeaseState.RUNNING, 2)
    with pytest.raises(Conflict, match=r"attempt 1 .* is over"):
        world.renew(lease, 1, step=1)
    assert world.renew(lease, 2, step=1).stop is None
    assert EventKind.RETRIED in world.kinds(lease)


def an_agent_that_lost_its_processes_means_another_attempt(world: World) -> None:
    agent = world.agent("n1")
    lease = world.submit().lease.id
    world.work(agent)
    agent.die()
    world.work(agent)
    world.pass_time(5, agent)
    world.work(agent)
    assert world.get(lease).lease.epoch == 2


def a_ray_job_gets_a_head_and_raylets(world: World) -> None:
    agents = [world.agent(f"n{i}", 4) for i in (1, 2)]
    lease = world.submit(RAY, workers=(2, 2), gpus_per_worker=4).lease.id
    world.settle()
    for agent in agents:
        agent.report()
    orders = [order for agent in agents for order in agent.orders.orders]
    head = next(order for order in orders if order.role is AllocationRole.HEAD)
    assert not head.driver
    assert {order.head for order in orders if order.role is AllocationRole.WORKER} == {None}
    assert {order.ray_token for order in orders} == {head.ray_token}
    world.work(*agents, rounds=4)
    orders = [order for agent in agents for order in agent.report().orders]
    workers = [order for order in orders if order.role is AllocationRole.WORKER]
    assert all(order.head and order.head.endswith(":6379") for order in workers)
    assert next(order for order in orders if order.role is AllocationRole.HEAD).driver
    assert world.get(lease).lease.state is LeaseState.RUNNING
    held = world.renew(lease, 1, step=0).hold
    assert [h.ready for h in held] == [True, True]
    assert sorted(h.node for h in held) == ["n1", "n2"]


def a_dead_raylet_is_replaced(world: World) -> None:
    agents = [world.agent(f"n{i}", 2) for i in (1, 2, 3)]
    lease = world.submit(RAY, workers=(2, 2), gpus_per_worker=2).lease.id
    world.work(*agents, rounds=4)
    victim = next(a for a in world.get(lease).lease.live if a.role is AllocationRole.WORKER)
    node = next(agent for agent in agents if agent.node == victim.node)
    node.end(victim.id, Evidence(exit_code=1))
    world.work(*agents, rounds=4)
    found = world.get(lease).lease
    assert (found.state, found.epoch) == (LeaseState.RUNNING, 1)
    live = [a for a in found.live if a.role is AllocationRole.WORKER]
    assert victim.id not in {a.id for a in live}
    assert sum(a.workers for a in live) == 2


def raylets_that_were_let_go_may_end(world: World) -> None:
    """However many leave by themselves after a notice moved the gang: the attempt goes on."""
    agents = [world.agent(f"n{i}", 1) for i in range(12)]
    lease = world.submit(RAY, workers=(6, 6)).lease.id
    world.work(*agents, rounds=4)
    before = world.get(lease).lease
    head = next(a.node for a in before.live if a.role is AllocationRole.HEAD)
    going = {a.node: a for a in before.live if a.role is AllocationRole.WORKER and a.node != head}
    for agent in agents:
        if agent.node in going:
            agent.set_notice(before.granted_at, before.granted_at + timedelta(seconds=120))
    world.work(*agents, rounds=4)
    for agent in agents:
        if agent.node in going:
            agent.end(going[agent.node].id, Evidence(exit_code=None, agent_error="drained, and left by itself"))
    world.work(*agents, rounds=4)
    after = world.get(lease).lease
    assert (after.state, after.epoch) == (LeaseState.RUNNING, 1), after.reason
    assert {a.node for a in after.live if a.role is AllocationRole.WORKER}.isdisjoint(going)
    assert after.workers == 6


def release_lets_the_attempt_checkpoint(world: World) -> None:
    agent = world.agent("n1")
    lease = world.submit().lease.id
    world.work(agent)
    world.renew(lease, 1, step=1)
    stopping = world.owner.release(lease, "enough", new_id()).lease
    assert stopping.state is LeaseState.STOPPING
    told = world.renew(lease, 1, step=2, phase=Phase.CHECKPOINTING)
    assert told.stop == "enough"
    agent.report()
    assert agent.order(f"{lease}.1").want is Want.DRAIN
    agent.end(f"{lease}.1", Evidence(exit_code=0))
    world.work(agent)
    assert world.get(lease).lease.state is LeaseState.ENDED


def a_stop_is_enforced_after_its_grace(world: World) -> None:
    agent = world.agent("n1")
    lease = world.submit().lease.id
    world.work(agent)
    world.owner.release(lease, "enough", new_id())
    world.pass_time(29, agent)
    assert agent.order(f"{lease}.1").want is Want.DRAIN
    world.pass_time(2, agent)
    assert agent.order(f"{lease}.1").want is Want.STOP
    world.work(agent)
    assert world.get(lease).lease.outcome is Outcome.STOPPED


def a_forced_release_stops_at_once(world: World) -> None:
    agent = world.agent("n1")
    lease = world.submit().lease.id
    world.work(agent)
    world.owner.release(lease, "now", new_id(), force=True)
    agent.report()
    assert agent.order(f"{lease}.1").want is Want.STOP
    world.work(agent)
    assert world.get(lease).lease.state is LeaseState.ENDED
    again = world.owner.release(lease, "again", new_id()).lease
    assert again.reason == "now"


def a_queued_lease_is_released_at_once(world: World) -> None:
    world.agent("n1", 1)
    lease = world.submit(gpus_per_worker=1).lease.id
    assert world.owner.release(lease, "never mind", new_id()).lease.state is LeaseState.ENDED


def raylets_are_given_back_one_by_one(world: World) -> None:
    agents = [world.agent(f"n{i}", 1) for i in (1, 2)]
    job = Job(kind=JobKind.RAYLET, head="10.0.0.1:6379")
    lease = world.submit(job, workers=(2, 2)).lease.id
    world.work(*agents)
    first, second = world.get(lease).lease.live
    assert world.get(lease).lease.state is LeaseState.RUNNING
    world.owner.give_back(lease, [first.id], new_id())
    world.work(*agents)
    left = world.get(lease).lease
    assert ([a.id for a in left.live], left.state) == ([second.id], LeaseState.RUNNING)
    world.owner.give_back(lease, [second.id], new_id())
    world.work(*agents)
    assert world.get(lease).lease.state is LeaseState.ENDED


def bounds_can_be_changed(world: World) -> None:
    world.agent("n1")
    lease = world.submit(RAY, workers=(1, 4)).lease.id
    assert world.owner.resize(lease, (1, 2), new_id()).lease.request.workers == (1, 2)
    with pytest.raises(Invalid, match="did you mean"):
        world.owner.resize(lease, (3, 2), new_id())


# --- silence


def a_silent_attempt_is_tried_again_once_it_was_long_enough(world: World) -> None:
    agent = world.agent("n1")
    spare = world.agent("n2")
    lease = world.submit(RAY, workers=(1, 1)).lease.id
    world.work(agent, spare, rounds=4)
    world.renew(lease, 1, step=1)
    for _ in range(50):
        world.step(1)
        world.settle()
    assert world.get(lease).lease.epoch == 1
    assert world.get(lease).lease.state is LeaseState.RUNNING
    for _ in range(15):
        world.step(1)
        world.settle()
    assert world.get(lease).lease.state is not LeaseState.RUNNING


def an_agents_word_keeps_a_quiet_job_alive(world: World) -> None:
    agent = world.agent("n1")
    lease = world.submit().lease.id
    world.work(agent)
    world.pass_time(100, agent)
    assert (world.get(lease).lease.epoch, world.get(lease).lease.state) == (1, LeaseState.RUNNING)


def an_unwatched_lease_is_released(world: World) -> None:
    agent = world.agent("n1")
    lease = world.submit().lease.id
    world.work(agent)
    world.owner.watch(lease, "w1")
    world.owner.unwatch(lease, "w1")
    world.pass_time(4, agent)
    assert world.get(lease).lease.state is LeaseState.RUNNING
    world.pass_time(2, agent)
    assert world.get(lease).lease.state is LeaseState.STOPPING


def another_watcher_keeps_the_lease(world: World) -> None:
    agent = world.agent("n1")
    lease = world.submit().lease.id
    world.work(agent)
    before = world.owner.watch(lease, "w1").revision
    world.owner.unwatch(lease, "w1")
    assert world.owner.watch(lease, "w2", since=before, timeout=5).revision > before
    world.owner.watch(lease, "w2")
    world.pass_time(10, agent)
    assert world.get(lease).lease.state is LeaseState.RUNNING


def a_heartbeat_does_not_wake_watchers(world: World) -> None:
    agent = world.agent("n1")
    lease = world.submit().lease.id
    world.work(agent)
    world.renew(lease, 1, step=1)
    before = world.get(lease).revision
    world.renew(lease, 1, step=2)
    world.step(1)
    assert world.get(lease).revision == before
    assert world.get(lease).lease.progress.step == 2


# --- nodes


def a_notice_drains_raylets_at_once(world: World) -> None:
    agents = [world.agent(f"n{i}", 1) for i in (1, 2)]
    lease = world.submit(RAY, workers=(1, 1)).lease.id
    world.work(*agents, rounds=4)
    worker = next(a for a in world.get(lease).lease.live if a.role is AllocationRole.WORKER)
    node = next(agent for agent in agents if agent.node == worker.node)
    at = world.get(lease).lease.granted_at
    deadline = at + timedelta(seconds=120)
    node.set_notice(at, deadline)
    node.report()
    order = node.order(worker.id)
    assert (order.want, order.drain_by) == (Want.DRAIN, deadline)
    assert [e.facts["source"] for e in world.operator.events() if e.kind is EventKind.NOTICE] == ["test"]


def a_lost_node_frees_and_is_used_again_after_a_clean_report(world: World) -> None:
    agent = world.agent("n1")
    lease = world.submit().lease.id
    world.work(agent)
    world.operator.lose("n1", new_id())
    assert world.get(lease).lease.live == ()
    assert EventKind.LOST in world.kinds(lease)
    agent.report()
    assert agent.orders.orders == ()
    assert world.operator.fleet().nodes[0].condition == "lost"
    agent.tasks = {}
    agent.report()
    assert world.operator.fleet().nodes[0].condition == "ready"


def a_cordoned_node_gets_nothing_new(world: World) -> None:
    agent = world.agent("n1")
    world.operator.cordon("n1", True, new_id())
    lease = world.submit().lease.id
    world.work(agent)
    waiting = world.get(lease).lease
    assert waiting.state is LeaseState.QUEUED
    assert "cordoned" in waiting.reason
    told = world.owner.explain(lease)
    assert (told.fits, told.sentence) == (False, waiting.reason)
    world.operator.cordon("n1", False, new_id())
    world.work(agent)
    assert world.get(lease).lease.state is LeaseState.RUNNING
    with pytest.raises(NotFound):
        world.operator.cordon("n9", True, new_id())


def orders_wake_a_long_poll(world: World) -> None:
    agent = world.agent("n1")
    agent.step()
    world.submit()
    world.settle()
    told = agent.api.orders("n1", agent.orders.revision, 5)
    assert told.revision > agent.orders.revision
    assert len(told.orders) == 1
    assert agent.api.orders("n1", told.revision, 0) == told


def a_drained_allocation_that_never_started_is_free_only_when_its_agent_knows(world: World) -> None:
    agent = world.agent("n1")
    lease = world.submit().lease.id
    agent.report()
    world.settle()
    world.owner.release(lease, "quick", new_id())
    seen = agent.orders
    agent.report()
    assert world.get(lease).lease.state is LeaseState.STOPPING, f"freed by a report that knew only {seen.revision}"
    agent.report()
    assert world.get(lease).lease.state is LeaseState.ENDED


# --- money


def the_ledger_adds_up_to_the_cost(world: World) -> None:
    pool = Pool(name="p", price=Decimal("3.60"), on_demand_price=Decimal("7.20"))
    world.operator.apply_policy(Policy(pools=(pool,)), new_id())
    agent = world.agent("n1")
    lease = world.submit(gpus_per_worker=2).lease.id
    world.work(agent)
    world.pass_time(10, agent)
    world.renew(lease, 1, step=5)
    world.pass_time(10, agent)
    world.renew(lease, 1, step=5, phase=Phase.CHECKPOINTING)
    world.pass_time(5, agent)
    world.operator.apply_policy(Policy(pools=(replace(pool, price=Decimal("1.80")),)), new_id())
    world.pass_time(5, agent)
    agent.end(f"{lease}.1", Evidence(exit_code=0))
    world.work(agent)
    cost = world.get(lease).cost
    assert cost.gpu_seconds == 60
    assert cost.total_usd == Decimal("0.055000")
    assert cost.saved_usd == Decimal("0.065000")
    assert cost.overhead_usd == Decimal("0.015000")
    assert world.get(lease).lease.spent_usd == cost.total_usd
    segments = world.operator.ledger(lease)
    assert all(a.end == b.start for a, b in pairwise(segments))
    assert all(segment.end is not None for segment in segments)


# --- what is told


def progress_rows_come_at_most_once_a_second(world: World) -> None:
    agent = world.agent("n1")
    lease = world.submit().lease.id
    world.work(agent)
    for step in range(10):
        world.renew(lease, 1, step=step, metrics={"loss": 1.0 - step / 10})
    world.step(1)
    rows = [e for e in world.operator.events(lease=lease) if e.kind is EventKind.PROGRESS]
    assert [(row.facts["step"], row.facts["metric.loss"]) for row in rows] == [(9, pytest.approx(0.1))]


def training_again_tells_what_was_lost(world: World) -> None:
    agent = world.agent("n1")
    lease = world.submit().lease.id
    world.work(agent)
    world.renew(lease, 1, step=10)
    agent.end(f"{lease}.1", Evidence(exit_code=None, signal=9))
    world.work(agent)
    world.pass_time(7, agent)
    world.work(agent)
    world.renew(lease, 2, phase=Phase.RESTORING)
    world.renew(lease, 2, step=8)
    world.step(1)
    row = next(e for e in world.operator.events(lease=lease) if e.kind is EventKind.RESUMED)
    assert (row.facts["step"], row.facts["best_step"], row.facts["steps_lost"]) == (8, 10, 2)
    assert row.facts["seconds_stopped"] == 7


def the_journal_has_no_gaps_and_says_who(world: World) -> None:
    agent = world.agent("n1")
    lease = world.submit().lease.id
    world.work(agent)
    world.renew(lease, 1, step=1)
    world.owner.note(lease, {"mlflow.run_id": "r1"})
    world.owner.release(lease, "enough", new_id())
    world.work(agent)
    events = world.operator.events()
    assert [e.seq for e in events] == list(range(1, len(events) + 1))
    assert {e.who for e in events if e.kind is EventKind.SUBMITTED} == {"sam"}
    assert {e.who for e in events if e.kind is EventKind.GRANTED} == {"broker"}
    assert all("epoch" in e.facts for e in events if e.lease)
    assert world.operator.events(since=events[-1].seq) in ([], ())


def notes_reach_the_job(world: World) -> None:
    agent = world.agent("n1")
    lease = world.submit(RAY, workers=(1, 1)).lease.id
    world.owner.note(lease, {"mlflow.run_id": "r1"})
    world.work(agent)
    env = agent.orders.orders[0].env
    assert env["MLFLOW_RUN_ID"] == "r1"
    assert env["MOORAGE_STORAGE"] == f"file:///ckpt/red/{lease}"
    assert (env["MOORAGE_LEASE"], env["MOORAGE_EPOCH"]) == (lease, "1")
    world.owner.release(lease, "x", new_id(), force=True)
    world.work(agent)
    world.owner.note(lease, {"later": "yes"})
    assert world.get(lease).lease.notes == {"mlflow.run_id": "r1", "later": "yes"}


def logs_are_one_text_over_attempts(world: World) -> None:
    agent = world.agent("n1")
    lease = world.submit().lease.id
    world.work(agent)
    assert agent.api.put_logs("n1", lease, 1, 0, b"hello ") == 6
    assert agent.api.put_logs("n1", lease, 1, 0, b"hello ") == 6
    assert agent.api.put_logs("n1", lease, 1, 9, b"gap") == 6
    assert agent.api.put_logs("n1", lease, 1, 3, b"lo world") == 11
    chunk = world.owner.logs(lease)
    assert (chunk.text, chunk.next, chunk.end) == ("hello world", 11, False)
    with pytest.raises(Conflict):
        agent.api.put_logs("n1", lease, 2, 0, b"not mine")
    agent.end(f"{lease}.1", Evidence(exit_code=0))
    world.work(agent)
    assert world.owner.logs(lease, 6).end


def find_matches_labels(world: World) -> None:
    world.agent("n1")
    a, b = world.submit(name="a").lease, world.submit(name="b").lease
    assert [v.lease.id for v in world.owner.find({"name": "a"})] == [a.id]
    assert [v.lease.id for v in world.owner.find({})] == [b.id, a.id]
    assert not list(world.api_for(OTHER_TEAM).find({}))
    world.owner.release(a.id, "x", new_id())
    assert [v.lease.id for v in world.owner.find({}, live=True)] == [b.id]
    assert world.owner.get(a.id[:36]).lease.id == a.id
    with pytest.raises(NotFound):
        world.owner.get("ffff")


def what_if_changes_nothing(world: World) -> None:
    world.agent("n1", 4)
    told = world.owner.what_if(Request(workers=(2, 2), gpus_per_worker=2))
    assert told.fits
    assert sorted(told.placement) == ["n1"]
    assert not world.owner.what_if(Request(gpus_per_worker=8)).ever
    with pytest.raises(Invalid, match="name one of the fleet's levels"):
        world.owner.what_if(Request(topology=Topology(required="galaxy")))
    assert not list(world.operator.find({}))


def the_fleet_shows_who_holds_what(world: World) -> None:
    agent = world.agent("n1", 2)
    lease = world.submit(name="a").lease.id
    waiting = world.submit(name="b", gpus_per_worker=2).lease.id
    world.work(agent)
    fleet = world.operator.fleet()
    assert [use.lease for use in fleet.nodes[0].gpus] == [lease, None]
    assert [view.lease.id for view in fleet.queue] == [waiting]
    assert [view.lease.id for view in fleet.leases] == [lease]
    world.operator.priority(waiting, 5, new_id())
    assert world.operator.fleet().queue[0].lease.request.priority == 5


def policy_is_kept_in_revisions(world: World) -> None:
    one = world.operator.apply_policy(Policy(storage="file:///a"), "p1")
    assert world.operator.apply_policy(Policy(storage="file:///a"), "p1") == one
    world.operator.freeze(True, new_id())
    assert world.operator.policy() == Policy(storage="file:///a", frozen=True)
    assert [r.revision for r in world.operator.policy_history()] == [1, one.revision, one.revision + 1]


def the_same_gpu_is_never_held_twice(world: World) -> None:
    agents = [world.agent(f"n{i}", 2) for i in (1, 2)]
    leases = [world.submit(name=f"r{i}").lease.id for i in range(6)]
    world.work(*agents)
    for agent in agents:
        for order in agent.orders.orders[:1]:
            agent.end(order.allocation, Evidence(exit_code=0))
    world.work(*agents)
    held = [(a.node, gpu) for id_ in leases for a in world.get(id_).lease.live for gpu in a.gpus]
    assert len(held) == len(set(held)) == 4
    states = [a.state for id_ in leases for a in world.get(id_).lease.live]
    assert set(states) == {AllocationState.HELD}


CHECKS: tuple[Callable[[World], None], ...] = (
    submit_is_idempotent_by_client_id,
    a_client_id_belongs_to_one_method,
    submit_finds_the_owners_live_lease,
    another_team_cannot_take_an_owner_over,
    submit_refuses_what_can_never_be,
    only_operators_name_a_team,
    code_is_stored_by_digest,
    resume_from_needs_an_ended_lease,
    a_process_job_runs_and_succeeds,
    a_failing_job_fails_with_its_last_line,
    a_killed_job_is_tried_again_and_the_old_attempt_is_fenced,
    an_agent_that_lost_its_processes_means_another_attempt,
    a_ray_job_gets_a_head_and_raylets,
    a_dead_raylet_is_replaced,
    raylets_that_were_let_go_may_end,
    release_lets_the_attempt_checkpoint,
    a_stop_is_enforced_after_its_grace,
    a_forced_release_stops_at_once,
    a_queued_lease_is_released_at_once,
    raylets_are_given_back_one_by_one,
    bounds_can_be_changed,
    a_silent_attempt_is_tried_again_once_it_was_long_enough,
    an_agents_word_keeps_a_quiet_job_alive,
    an_unwatched_lease_is_released,
    another_watcher_keeps_the_lease,
    a_heartbeat_does_not_wake_watchers,
    a_notice_drains_raylets_at_once,
    a_lost_node_frees_and_is_used_again_after_a_clean_report,
    a_cordoned_node_gets_nothing_new,
    orders_wake_a_long_poll,
    a_drained_allocation_that_never_started_is_free_only_when_its_agent_knows,
    the_ledger_adds_up_to_the_cost,
    progress_rows_come_at_most_once_a_second,
    training_again_tells_what_was_lost,
    the_journal_has_no_gaps_and_says_who,
    notes_reach_the_job,
    logs_are_one_text_over_attempts,
    find_matches_labels,
    what_if_changes_nothing,
    the_fleet_shows_who_holds_what,
    policy_is_kept_in_revisions,
    the_same_gpu_is_never_held_twice,
)
