"""Gradients in any shape, and their mean over the global batch."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage.ray.data import shard
from moorage.ray.tree import flatten, weighted_mean


class Pair(NamedTuple):
    loss: float
    w: Any


def test_what_goes_in_comes_out_in_the_same_places() -> None:
    value = (1.5, {"w": np.ones((2, 3), "f4"), "b": [np.zeros(2), 2]}, Pair(0.5, np.arange(3)))
    leaves, build = flatten(value)
    back = build([leaf * 2 for leaf in leaves])
    assert back[0] == 3.0
    assert back[1]["w"].tolist() == np.full((2, 3), 2).tolist()
    assert back[1]["b"][1] == 4.0
    assert isinstance(back[2], Pair)
    assert back[2].w.tolist() == [0, 2, 4]


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("text", "got a str"),
        ({"a": None}, "got a NoneType"),
        (np.array(["a"]), "array of <U1"),
        (np.ones(2) * 1j, "complex"),
    ],
)
def test_what_has_no_mean_is_named(value: Any, says: str) -> None:
    with pytest.raises(TypeError, match=says):
        flatten(value)


@given(values=st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=40), world=st.integers(1, 8))
def test_the_mean_of_local_means_is_the_global_mean(values: list[float], world: int) -> None:
    """Also with uneven and empty shards; the mean of an empty shard is NaN and has no say."""
    x = np.array(values)
    parts = [x[shard(len(x), rank, world)] for rank in range(world)]
    means = [(float(len(p)), [np.asarray(p.mean() if len(p) else np.nan)]) for p in parts]
    assert np.allclose(weighted_mean(means)[0], x.mean(), rtol=1e-12, atol=1e-6)


def test_dtypes_of_floats_stay_and_integers_become_floats() -> None:
    parts = [(1.0, [np.ones(2, "f4"), np.asarray(1)]), (1.0, [np.zeros(2, "f4"), np.asarray(2)])]
    a, b = weighted_mean(parts)
    assert (a.dtype, a.tolist()) == (np.float32, [0.5, 0.5])
    assert (b.dtype, float(b)) == (np.float64, 1.5)


def test_ranks_must_agree_on_shapes() -> None:
    with pytest.raises(ValueError, match="different shapes"):
        weighted_mean([(1.0, [np.ones(2)]), (1.0, [np.ones(3)])])


def test_an_empty_global_batch_has_no_mean() -> None:
    with pytest.raises(ValueError, match="no weight"):
        weighted_mean([(0.0, [np.ones(2)])])
