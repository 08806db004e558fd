"""Nothing that a demo started survives it, however it ends. Real processes, killed for real."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import psutil
import pytest

from moorage.cli.demo import guard

#: A demo that starts a child, a grandchild in a session of its own, and an orphan, then waits or returns.
DEMO = """
import subprocess, sys, time, os
from moorage.cli.demo.guard import MARK, guarded
mark, how = sys.argv[1:]
def main():
    env = {**os.environ, MARK: mark}
    subprocess.Popen(["sleep", "300"], env=env, start_new_session=True)
    nest = "import subprocess; subprocess.Popen(['sleep', '301'], start_new_session=True)"
    subprocess.run([sys.executable, "-c", nest], env={k: v for k, v in env.items() if k != MARK}, check=True)
    print(os.getpid(), flush=True)
    if how == "return":
        return 7
    if how == "raise":
        raise RuntimeError("broken")
    time.sleep(300)
    return 0
sys.exit(guarded(mark, main))
"""


def eventually(true: Callable[[], bool], limit_s: float = 30.0) -> None:
    until = time.monotonic() + limit_s
    while not true():
        assert time.monotonic() < until, "not within the time limit"
        time.sleep(0.05)


class Demo:
    def __init__(self, mark: str, how: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", DEMO, mark, how], stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        assert self.process.stdout is not None
        self.inner = int(self.process.stdout.readline())
        self.family = {p.pid for p in psutil.Process(self.process.pid).children(recursive=True)}

    def left(self) -> list[int]:
        return [pid for pid in self.family if psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie"]


@pytest.fixture
def start(request: pytest.FixtureRequest) -> Iterator[Callable[[str], Demo]]:
    made: list[Demo] = []

    def make(how: str) -> Demo:
        made.append(Demo(f"test-{os.getpid()}-{request.node.name}", how))
        return made[-1]

    yield make
    for demo in made:
        for pid in (demo.process.pid, *demo.left()):
            if psutil.pid_exists(pid):
                os.kill(pid, signal.SIGKILL)
        demo.process.wait(timeout=10)


@pytest.mark.parametrize(("how", "status"), [("return", 7), ("raise", 1)])
def test_its_end_is_everybodys_end(start: Callable[[str], Demo], how: str, status: int) -> None:
    demo = start(how)
    assert demo.process.wait(timeout=30) == status
    assert demo.left() == []


def test_ctrl_c_ends_everything(start: Callable[[str], Demo]) -> None:
    demo = start("wait")
    demo.process.send_signal(signal.SIGINT)
    assert demo.process.wait(timeout=30) == 130
    assert demo.left() == []


@pytest.mark.skipif(sys.platform != "linux", reason="orphans come back to a subreaper only on Linux")
@pytest.mark.parametrize("victim", ["guard", "demo"])
def test_kill_9_of_either_ends_everything(start: Callable[[str], Demo], victim: str) -> None:
    demo = start("wait")
    assert len(demo.family) >= 3
    os.kill(demo.process.pid if victim == "guard" else demo.inner, signal.SIGKILL)
    eventually(lambda: demo.left() == [])


def test_a_process_is_known_by_its_mark() -> None:
    process = subprocess.Popen(["sleep", "300"], env={**os.environ, guard.MARK: "one"})
    try:
        eventually(lambda: guard.carries(psutil.Process(process.pid), guard.MARK, "one"))
        assert not guard.carries(psutil.Process(process.pid), guard.MARK, "two")
    finally:
        process.kill()
        process.wait(timeout=10)
