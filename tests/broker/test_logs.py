"""Bytes once read keep their place, whatever comes late, twice or too much."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from moorage.broker.logs import Logs


def whole(logs: Logs, lease: str) -> str:
    text, at, end = "", 0, False
    while not end:
        piece, at, end = logs.read(lease, at)
        text += piece
    return text


def test_late_lines_of_an_older_attempt_come_last(tmp_path: Path) -> None:
    logs = Logs(tmp_path)
    logs.put("a", 1, 0, b"one ")
    logs.put("a", 2, 0, b"two ")
    seen = whole(logs, "a")
    logs.put("a", 1, 4, b"late ")
    logs.put("a", 2, 4, b"more")
    assert whole(logs, "a").startswith(seen)
    assert whole(logs, "a") == "one two late more"


def test_too_much_is_cut_and_said(tmp_path: Path) -> None:
    logs = Logs(tmp_path, limit=10)
    assert logs.put("a", 1, 0, b"0123456789abc") == 13
    assert logs.put("a", 1, 13, b"more") == 17
    assert whole(logs, "a").startswith("0123456789\n[moorage: the rest of this attempt's log is left out")
    assert (tmp_path / "a" / "1.log").stat().st_size < 200


def test_a_character_cut_by_the_end_comes_whole(tmp_path: Path) -> None:
    logs = Logs(tmp_path)
    raw = "é" * 600_000
    logs.put("a", 1, 0, b"x" + raw.encode())
    text, at, end = logs.read("a", 0)
    assert (len(text), end) == (1 + 524_287, False)
    assert text + logs.read("a", at)[0] == "x" + raw


def test_unknown_lease_is_empty(tmp_path: Path) -> None:
    assert Logs(tmp_path).read("none", 5) == ("", 5, True)


@given(st.lists(st.tuples(st.integers(1, 3), st.binary(min_size=1, max_size=5)), max_size=20), st.data())
def test_any_order_of_attempts_and_repeats_reads_as_it_came(
    tmp_path_factory: object, puts: list[tuple[int, bytes]], data: st.DataObject
) -> None:
    logs = Logs(tmp_path_factory.mktemp("logs"))  # type: ignore[attr-defined]
    sizes: dict[int, int] = {}
    came = b""
    for epoch, text in puts:
        at = sizes.get(epoch, 0)
        assert logs.put("a", epoch, at, text) == at + len(text)
        if data.draw(st.booleans()):
            assert logs.put("a", epoch, at, text) == at + len(text)
        sizes[epoch] = at + len(text)
        came += text
    assert whole(logs, "a") == came.decode("utf-8", "replace")
