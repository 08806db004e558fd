"""A stranger's terminal: the `moorage` command against a real broker."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from moorage.client import Client
from moorage.testing.served import ServedBroker

#: Seconds that a command may take.
LIMIT_S = 40.0


@dataclass(frozen=True)
class Said:
    """What a command printed, and its exit status."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Zygote:
    """See `cli_zygote`."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("cli_zygote.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )

    def run(self, words: list[str], folder: Path, env: Mapping[str, str], scratch: Path) -> Said:
        out, err = scratch / "out", scratch / "err"
        for file in (out, err):
            file.write_text("")
        call = {"words": words, "folder": str(folder), "env": dict(env), "out": str(out), "err": str(err)}
        self._stream(self._process.stdin).write(json.dumps(call) + "\n")
        child = int(self._answer(LIMIT_S))
        try:
            status = int(self._answer(LIMIT_S))
        except TimeoutError:
            os.kill(child, signal.SIGKILL)
            self._answer(LIMIT_S)
            raise AssertionError(f"moorage {words} took over {LIMIT_S} s: {out.read_text()}{err.read_text()}") from None
        return Said(status, out.read_text(), err.read_text())

    def _answer(self, limit_s: float) -> str:
        stream = self._stream(self._process.stdout)
        if not select.select([stream], [], [], limit_s)[0]:
            raise TimeoutError
        return stream.readline()

    @staticmethod
    def _stream(stream: IO[str] | None) -> IO[str]:
        assert stream is not None
        return stream

    def close(self) -> None:
        self._stream(self._process.stdin).close()
        self._process.wait(timeout=10)
        self._stream(self._process.stdout).close()


@dataclass(frozen=True)
class Site:
    """A broker, two nodes of four GPUs in one rack, and a folder to work in."""

    broker: ServedBroker
    folder: Path
    scratch: Path
    zygote: Zygote

    @property
    def client(self) -> Client:
        return self.broker.client

    @property
    def env(self) -> dict[str, str]:
        """All that a command's environment has."""
        here = {"MOORAGE_URL": self.broker.url, "MOORAGE_TOKEN": self.broker.token, "HOME": str(self.scratch)}
        return {"PATH": os.environ["PATH"], "LANG": "C.UTF-8", **here}

    def moorage(self, *words: object, **env: str | None) -> Said:
        """Run a command in the folder; a variable that is None is not set."""
        given = {name: value for name, value in {**self.env, **env}.items() if value is not None}
        return self.zygote.run([str(word) for word in words], self.folder, given, self.scratch)

    def start(self, *words: object, **env: str) -> subprocess.Popen[str]:
        """Start the installed command itself."""
        return subprocess.Popen(
            [Path(sys.executable).with_name("moorage"), *map(str, words)],
            cwd=self.folder,
            env={**self.env, **env},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )


class HangsUp:
    """A server that hangs up on everybody, and a command that talks to it while the other tests run."""

    def __init__(self, site: Site) -> None:
        self.calls = 0
        self._server = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._server.getsockname()[1]}"
        self._thread = threading.Thread(target=self._hang_up, daemon=True)
        self._thread.start()
        self.command = site.start("run", "true", MOORAGE_URL=self.url)

    def _hang_up(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                self._server.accept()[0].close()
                self.calls += 1

    def close(self) -> None:
        self.command.kill()
        self.command.communicate()
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self._thread.join(10)
