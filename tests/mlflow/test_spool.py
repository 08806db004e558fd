"""The spool: what is committed together, what a kill leaves behind, and its bound."""

import logging
import subprocess
import sys
import textwrap
from datetime import UTC, datetime
from pathlib import Path

import pytest

from moorage.api.errors import Conflict
from moorage.api.values import Event, EventKind
from moorage.mlflow.operations import Operation, Point, SetStatus, Worth, Write
from moorage.mlflow.spool import MAX_STORY, RunRow, Spool, Spooled
from moorage.mlflow.tracked import Tracked

AT = datetime(2026, 11, 30, 20, tzinfo=UTC)


def row(seq: int) -> Event:
    return Event(seq=seq, at=AT, kind=EventKind.HELD, sentence=f"row {seq}", lease="a")


def point(lease: str, step: int, worth: Worth) -> Write:
    return Write(lease=lease, epoch=0, points=(Point(key="k", value=step, at=step, step=step),), worth=worth)


def steps(waiting: list[Spooled], worth: Worth) -> list[int]:
    writes = [one.operation for one in waiting if isinstance(one.operation, Write)]
    return [write.points[0].step for write in writes if write.worth is worth]


def test_everything_is_there_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "spool"
    first = Spool(path)
    one = Tracked(lease="a", submitted=5, epoch=2, note="$1 · x")
    first.commit([SetStatus(lease="a", epoch=0, status="RUNNING")], [one], [row(7)], last=row(7))
    first.put_run(RunRow("a", 0, "run", "1"))
    first.close()
    again = Spool(path)
    assert again.position() == (7, AT.isoformat())
    assert again.tracked() == {"a": one}
    assert again.story("a") == [row(7)]
    assert [spooled.operation for spooled in again.head(9)] == [SetStatus(lease="a", epoch=0, status="RUNNING")]
    assert (again.run("a", 0), again.run("a", 1)) == (RunRow("a", 0, "run", "1"), None)
    again.close()


def test_a_second_recorder_is_told(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool")
    with pytest.raises(Conflict, match="give this one another file"):
        Spool(tmp_path / "spool")
    spool.close()
    Spool(tmp_path / "spool").close()


def test_a_killed_process_leaves_position_and_operations_in_step(tmp_path: Path) -> None:
    """Every committed row wrote one operation, so that however it dies, they count the same."""
    path = tmp_path / "spool"
    program = textwrap.dedent(
        f"""
        import itertools
        from datetime import UTC, datetime
        from pathlib import Path
        from moorage.api.values import Event, EventKind
        from moorage.mlflow.operations import SetStatus
        from moorage.mlflow.spool import Spool
        spool = Spool(Path({str(path)!r}))
        for seq in itertools.count(1):
            event = Event(seq=seq, at=datetime.now(UTC), kind=EventKind.HELD, sentence="", lease="a")
            spool.commit([SetStatus(lease="a", epoch=0, status="RUNNING")], [], [event], last=event)
            print(seq, flush=True)
        """
    )
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    told = 0
    for line in process.stdout:
        told = int(line)
        if told >= 50:
            break
    process.kill()
    process.wait(timeout=10)
    process.stdout.close()
    spool = Spool(path)
    seq = spool.position()[0]
    assert seq >= told
    assert spool.waiting() == seq
    assert len(spool.story("a")) == seq
    spool.close()


def test_a_full_spool_gives_up_cost_points_first(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    spool = Spool(tmp_path / "spool", max_operations=100)
    operations: list[Operation] = [SetStatus(lease="a", epoch=0, status="RUNNING")]
    operations += [point("a", step, Worth.SERIES) for step in range(30)]
    operations += [point(lease, step, Worth.COST) for step in range(40) for lease in "ab"]
    with caplog.at_level(logging.WARNING):
        spool.commit(operations)
    waiting = spool.head(500)
    assert steps(waiting, Worth.COST) == [39, 39]
    assert steps(waiting, Worth.SERIES) == list(range(30))
    assert len(waiting) == 33
    assert "was thinned to 33" in caplog.text
    assert "Start the tracking server" in caplog.text
    spool.close()


def test_then_every_second_point_of_curves_but_never_a_status(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool", max_operations=100)
    keep = [SetStatus(lease="a", epoch=n, status="RUNNING") for n in range(20)]
    spool.commit([*keep, *(point("a", step, Worth.SERIES) for step in range(90))])
    assert steps(spool.head(500), Worth.SERIES) == list(range(0, 90, 2))
    spool.commit([point("a", step, Worth.SERIES) for step in range(90, 200)])
    assert spool.waiting() <= 100
    assert sum(isinstance(one.operation, SetStatus) for one in spool.head(500)) == 20
    spool.close()


def test_a_story_without_end_is_cut_and_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    spool = Spool(tmp_path / "spool")
    with caplog.at_level(logging.WARNING):
        spool.commit([], [], [row(seq) for seq in range(1, MAX_STORY + 10)])
    assert len(spool.story("a")) == MAX_STORY
    assert "its MLflow table ends here" in caplog.text
    spool.forget_story("a")
    assert spool.story("a") == []
    spool.close()


def test_refused_operations_are_kept_aside_with_the_reason(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool")
    spool.commit([SetStatus(lease="a", epoch=0, status="RUNNING")])
    spool.refuse(spool.head(1)[0], "no such run")
    assert spool.waiting() == 0
    assert spool.refused() == [(SetStatus(lease="a", epoch=0, status="RUNNING"), "no such run")]
    spool.close()


def test_runs_to_note_and_to_wait_for(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool")
    spool.commit([], [Tracked(lease="a", submitted=0)])
    assert spool.without_run()
    spool.put_run(RunRow("a", 0, "run", "1"))
    spool.put_run(RunRow("a", 1, "child", "1"))
    assert not spool.without_run()
    assert [run.id for run in spool.unnoted()] == ["run"]
    spool.noted("a")
    assert spool.unnoted() == []
    spool.close()
