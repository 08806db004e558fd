"""The tutorial, done: every block marked ``<!-- run -->`` is run as it stands, only the port is another.

``<!-- run: background -->``: each line is a program that goes on. ``<!-- run: until WORD -->``: again until it is seen.
"""

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest
from docs_tables import DOCS

pytestmark = [pytest.mark.system, pytest.mark.timeout(240)]

_BLOCK = re.compile(r"<!-- run(?:: (?P<how>[^>]+))? -->\n```console\n(?P<body>.*?)^```", re.DOTALL | re.MULTILINE)


def blocks() -> list[tuple[str, str]]:
    """(how, commands without their prompts)."""
    text, prompt = (DOCS / "tutorial.md").read_text(), re.compile(r"^\$ ", re.MULTILINE)
    return [(found["how"] or "", prompt.sub("", found["body"])) for found in _BLOCK.finditer(text)]


@dataclass
class Terminal:
    """A folder, an environment that `export` changes, and the programs that go on."""

    folder: Path
    port: int
    env: dict[str, str]
    programs: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def run(self, commands: str) -> str:
        """Run with bash, stop at the first failure, keep exports; returns what was printed."""
        script = f"set -e\n{self._own_port(commands)}\nenv -0 > {self.folder}/env\n"
        done = subprocess.run(
            ["bash", "-c", script],
            cwd=self.folder,
            env=self.env,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        said = done.stdout + done.stderr
        assert done.returncode == 0, f"{commands}\n{said}\n{self.logs()}"
        exported = (self.folder / "env").read_bytes().decode().split("\0")
        self.env = dict(entry.split("=", 1) for entry in exported if "=" in entry)
        return said

    def background(self, commands: str) -> None:
        for line in self._own_port(commands).splitlines():
            log = (self.folder / f"{len(self.programs)}.log").open("wb")
            argv = shlex.split(line) + (["--port", str(self.port)] if " serve " in line else [])
            self.programs.append(
                subprocess.Popen(argv, cwd=self.folder, env=self.env, stdout=log, stderr=log, start_new_session=True)
            )
            log.close()
            if " serve " in line:
                self._wait_for_broker()

    def _own_port(self, commands: str) -> str:
        return commands.replace("127.0.0.1:8740", f"127.0.0.1:{self.port}")

    def _wait_for_broker(self) -> None:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            assert self.programs[-1].poll() is None, self.logs()
            try:
                httpx.get(f"http://127.0.0.1:{self.port}/", timeout=2)
            except httpx.HTTPError:
                time.sleep(0.2)
            else:
                return
        raise AssertionError(self.logs())

    def until(self, word: str, commands: str) -> None:
        deadline = time.monotonic() + 60
        while word not in (said := self.run(commands)):
            assert time.monotonic() < deadline, f"{word} was never seen in:\n{said}\n{self.logs()}"
            time.sleep(0.5)

    def logs(self) -> str:
        return "\n".join(f"{log.name}:\n{log.read_text()}" for log in sorted(self.folder.glob("*.log")))

    def close(self) -> None:
        """Agents first, as one would; each program leads a session of its own."""
        for program in reversed(self.programs):
            if program.poll() is None:
                program.send_signal(signal.SIGINT)
        for program in reversed(self.programs):
            try:
                program.wait(timeout=20)
            except subprocess.TimeoutExpired:
                os.killpg(program.pid, signal.SIGKILL)
                program.wait(timeout=10)


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    kept = {key: value for key, value in os.environ.items() if not key.startswith("MOORAGE_")}
    env = {
        **kept,
        "PATH": f"{Path(sys.executable).parent}:{kept['PATH']}",
        "RAY_AUTH_MODE": "disabled",
        "COLUMNS": "160",
    }
    terminal = Terminal(tmp_path, port, env)
    yield terminal
    terminal.close()


@pytest.mark.path
def test_the_tutorial_does_what_it_says(terminal: Terminal) -> None:
    said = ""
    for how, commands in blocks():
        match how.partition(" "):
            case ("", _, _):
                said += terminal.run(commands)
            case ("background", _, _):
                terminal.background(commands)
            case ("until", _, word):
                terminal.until(word, commands)
    assert re.search(r"\blease \S+ is queued$", said, re.MULTILINE), said
    assert "my GPUs: 0,1\n" in said, said
    assert re.search(r"succeeded: .* · \$0\.\d{4}$", said, re.MULTILINE), said
    assert all(program.poll() is None for program in terminal.programs), terminal.logs()
    # `moorage place`: both nodes, all their GPUs.
    assert said.count("0, 1, 2, 3") == 2
