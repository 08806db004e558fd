"""A state comes back as it was, arrays bit for bit, random streams where they were."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage.checkpoint import BadState, load_arrays, pack, save_arrays, unpack
from moorage.core.invalid import Invalid


def same(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray):
        return isinstance(b, np.ndarray) and a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, dict):
        return isinstance(b, dict) and list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and (a == b or (a != a and b != b))


arrays = st.builds(
    lambda shape, dtype, fill: np.full(shape, fill).astype(dtype),
    st.lists(st.integers(0, 3), max_size=3).map(tuple),
    st.sampled_from(["f4", "f8", "i2", "u8", "?", "c8"]),
    st.integers(0, 5),
)
leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | arrays
keys = st.text(max_size=5).filter(lambda k: k != "__moorage__")
states = st.recursive(
    leaves, lambda s: st.lists(s, max_size=3) | st.tuples(s, s) | st.dictionaries(keys, s, max_size=3), max_leaves=8
)


@given(states)
def test_any_state_comes_back(state: Any) -> None:
    assert same(unpack(pack(state)), state)


@pytest.mark.parametrize("bits", ["PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64"])
def test_random_streams_go_on_where_they_were(bits: str) -> None:
    rng = np.random.Generator(getattr(np.random, bits)(7))
    rng.normal(size=5)
    back = unpack(pack({"rng": rng}))["rng"]
    assert back.normal(size=9).tolist() == rng.normal(size=9).tolist()


def test_numpy_scalars_come_back_as_scalars() -> None:
    back = unpack(pack({"f4": np.float32(1.5), "f8": np.float64(2.5)}))
    assert (back["f4"], back["f8"]) == (1.5, 2.5)
    assert isinstance(back["f4"], np.float32)


@pytest.mark.parametrize(
    ("state", "says"),
    [
        ({"net": object()}, "state.net is a object"),
        ({"a": [1, {2}]}, r"state\.a\[1\] is a set"),
        ({"a": {1: 2}}, "has the key 1"),
        ({"a": {"__moorage__": 1}}, "has the key"),
        ({"a": np.array([object()])}, "array of Python objects"),
    ],
)
def test_what_cannot_be_stored_is_named(state: Any, says: str) -> None:
    with pytest.raises(BadState, match=says):
        pack(state)


def test_a_model_file(tmp_path: Path) -> None:
    url = save_arrays(f"file://{tmp_path}/deep/model.npz", {"w": np.eye(2), "b": np.zeros(2, "f4")})
    assert url.endswith("/deep/model.npz")
    assert load_arrays(url)["w"].tolist() == np.eye(2).tolist()
    assert np.load(tmp_path / "deep" / "model.npz", allow_pickle=False)["b"].dtype == np.float32


def test_pickled_arrays_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "evil.npz", w=np.array([{"code": 1}], dtype=object))
    with pytest.raises(ValueError, match="allow_pickle"):
        load_arrays(str(tmp_path / "evil.npz"))
    with pytest.raises(Invalid, match="Python objects"):
        save_arrays(str(tmp_path / "m.npz"), {"w": np.array([{}], dtype=object)})
