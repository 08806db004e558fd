"""Gradients come nested as the user likes: flatten to arrays, take the weighted mean in rank order, put back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def flatten(value: Any) -> tuple[list[Array], Callable[[Sequence[Array]], Any]]:
    """The arrays in it, and how to put others of the same shapes in their place.

    Args:
        value: arrays and floats in dicts (any key order: their own), lists and tuples, named ones too.

    Raises:
        TypeError: something in it is none of these.
    """
    leaves: list[Array] = []
    build = _flatten(value, leaves)
    return leaves, build


def _flatten(value: Any, leaves: list[Array]) -> Callable[[Sequence[Array]], Any]:
    match value:
        case dict():
            parts = {key: _flatten(item, leaves) for key, item in value.items()}
            return lambda new: {key: part(new) for key, part in parts.items()}
        case list() | tuple():
            items = [_flatten(item, leaves) for item in value]
            kind = type(value)
            if hasattr(value, "_fields"):
                return lambda new: kind(*(item(new) for item in items))
            return lambda new: kind(item(new) for item in items)
        case np.ndarray() | np.generic() | float() | int():
            return _leaf(value, leaves)
        case _:
            raise TypeError(
                f"all_reduce got a {type(value).__name__}: give arrays and floats in dicts, lists or tuples"
            )


def _leaf(value: Any, leaves: list[Array]) -> Callable[[Sequence[Array]], Any]:
    at = len(leaves)
    array = np.asarray(value)
    if array.dtype.kind not in "fiub":
        raise TypeError(f"all_reduce got an array of {array.dtype}: give real numbers")
    leaves.append(array)
    if isinstance(value, np.ndarray):
        return lambda new: new[at]
    return lambda new: float(new[at])


def weighted_mean(parts: Sequence[tuple[float, Sequence[Array]]]) -> list[Array]:
    """Mean of the ranks' arrays by weight, summed in the order given, in float64, in the first rank's dtype (floats).

    A rank of weight 0 has no say, whatever it holds (the mean of an empty shard is not a number).

    Raises:
        ValueError: ranks differ in number or shapes of arrays, or no rank has a weight.
    """
    shapes = [[array.shape for array in arrays] for _, arrays in parts]
    if any(shape != shapes[0] for shape in shapes):
        raise ValueError(f"ranks gave different shapes to all_reduce: {shapes}")
    total = sum(weight for weight, _ in parts)
    if total <= 0:
        raise ValueError("all_reduce has no weight on any rank: the global batch is empty")
    return [_mean(parts, i, total) for i in range(len(shapes[0]))]


def _mean(parts: Sequence[tuple[float, Sequence[Array]]], i: int, total: float) -> Array:
    kept = [(weight, arrays[i]) for weight, arrays in parts if weight > 0]
    summed = np.zeros(kept[0][1].shape, np.float64)
    for weight, array in kept:
        summed = summed + np.multiply(array, weight, dtype=np.float64)
    first = parts[0][1][i].dtype
    return np.asarray(summed / total, dtype=first if first.kind == "f" else np.float64)
