"""The real processes of a demo: started in order, waited for, watched, and told apart when one fails."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from moorage.cli.demo.guard import MARK
from moorage.cli.demo.screen import Screen

#: Lines of a failed part's log that are shown.
TAIL = 15


class PartFailed(Exception):
    """A part ended, or did not become healthy; the message has the last lines of its log."""

    def __init__(self, name: str, what: str, log: Path) -> None:
        super().__init__(f"{name} {what}\n--- last lines of {log}\n{tail(log)}")


@dataclass
class Part:
    """One process. `healthy` returns what to show once it is, else None."""

    name: str
    argv: Sequence[str]
    log: Path
    healthy: Callable[[], str | None]
    env: Mapping[str, str] = field(default_factory=dict)
    #: Seconds that it may take to be healthy.
    limit_s: float = 120.0
    process: subprocess.Popen[bytes] | None = None
    #: Somebody (the demo's cloud) ends it on purpose: its end is no failure.
    expendable: bool = False


class Parts:
    """All processes of one demo."""

    def __init__(self, mark: str, screen: Screen) -> None:
        self.mark = mark
        self.screen = screen
        self.parts: list[Part] = []

    def start(self, part: Part) -> Part:
        """Start a part; its output goes to its log."""
        part.log.parent.mkdir(parents=True, exist_ok=True)
        with part.log.open("ab") as log:
            part.process = subprocess.Popen(
                list(part.argv),
                env=self.environment(part.env),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.parts.append(part)
        self.screen.show(part.name, "starting")
        return part

    def environment(self, more: Mapping[str, str]) -> dict[str, str]:
        """Ours, with the mark, without what slows Python down or points to another Moorage."""
        dropped = ("PYTHONDONTWRITEBYTECODE",)
        ours = {k: v for k, v in os.environ.items() if not k.startswith("MOORAGE_") and k not in dropped}
        # setproctitle (Airflow, Ray) would overwrite the environment that the guard reads the mark from.
        return {**ours, "SPT_NOENV": "1", "RAY_AUTH_MODE": "token", **more, MARK: self.mark}

    def wait_healthy(self, *parts: Part) -> None:
        """Wait for these parts. Raises `PartFailed` when one ends or its time is up."""
        began = time.monotonic()
        waiting = list(parts)
        while waiting:
            self.check()
            for part in list(waiting):
                shown = part.healthy()
                if shown is not None:
                    waiting.remove(part)
                    self.screen.show(part.name, "healthy", f"{shown} after {time.monotonic() - began:.0f} s")
                elif time.monotonic() - began > part.limit_s:
                    raise PartFailed(part.name, f"was not healthy within {part.limit_s:.0f} s", part.log)
            time.sleep(0.2)

    def check(self) -> None:
        """Raise `PartFailed` for a part that ended by itself."""
        for part in self.parts:
            if part.process is not None and not part.expendable and (code := part.process.poll()) is not None:
                raise PartFailed(part.name, f"ended with exit status {code}", part.log)

    def stop(self, grace_s: float = 5.0) -> None:
        """Ask every part to end, last started first, and wait a little; the guard ends what is left."""
        running = [part.process for part in reversed(self.parts) if part.process and part.process.poll() is None]
        for part in self.parts:
            part.expendable = True
        for process in running:
            process.send_signal(signal.SIGTERM)
        until = time.monotonic() + grace_s
        while any(process.poll() is None for process in running) and time.monotonic() < until:
            time.sleep(0.1)


def tail(log: Path, lines: int = TAIL) -> str:
    """The last lines of a file; a sentence if there is none."""
    try:
        text = log.read_text(errors="replace")
    except FileNotFoundError:
        return "(no log)"
    return "\n".join(text.splitlines()[-lines:]) or "(empty)"


def free_port() -> int:
    """A port of 127.0.0.1 that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
