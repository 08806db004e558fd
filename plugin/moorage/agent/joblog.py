"""Reads the log that `child` writes: segments named by the offset of their first byte."""

from __future__ import annotations

from pathlib import Path

from moorage.agent.names import LOG, TAIL_BYTES, TAIL_LINES


def segments(folder: Path) -> list[tuple[int, Path]]:
    """(offset, file), oldest first."""
    return sorted((int(path.name.removeprefix(LOG)), path) for path in folder.glob(f"{LOG}[0-9]*"))


def read(folder: Path, offset: int, most: int) -> tuple[int, bytes]:
    """At most `most` bytes from `offset`, and where they really start: later, if the log was cut there."""
    for start, path in segments(folder):
        try:
            with path.open("rb") as file:
                size = file.seek(0, 2)
                if start + size <= offset:
                    continue
                begin = max(start, offset)
                file.seek(begin - start)
                return begin, file.read(most)
        except FileNotFoundError:  # The oldest segment just went.
            continue
    return offset, b""


def end(folder: Path) -> int:
    """Offset of the next byte that will be written."""
    found = segments(folder)
    return found[-1][0] + found[-1][1].stat().st_size if found else 0


def tail(folder: Path) -> str:
    """Last lines, for evidence."""
    found = b""
    offset = max(0, end(folder) - TAIL_BYTES)
    while len(found) < TAIL_BYTES:
        start, data = read(folder, offset, TAIL_BYTES)
        if not data:
            break
        found += data
        offset = start + len(data)
    return last_lines(found)


def last_lines(data: bytes, lines: int = TAIL_LINES) -> str:
    """Last lines of the last bytes."""
    return "\n".join(data[-TAIL_BYTES:].decode(errors="replace").splitlines()[-lines:])


def file_tail(path: Path) -> str:
    """Last lines of a plain file; "" if there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - TAIL_BYTES))
            return last_lines(file.read())
    except FileNotFoundError:
        return ""
