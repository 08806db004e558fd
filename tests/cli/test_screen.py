"""What a demo shows without a terminal: changes of state, and now and then a detail."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from moorage.cli.demo import screen


def shown(monkeypatch: pytest.MonkeyPatch, quiet_s: float) -> list[str]:
    monkeypatch.setattr(screen, "QUIET_S", quiet_s)
    out = io.StringIO()
    with screen.Screen(Console(file=out, width=200)) as lines:
        for state, detail in (("starting", ""), ("running", "1"), ("running", "2"), ("running", "2"), ("done", "[3]")):
            lines.show("part", state, detail)
    return [line.split(" s  ", 1)[1] for line in out.getvalue().splitlines()]


def test_a_state_is_told_at_once_and_details_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [line.split()[1:] for line in shown(monkeypatch, 10)] == [["starting"], ["running", "1"], ["done", "[3]"]]


def test_a_detail_is_told_when_it_is_time_and_only_if_it_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [line.split()[-1] for line in shown(monkeypatch, 0)] == ["starting", "1", "2", "[3]"]
