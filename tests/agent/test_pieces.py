"""Secrets, environment, the board between threads, commands of a Ray cluster."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moorage.agent import environment
from moorage.agent.board import Board
from moorage.agent.environment import BadSecret
from moorage.agent.host import StartLock
from moorage.agent.reporting import MOST_S, Outage
from moorage.api.values import NodeReport, Notice, Order, Orders, Task
from moorage.ray import cluster


@pytest.mark.parametrize(
    ("reference", "why"),
    [
        ("plain", "write env:NAME or file:PATH"),
        ("env:NOPE", "set NOPE in the environment"),
        ("env:MOORAGE_TOKEN", "not given to jobs"),
        ("file:/does/not/exist", "cannot be read on this node"),
    ],
)
def test_secrets_that_do_not_resolve(reference: str, why: str) -> None:
    with pytest.raises(BadSecret, match=why):
        environment.secret("S", reference, {"MOORAGE_TOKEN": "x"})


def test_a_secret_file(tmp_path: Path) -> None:
    (tmp_path / "s").write_text("value\n")
    assert environment.secret("S", f"file:{tmp_path / 's'}", {}) == "value"


def test_the_base_leaves_the_agents_own_behind() -> None:
    own = {"PATH": "/bin", "HOME": "/root", "LC_ALL": "C", "AWS_SECRET_ACCESS_KEY": "x", "MOORAGE_TOKEN": "x"}
    made = environment.base(own)
    assert set(made) == {"PATH", "HOME", "LC_ALL", "PYTHONUNBUFFERED"}
    assert made["PATH"].endswith(":/bin")


def board() -> Board:
    def describe(tasks: tuple[Task, ...], notice: Notice | None, seen: int | None) -> NodeReport:
        return NodeReport(
            node="n",
            incarnation="i",
            version="0",
            gpus=(),
            cpus=None,
            memory=None,
            labels={},
            tasks=tasks,
            notice=notice,
            orders_seen=seen,
        )

    return Board(describe)


@pytest.mark.parametrize(
    ("answers", "revision"),
    [
        # (revision, asked relative to the last answer's arrival)
        ([(5, 0)], 5),
        ([(5, 0), (6, -1)], 6),
        ([(6, 0), (5, -1)], 6),
        ([(6, 0), (5, +1)], 5),
    ],
)
def test_a_late_older_answer_is_dropped_but_a_restored_database_is_not(
    answers: list[tuple[int, float]], revision: int
) -> None:
    made = board()
    for number, after in answers:
        last = made.answer()
        made.accept(Orders(revision=number, orders=()), (last.received if last else 0.0) + after)
    found = made.answer()
    assert found is not None
    assert found.revision == revision


def test_a_waiting_reporter_is_woken_by_news(order: Callable[..., Order]) -> None:
    made = board()
    _, said = made.report()
    done = threading.Event()

    def wait() -> None:
        made.wait_said(said, 10)
        done.set()

    threading.Thread(target=wait, daemon=True).start()
    made.set_notice(Notice(deadline=None, source="x", at=datetime.now(UTC)))
    assert done.wait(2)
    assert made.wait_news(0, 0) == 1


def test_the_host_lock_is_held_by_the_descriptor(tmp_path: Path) -> None:
    lock, other = StartLock(tmp_path / "lock"), StartLock(tmp_path / "lock")
    held = lock.take()
    assert held is not None
    assert other.take() is None
    os.close(held)
    again = other.take()
    assert again is not None
    os.close(again)


def test_an_outage_waits_longer_up_to_a_bound() -> None:
    outage = Outage("x")
    waits = [outage.failed(OSError("no")) for _ in range(8)]
    assert waits == sorted(waits)
    assert waits[-1] == MOST_S
    outage.over()
    assert outage.failed(OSError("no")) == waits[0]


@pytest.mark.parametrize(
    ("key", "value", "fits"),
    [
        ("moorage.io/lease", "01890a5d-ac96-774b-bcce-b302099a8057.3", True),
        ("rack", "r1", True),
        ("ray.io/node-id", "x", False),
        ("a/b/c", "x", False),
        ("k", "has space", False),
        ("k", "a,b=c", False),
        ("k", "", False),
        ("k", "x" * 64, False),
        ("", "x", False),
    ],
)
def test_labels_that_ray_takes(key: str, value: str, fits: bool) -> None:
    good, refused = cluster.usable_labels({key: value})
    assert (good, refused) == (({key: value}, ()) if fits else ({}, (key,)))


@settings(deadline=None)  # The first example imports Ray's checks.
@given(st.text(max_size=80), st.text(max_size=80))
def test_labels_that_we_take_ray_takes(key: str, value: str) -> None:
    from ray._private.label_utils import validate_label_key, validate_label_value

    good, _ = cluster.usable_labels({key: value})
    if good:
        assert validate_label_key(key) is None
        assert validate_label_value(value) in (None, "")


def test_socket_paths_stay_short() -> None:
    folder = cluster.cluster_folder("01890a5d-ac96-774b-bcce-b302099a8057", 12345)
    longest = folder / "session_2026-12-01_00-43-58_048082_4194304" / "sockets" / "plasma_store.9999"
    assert len(str(longest)) < 103
    assert folder != cluster.cluster_folder("01890a5d-ac96-774b-bcce-b302099a8057", 12346)


def test_free_ports_differ() -> None:
    assert len(set(cluster.free_ports("127.0.0.1", 50))) == 50


def test_daemons_are_told_everything_explicitly() -> None:
    daemons = cluster.Daemons(python="py", ip="127.0.0.1", labels={"b": "2", "a": "1"}, agent_port=7)
    argv = cluster.head_command(daemons, port=1, client_port=2, folder=Path("/tmp/x"))
    assert argv[:4] == ["py", "-m", "ray.scripts.scripts", "start"]
    for word in (
        "--head",
        "--port=1",
        "--ray-client-server-port=2",
        "--no-monitor",
        "--labels=a=1,b=2",
        "--num-gpus=0",
    ):
        assert word in argv
    assert "--block" not in argv
    assert cluster.auth_env(None) == {"RAY_AUTH_MODE": "disabled"}
    assert cluster.cluster_env({"RAY_TRAIN_V2_ENABLED": "0"}, None, None)["RAY_TRAIN_V2_ENABLED"] == "0"
