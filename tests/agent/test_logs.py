"""Logs: segments by offset, shipping that goes on where the broker says, gaps that are said."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from moorage.agent import child, joblog
from moorage.agent.logs import Shipper
from moorage.api.errors import Conflict
from moorage.testing.scripted import ScriptedBroker


def run_child(folder: Path, most: int, script: str) -> None:
    folder.mkdir(exist_ok=True)
    command = [sys.executable, "-I", "-S", child.__file__, str(folder), str(most), sys.executable, "-c", script]
    subprocess.run(command, cwd=folder, check=True, timeout=30)


def put(folder: Path, text: str) -> None:
    """Append to the log as the supervisor does."""
    folder.mkdir(exist_ok=True)
    with (folder / f"log.{0:015d}").open("a") as file:
        file.write(text)


def test_old_segments_go_and_offsets_stay(tmp_path: Path) -> None:
    folder = tmp_path / "a"
    folder.mkdir()
    log = child.Log(str(folder), 800)
    for number in range(200):
        log.append(f"{number:07d}\n".encode())
    assert joblog.end(folder) == 1600
    starts = [start for start, _ in joblog.segments(folder)]
    assert len(starts) == child.SEGMENTS
    assert starts[0] > 0
    everything = "".join(f"{i:07d}\n" for i in range(200)).encode()
    start, data = joblog.read(folder, 0, 8)
    assert start == starts[0]
    assert data == everything[start : start + len(data)]
    assert joblog.read(folder, 1592, 100) == (1592, b"0000199\n")
    assert joblog.read(folder, 1600, 100) == (1600, b"")
    assert joblog.tail(folder).splitlines()[-1] == "0000199"


def test_a_log_is_shipped_once_over_restarts(tmp_path: Path) -> None:
    broker, folder = ScriptedBroker(), tmp_path / "a"
    put(folder, "one\n")
    first = Shipper(broker, "n1")
    first.track("l.0", folder, "l", 1)
    assert first.step()
    put(folder, "two\n")
    broker.go_away()
    assert not first.step()
    broker.come_back()
    again = Shipper(broker, "n1")
    again.track("l.0", folder, "l", 1)
    assert again.step()
    assert again.step()
    assert broker.log("l", 1) == "one\ntwo\n"


def test_a_gap_is_said_and_later_bytes_follow(tmp_path: Path) -> None:
    broker, folder = ScriptedBroker(), tmp_path / "a"
    folder.mkdir()
    (folder / f"log.{500:015d}").write_text("later\n")
    shipper = Shipper(broker, "n1")
    shipper.track("l.0", folder, "l", 1)
    assert shipper.step()
    with (folder / f"log.{500:015d}").open("a") as file:
        file.write("last\n")
    again = Shipper(broker, "n1")
    again.track("l.0", folder, "l", 1)
    assert again.step()
    assert broker.log("l", 1) == "\n[moorage: 500 bytes of log were dropped on n1]\nlater\nlast\n"


def test_a_loud_job_is_slowed_not_the_agent(tmp_path: Path) -> None:
    broker, folder = ScriptedBroker(), tmp_path / "a"
    put(folder, "x" * (3 << 20))
    shipper = Shipper(broker, "n1")
    shipper.track("l.0", folder, "l", 1)
    assert shipper.step()
    assert len(broker.log("l", 1)) == 1 << 20


def test_an_ended_jobs_folder_goes_when_its_log_is_there(tmp_path: Path) -> None:
    broker, folder = ScriptedBroker(), tmp_path / "a"
    put(folder, "end\n")
    shipper = Shipper(broker, "n1")
    shipper.track("l.0", folder, "l", 1)
    broker.go_away()
    shipper.retire("l.0")
    assert not shipper.step()
    assert folder.exists()
    broker.come_back()
    assert shipper.step()
    assert broker.log("l", 1) == "end\n"
    assert not folder.exists()


def test_a_log_that_is_not_wanted_is_let_go(tmp_path: Path) -> None:
    class Refusing(ScriptedBroker):
        def put_logs(self, node: str, lease: str, epoch: int, offset: int, text: bytes) -> int:
            raise Conflict("a stale epoch")

    folder = tmp_path / "a"
    put(folder, "end\n")
    shipper = Shipper(Refusing(), "n1")
    shipper.track("l.0", folder, "l", 1)
    shipper.retire("l.0")
    assert shipper.step()
    assert not folder.exists()


@pytest.mark.parametrize(
    ("script", "said"),
    [("raise SystemExit(4)", '"exit_code": 4'), ("import os; os.kill(os.getpid(), 6)", '"signal": 6')],
)
def test_how_it_ended_is_written_down(tmp_path: Path, script: str, said: str) -> None:
    run_child(tmp_path / "a", 1 << 20, script)
    assert said in (tmp_path / "a/exit.json").read_text()


def test_a_daemon_that_keeps_the_pipe_does_not_keep_the_supervisor(tmp_path: Path) -> None:
    run_child(tmp_path / "a", 1 << 20, "import subprocess; subprocess.Popen(['sleep', '20']); print('bye')")
    assert joblog.tail(tmp_path / "a") == "bye"
