"""Which GPUs of one node: islands first, tightest fit, lowest indices."""

from __future__ import annotations

from moorage.core.columns import bits_of
from moorage.core.fleet import Node

Gpus = tuple[int, ...]


def pick(node: Node, free: int, workers: int, each: int, *, one_island: bool = False) -> tuple[Gpus, ...]:
    """Devices for each of `workers` workers with `each` GPUs, out of the bits of `free`; empty if they do not fit.

    All in one island if one can hold them, the one with the least left over. Otherwise worker by worker, each in the
    tightest island that holds it, and only then across islands.
    """
    islands = islands_of(node, free)
    whole = _tightest(islands, workers * each)
    if whole is not None:
        return tuple(whole[k * each : (k + 1) * each] for k in range(workers))
    if one_island or free.bit_count() < workers * each:
        return ()
    chosen = []
    for _ in range(workers):
        gpus = _one(islands, each)
        islands = [tuple(i for i in island if i not in gpus) for island in islands]
        chosen.append(gpus)
    return tuple(chosen)


def islands_of(node: Node, free: int) -> list[Gpus]:
    """The free devices by island. Where islands are not known, the node's GPUs count as one group."""
    number = {gpu.index: gpu.island for gpu in node.gpus}
    groups: dict[int | None, list[int]] = {}
    for index in bits_of(free):
        groups.setdefault(number.get(index), []).append(index)
    return [tuple(group) for group in groups.values()]


def largest_island(node: Node, free: int) -> int:
    """Most free devices in one known island."""
    known = {gpu.index for gpu in node.gpus if gpu.island is not None}
    return max((len(group) for group in islands_of(node, free) if group and group[0] in known), default=0)


def known_islands(node: Node, free: int) -> int:
    """The bits of `free` whose island is known."""
    known = sum(1 << gpu.index for gpu in node.gpus if gpu.island is not None)
    return free & known


def _tightest(islands: list[Gpus], need: int) -> Gpus | None:
    fits = [island for island in islands if len(island) >= need]
    return min(fits, key=lambda island: (len(island), island))[:need] if fits else None


def _one(islands: list[Gpus], each: int) -> Gpus:
    tight = _tightest(islands, each)
    if tight is not None:
        return tight
    # No island holds this worker: as few islands as can be, the fullest first.
    ordered = sorted(islands, key=lambda island: (-len(island), island))
    return tuple(sorted([index for island in ordered for index in island][:each]))
