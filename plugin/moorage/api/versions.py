"""Which versions work together: at most one minor version apart."""

from __future__ import annotations

#: Sent by clients and by brokers with every message.
HEADER = "Moorage-Version"


def work_together(one: str, other: str) -> bool:
    """Whether two versions may talk. What cannot be read as ``major.minor...`` is trusted: it may be newer than us."""
    ours, theirs = _numbers(one), _numbers(other)
    if ours is None or theirs is None:
        return True
    return ours[0] == theirs[0] and abs(ours[1] - theirs[1]) <= 1


def _numbers(text: str) -> tuple[int, int] | None:
    parts = text.split(".")
    if len(parts) < 2 or not (parts[0].isdigit() and parts[1].isdigit()):
        return None
    return int(parts[0]), int(parts[1])
