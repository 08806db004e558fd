"""kill -9 of a broker in the middle of everything, again and again; then what must be true is."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

import pytest
from conformance import SUBMITTER
from sqlalchemy import select
from worlds import InProcess

from moorage.api.values import Segment, Submission
from moorage.broker import Broker, reads, schema
from moorage.core.cost import cost
from moorage.core.lease import LeaseState

HAMMER = Path(__file__).with_name("hammer.py")
KILLS = 6


class Acknowledged:
    """What the broker has said yes to, over all its lives."""

    def __init__(self) -> None:
        self.submitted: dict[str, str] = {}
        self.released: set[str] = set()

    def hear(self, line: str) -> None:
        match line.split():
            case ["submitted", client_id, lease]:
                self.submitted[client_id] = lease
            case ["released", lease]:
                self.released.add(lease)


def one_life(database: Path, seconds: float, told: Acknowledged) -> None:
    """Run the hammer, kill it after so many seconds, and hear everything it had said."""
    argv = [sys.executable, str(HAMMER), str(database)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stderr
        first = process.stdout.readline()
        timer = threading.Timer(seconds, process.kill)
        timer.start()
        try:
            assert first.strip() == "ready" or first.startswith("submitted"), process.stderr.read()
            told.hear(first)
            for line in process.stdout:
                if line.endswith("\n"):
                    told.hear(line)
        finally:
            timer.cancel()
            process.kill()
        errors = process.stderr.read()
    assert "Traceback" not in errors, errors[-4000:]


@pytest.mark.system
@pytest.mark.path
def test_nothing_is_lost_or_given_twice(tmp_path: Path) -> None:
    database, told, dice = tmp_path / "m.db", Acknowledged(), random.Random(7)
    for _ in range(KILLS):
        one_life(database, dice.uniform(0.3, 2.0), told)
        with Broker.open(f"sqlite:///{database}") as broker:
            check(broker, told)
    assert len(told.submitted) > 20


def check(broker: Broker, told: Acknowledged) -> None:
    store, memory = broker._keeper.store, broker._keeper.memory
    live = memory.state.leases.values()
    with store.begin() as connection:
        holds = [(h.node, h.gpu, h.allocation) for h in connection.execute(select(schema.gpu_hold))]
        ids = [row.id for row in connection.execute(select(schema.lease.c.id))]
        seqs = [row.seq for row in connection.execute(select(schema.journal.c.seq).order_by(schema.journal.c.seq))]
    # No GPU twice, and the constraint's table says what the leases say.
    assert sorted(holds) == sorted((a.node, gpu, a.id) for lease in live for a in lease.live for gpu in a.gpus)
    assert seqs == list(range(1, len(seqs) + 1))
    check_acknowledged(broker, told, ids)
    check_ledger(broker, reads.segments(store, ids), ids)


def check_acknowledged(broker: Broker, told: Acknowledged, ids: list[str]) -> None:
    assert set(told.submitted.values()) <= set(ids)
    api = broker.acting(SUBMITTER)
    for client_id, lease in told.submitted.items():
        assert len(api.find({"name": client_id})) == 1
        again = Submission(owner={"name": "other"}, request=api.get(lease).lease.request, client_id=client_id)
        assert api.submit(again).lease.id == lease
    for lease in told.released:
        assert api.get(lease).lease.state in (LeaseState.STOPPING, LeaseState.ENDED)


def check_ledger(broker: Broker, segments: list[Segment], ids: list[str]) -> None:
    by_gpu: dict[tuple[str, int], list[Segment]] = defaultdict(list)
    by_lease: dict[str, list[Segment]] = defaultdict(list)
    for segment in segments:
        by_lease[segment.lease].append(segment)
        for gpu in segment.gpus:
            by_gpu[segment.node, gpu].append(segment)
    for one in by_gpu.values():
        for a, b in pairwise(sorted(one, key=lambda s: (s.start, s.id))):
            assert a.end is not None, (a, b)
            assert a.end <= b.start, (a, b)
    memory, now = broker._keeper.memory, broker._keeper.now()
    open_ones = {s.allocation for s in segments if s.end is None}
    assert open_ones == {a.id for x in memory.state.leases.values() for a in x.live if a.gpus}
    for view in broker._keeper.views(broker._keeper.row(lease) for lease in ids):
        if view.lease.state is LeaseState.ENDED:
            assert view.cost == cost(by_lease[view.lease.id], now)
            assert view.lease.spent_usd == view.cost.total_usd
        parts = (view.cost.busy_usd, view.cost.idle_usd, view.cost.lost_usd, view.cost.overhead_usd)
        assert sum(parts) + view.cost.unknown_usd == view.cost.total_usd


@pytest.mark.system
def test_a_killed_writer_leaves_its_place_to_a_standby(on_disk: InProcess, tmp_path: Path) -> None:
    told = Acknowledged()
    database = tmp_path / "m.db"
    opened: list[Broker] = []
    url = f"sqlite:///{database}"
    with subprocess.Popen([sys.executable, str(HAMMER), str(database)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        process.stdout.readline()
        standby = threading.Thread(target=lambda: opened.append(Broker.open(url, wait=True, wait_timeout=30)))
        standby.start()
        process.kill()
    standby.join(timeout=30)
    with opened[0] as broker:
        check(broker, told)
