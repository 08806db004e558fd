"""What a restart, an outage, a second writer and a refused decision leave behind."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from conformance import PROCESS, RAY
from sqlalchemy import insert, select, text
from sqlalchemy.exc import OperationalError
from worlds import InProcess

from moorage.api.errors import Conflict, Unavailable
from moorage.api.ids import new_id
from moorage.broker import Broker, schema
from moorage.broker.load import memory as load_memory
from moorage.core.decision import Decisions, Grant
from moorage.core.job import Evidence
from moorage.core.lease import Allocation, AllocationRole, LeaseState


def busy(world: InProcess) -> str:
    """A running ray job, one that ended and one that waits; returns the running one."""
    agents = [world.agent(f"n{i}", 2) for i in (1, 2)]
    done = world.submit(name="done").lease.id
    world.work(*agents)
    next(a for a in agents if f"{done}.1" in a.tasks).end(f"{done}.1", Evidence(exit_code=0))
    world.work(*agents)
    lease = world.submit(RAY, name="runs", workers=(2, 2), gpus_per_worker=2).lease.id
    world.work(*agents, rounds=4)
    world.submit(name="waits", gpus_per_worker=2)
    world.renew(lease, 1, step=7, metrics={"accuracy": 0.5})
    world.owner.unwatch(lease, "w")
    world.pass_time(2, *agents)
    world.agents = agents  # type: ignore[attr-defined]
    return lease


def test_what_is_on_disk_is_what_is_in_memory(on_disk: InProcess) -> None:
    busy(on_disk)
    keeper = on_disk.broker._keeper
    on_disk.broker.tick()
    memory = keeper.memory
    on_disk.broker._loop._look()
    chosen = (memory.policy_revision, memory.policy)
    again = load_memory(keeper.store, memory.boot, memory.state.heard, chosen, keeper.now())
    assert again.state.leases == memory.state.leases
    assert again.state.heard == memory.state.heard
    # A node's row that only says when it was heard may be a few seconds old.
    assert {n.id: replace(n, heard=0) for n in again.state.nodes.values()} == {
        n.id: replace(n, heard=0) for n in memory.state.nodes.values()
    }
    assert again.entries == memory.entries
    assert (again.owners, again.homes) == (memory.owners, {k: v for k, v in memory.homes.items() if v})
    assert (again.next_seq, again.next_segment) == (memory.next_seq, memory.next_segment)


def test_a_restart_changes_nothing(on_disk: InProcess) -> None:
    lease = busy(on_disk)
    before, orders = on_disk.get(lease), on_disk.agents[0].orders  # type: ignore[attr-defined]
    on_disk.restart()
    on_disk.settle()
    assert on_disk.get(lease).lease == before.lease
    assert on_disk.get(lease).cost == before.cost
    told = on_disk.agents[0].report()  # type: ignore[attr-defined]
    assert told.orders == orders.orders
    assert told.revision > orders.revision


def test_five_minutes_of_outage_retry_nothing(on_disk: InProcess) -> None:
    agent = on_disk.agent("n1")
    lease = on_disk.submit(RAY, workers=(1, 1)).lease.id
    on_disk.work(agent, rounds=4)
    on_disk.renew(lease, 1, step=3)
    on_disk.pass_time(3, agent)
    on_disk.restart(down=300)
    on_disk.settle()
    for _ in range(10):
        on_disk.step(1)
        on_disk.settle()
    assert on_disk.get(lease).lease.state is LeaseState.RUNNING
    assert on_disk.renew(lease, 1, step=4).stop is None
    on_disk.pass_time(3, agent)
    assert (on_disk.get(lease).lease.epoch, on_disk.get(lease).lease.interruptions) == (1, 0)


def test_a_paused_process_and_a_clock_jump_retry_nothing(on_disk: InProcess) -> None:
    agent = on_disk.agent("n1")
    lease = on_disk.submit(RAY, workers=(1, 1)).lease.id
    on_disk.work(agent, rounds=4)
    on_disk.renew(lease, 1, step=3)
    on_disk.step(600)
    on_disk.settle()
    on_disk.clock.jump(86400)
    on_disk.step(1)
    on_disk.settle()
    on_disk.clock.jump(-2 * 86400)
    on_disk.step(1)
    on_disk.settle()
    assert on_disk.get(lease).lease.state is LeaseState.RUNNING
    segments = on_disk.operator.ledger(lease)
    assert all(s.end is None or s.end >= s.start for s in segments)


def test_an_unwatch_survives_a_restart(on_disk: InProcess) -> None:
    agent = on_disk.agent("n1")
    lease = on_disk.submit().lease.id
    on_disk.work(agent)
    on_disk.owner.unwatch(lease, "w")
    on_disk.restart(down=60)
    on_disk.pass_time(2, agent)
    assert on_disk.get(lease).lease.state is LeaseState.RUNNING
    on_disk.pass_time(4, agent)
    assert on_disk.get(lease).lease.state is LeaseState.STOPPING


def test_a_second_writer_is_refused_or_waits(on_disk: InProcess) -> None:
    with pytest.raises(Conflict, match="another broker writes"):
        on_disk.open()
    opened: list[Broker] = []
    standby = threading.Thread(target=lambda: opened.append(Broker.open(on_disk.url, wait=True, wait_timeout=20)))
    standby.start()
    lease = on_disk.submit().lease.id
    on_disk.broker.close()
    standby.join(timeout=20)
    on_disk.broker = opened[0]
    assert on_disk.get(lease).lease.id == lease


def test_a_writer_that_was_overtaken_writes_nothing(on_disk: InProcess) -> None:
    with on_disk.broker._keeper.store.begin() as connection:
        connection.execute(text("UPDATE writer SET boot = boot + 1"))
    with pytest.raises(Unavailable, match="another broker has taken over"):
        on_disk.submit()
    with pytest.raises(Unavailable):
        on_disk.operator.freeze(True, new_id())


def test_a_failed_commit_changes_nothing(on_disk: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = on_disk.agent("n1")
    memory = on_disk.broker._keeper.memory
    before = (memory.state, memory.next_seq, memory.version)

    def broken(*_args: object) -> None:
        raise OperationalError("write", {}, OSError("disk full"))

    with monkeypatch.context() as patch:
        patch.setattr(on_disk.broker._keeper.store, "write", broken)
        with pytest.raises(OperationalError):
            on_disk.submit()
    assert (memory.state, memory.next_seq, memory.version) == before
    on_disk.submit()
    on_disk.work(agent)


def test_the_hearing_clock_stands_while_nothing_can_be_stored(
    on_disk: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_disk.step(1)
    before = on_disk.broker._keeper.memory.state.heard

    def broken(*_args: object) -> None:
        raise OperationalError("write", {}, OSError("disk full"))

    with monkeypatch.context() as patch:
        patch.setattr(on_disk.broker._keeper.store, "write", broken)
        for _ in range(100):
            with pytest.raises(OperationalError):
                on_disk.step(1)
    on_disk.step(1)
    assert on_disk.broker._keeper.memory.state.heard == before + 1


def test_the_database_refuses_a_gpu_twice(on_disk: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """A brain that grants one GPU to two leases: the second is refused, told with its story, and left alone."""
    agent = on_disk.agent("n1", 2)
    ids = [on_disk.submit(name=name).lease.id for name in ("a", "b")]

    def mad(state: object, *_args: object) -> Decisions:
        waiting = [x for x in state.leases.values() if x.state is LeaseState.QUEUED]  # type: ignore[attr-defined]
        grants = tuple(_grant(lease.id) for lease in waiting)
        return Decisions(decisions=grants, wake_at=None)

    monkeypatch.setattr("moorage.broker.loop.decide", mad)
    on_disk.work(agent)
    states = sorted(on_disk.get(id_).lease.state for id_ in ids)
    assert states == [LeaseState.QUEUED, LeaseState.RUNNING]


def _grant(lease: str) -> Grant:
    a = Allocation(id=f"{lease}.1", lease=lease, epoch=1, node="n1", role=AllocationRole.PROCESS, gpus=(0,), workers=1)
    return Grant(lease=lease, epoch=1, allocations=(a,), level="host", reason="mad")


def test_an_impossible_decision_does_not_stop_the_others(
    on_disk: InProcess, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    on_disk.agent("n1", 2)
    ids = [on_disk.submit(name=name).lease.id for name in ("a", "b")]
    on_disk.owner.release(ids[0], "x", new_id())

    def stale(*_args: object) -> Decisions:
        return Decisions(decisions=tuple(_grant(id_) for id_ in ids), wake_at=None)

    monkeypatch.setattr("moorage.broker.loop.decide", stale)
    on_disk.broker._loop.decide()
    assert on_disk.get(ids[1]).lease.state is LeaseState.GRANTED
    assert f"refused: {_grant(ids[0])}" in caplog.text


def test_a_newer_schema_is_refused_by_name(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/m.db"
    broker = Broker.open(url)
    with broker._keeper.store.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    broker.close()
    with pytest.raises(Conflict, match=r"schema 9999, and moorage 0\.1\.0 knows up to 0001"):
        Broker.open(url)


def test_the_migrations_make_the_schema_of_the_code(on_disk: InProcess) -> None:
    with on_disk.broker._keeper.store.begin() as connection:
        assert compare_metadata(MigrationContext.configure(connection), schema.metadata) == []


def test_two_live_leases_of_an_owner_are_impossible(on_disk: InProcess) -> None:
    lease = on_disk.submit().lease.id
    store = on_disk.broker._keeper.store
    with store.begin() as connection:
        row = dict(connection.execute(select(schema.lease)).mappings().one())
    row |= {"id": "other", "generation": 2}
    with pytest.raises(Exception, match="UNIQUE"), store.begin() as connection:
        connection.execute(insert(schema.lease).values(**row))
    assert on_disk.get(lease)


def test_close_ends_long_polls(on_disk: InProcess) -> None:
    lease = on_disk.submit().lease
    polled = threading.Thread(target=lambda: on_disk.owner.watch(lease.id, "w", since=99, timeout=60))
    polled.start()
    on_disk.broker.close()
    polled.join(timeout=5)
    assert not polled.is_alive()
    on_disk.broker = on_disk.open()


def test_the_threads_run_a_job(tmp_path: Path) -> None:
    """With `start`, nobody calls tick or settle."""
    world = InProcess.__new__(InProcess)
    world.broker = Broker.open(f"sqlite:///{tmp_path}/m.db")
    heard: list[frozenset[str]] = []
    world.broker.listen(heard.append)
    with world.broker as broker:
        broker.start()
        agent = world.agent("n1")
        lease = world.submit(PROCESS).lease
        view = world.owner.watch(lease.id, "w", since=1, timeout=10)
        assert view.lease.state is LeaseState.GRANTED
        agent.step()
        agent.end(f"{lease.id}.1", Evidence(exit_code=0))
        agent.step()
        assert world.get(lease.id).lease.state is LeaseState.ENDED
    topics = frozenset().union(*heard)
    assert {f"lease:{lease.id}", "node:n1", "fleet", "events"} <= topics


def test_times_of_orders_pass_without_a_decision(on_disk: InProcess) -> None:
    agent = on_disk.agent("n1")
    lease = on_disk.submit(PROCESS).lease.id
    on_disk.work(agent)
    on_disk.owner.release(lease, "x", new_id())
    before = agent.report().revision
    on_disk.clock.advance(31)
    on_disk.broker.tick()
    assert agent.api.orders("n1", before, 0).revision > before


def test_a_node_that_says_the_same_stays_fresh_and_is_stored_now_and_then(on_disk: InProcess) -> None:
    agent = on_disk.agent("n1")
    lease = on_disk.submit(PROCESS).lease.id
    on_disk.work(agent)
    on_disk.pass_time(100, agent)
    assert on_disk.operator.fleet().nodes[0].silent_s <= 1
    assert on_disk.get(lease).lease.attempt_heard >= 99
    on_disk.restart()
    assert on_disk.operator.fleet().nodes[0].silent_s <= 6


def test_a_waiting_sentence_alone_does_not_stir_the_brain(on_disk: InProcess) -> None:
    on_disk.agent("n1", 1)
    on_disk.submit(name="a")
    on_disk.submit(name="b")
    on_disk.settle()
    keeper, stirred = on_disk.broker._keeper, []
    keeper.stir = lambda: stirred.append(1)
    waiting = on_disk.operator.fleet().queue[0].lease
    with keeper.change("test") as draft:
        draft.put(replace(waiting, reason="another sentence"))
    assert not stirred
    on_disk.operator.priority(waiting.id, 3, new_id())
    assert stirred
