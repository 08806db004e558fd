"""A training state (nested dicts and lists of arrays, numbers, text, random generators) as two files: npz and JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from moorage.checkpoint.arrays import arrays_from_bytes, arrays_to_bytes

ARRAYS = "arrays.npz"
JSON = "state.json"
#: A JSON object with this one key stands for something that JSON does not have.
_MARK = "__moorage__"
_BITS = {"PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64"}


class BadState(ValueError):
    """A state that cannot be stored: names where in it, what it is and what to do."""


def pack(state: Any) -> dict[str, bytes]:
    """Files for `Store.save`.

    Args:
        state: dicts with text keys, lists, tuples (come back as tuples), None, bool, int, float, str, NumPy arrays and
            scalars, `numpy.random.Generator` (its state: the stream goes on where it was).

    Raises:
        BadState: something else is in it.
    """
    arrays: dict[str, np.ndarray[Any, Any]] = {}
    tree = _encode(state, arrays, "state")
    return {JSON: json.dumps(tree).encode(), ARRAYS: arrays_to_bytes(arrays)}


def unpack(files: Mapping[str, bytes]) -> Any:
    """The state that `pack` was given. Nothing is unpickled."""
    return _decode(json.loads(files[JSON]), arrays_from_bytes(files[ARRAYS]))


def _encode(value: Any, arrays: dict[str, np.ndarray[Any, Any]], where: str) -> Any:
    match value:
        case np.ndarray() | np.generic():
            return {_MARK: ["array" if isinstance(value, np.ndarray) else "scalar", _keep(value, arrays, where)]}
        case None | bool() | int() | float() | str():
            return value
        case np.random.Generator():
            return {_MARK: ["generator", _plain(value.bit_generator.state)]}
        case Mapping():
            return _encode_mapping(value, arrays, where)
        case list():
            return [_encode(item, arrays, f"{where}[{i}]") for i, item in enumerate(value)]
        case tuple():
            return {_MARK: ["tuple", [_encode(item, arrays, f"{where}[{i}]") for i, item in enumerate(value)]]}
        case _:
            raise BadState(f"{where} is a {type(value).__name__}: store it as arrays, numbers, text, lists and dicts")


def _encode_mapping(value: Mapping[Any, Any], arrays: dict[str, np.ndarray[Any, Any]], where: str) -> Any:
    for key in value:
        if not isinstance(key, str) or key == _MARK:
            raise BadState(f"{where} has the key {key!r}: use text keys, and not {_MARK!r}")
    return {str(key): _encode(item, arrays, f"{where}.{key}") for key, item in value.items()}


def _keep(value: Any, arrays: dict[str, np.ndarray[Any, Any]], where: str) -> str:
    array = np.asarray(value)
    if array.dtype.hasobject:
        raise BadState(f"{where} is an array of Python objects: store numbers or text")
    name = f"a{len(arrays)}"
    arrays[name] = array
    return name


def _plain(value: Any) -> Any:
    """A bit generator's state: nested dicts of (large) integers, text and arrays."""
    match value:
        case Mapping():
            return {str(key): _plain(item) for key, item in value.items()}
        case np.ndarray():
            return {_MARK: [str(value.dtype), value.tolist()]}
        case np.generic():
            return value.item()
        case _:
            return value


def _decode(value: Any, arrays: Mapping[str, np.ndarray[Any, Any]]) -> Any:
    match value:
        case {"__moorage__": [kind, content]} if len(value) == 1:
            return _decode_marked(kind, content, arrays)
        case dict():
            return {key: _decode(item, arrays) for key, item in value.items()}
        case list():
            return [_decode(item, arrays) for item in value]
        case _:
            return value


def _decode_marked(kind: str, content: Any, arrays: Mapping[str, np.ndarray[Any, Any]]) -> Any:
    match kind:
        case "array":
            return arrays[content]
        case "scalar":
            return arrays[content][()]
        case "tuple":
            return tuple(_decode(item, arrays) for item in content)
        case "generator":
            return _generator(content)
        case _:
            raise BadState(f"the stored state has a part of unknown kind {kind!r}: it was written by a newer version")


def _generator(content: Any) -> np.random.Generator:
    name = content["bit_generator"]
    if name not in _BITS:
        raise BadState(f"the stored state has a random generator {name!r}; known are {', '.join(sorted(_BITS))}")
    bits = getattr(np.random, name)()
    bits.state = _unplain(content)
    return np.random.Generator(bits)


def _unplain(value: Any) -> Any:
    match value:
        case {"__moorage__": [dtype, items]} if len(value) == 1:
            return np.array(items, dtype=dtype)
        case dict():
            return {key: _unplain(item) for key, item in value.items()}
        case _:
            return value
