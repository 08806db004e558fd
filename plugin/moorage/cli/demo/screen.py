"""What a demo shows as it goes: one live line per part, or plain lines without a terminal."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.table import Table

_STYLES = {
    "starting": "yellow",
    "waiting": "yellow",
    "healthy": "green",
    "running": "cyan",
    "done": "green",
    "failed": "bold red",
    "killed": "magenta",
}


#: Without a terminal, seconds between two lines of one part whose state stays.
QUIET_S = 10.0


class Screen:
    """Lines by name, in the order in which they first appeared."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console()
        self.lines: dict[str, tuple[str, str]] = {}
        self.began = time.monotonic()
        self._printed: dict[str, tuple[str, float]] = {}
        self._live: Live | None = None

    def __enter__(self) -> Self:
        if self.console.is_terminal:
            self._live = Live(self._table(), console=self.console, refresh_per_second=4)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.update(self._table())
            self._live.stop()
            self._live = None

    def show(self, name: str, state: str, detail: str = "") -> None:
        """Set a line; without a terminal it is printed when its state changed, and at times when its detail did."""
        changed = self.lines.get(name) != (state, detail)
        self.lines[name] = (state, detail)
        if self._live is not None:
            self._live.update(self._table())
        elif changed and self._is_news(name, state):
            self._printed[name] = (state, time.monotonic())
            self.console.print(
                f"{time.monotonic() - self.began:6.1f} s  {name:<12} {state:<9} {detail}",
                markup=False,
                highlight=False,
                soft_wrap=True,
            )

    def _is_news(self, name: str, state: str) -> bool:
        before, at = self._printed.get(name, ("", 0.0))
        return before != state or time.monotonic() - at >= QUIET_S

    def say(self, text: str) -> None:
        """A line that stays."""
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def _table(self) -> Table:
        table = Table(box=None, show_header=False, pad_edge=False)
        table.add_column(width=12, no_wrap=True)
        table.add_column(width=9, no_wrap=True)
        table.add_column(overflow="ellipsis", no_wrap=True)
        for name, (state, detail) in self.lines.items():
            table.add_row(name, f"[{_STYLES.get(state, 'white')}]{state}[/]", detail.replace("[", "\\["))
        return table
