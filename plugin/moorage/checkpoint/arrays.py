"""Named arrays as one npz file, without pickle."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

import numpy as np

from moorage.checkpoint.files import files_at
from moorage.core.invalid import Invalid

Arrays = Mapping[str, "np.ndarray[Any, Any]"]


def arrays_to_bytes(arrays: Arrays) -> bytes:
    """An npz file. Raises `Invalid` for an array of objects: those would need pickle."""
    for name, array in arrays.items():
        if np.asarray(array).dtype.hasobject:
            raise Invalid("arrays", name, "store numbers or text; an array of Python objects cannot be stored safely")
        if name in ("file", "args", "kwds", "allow_pickle"):
            raise Invalid("arrays", name, "choose another name; numpy.savez uses this one for itself")
    buffer = io.BytesIO()
    named: Any = {name: np.asarray(array) for name, array in arrays.items()}
    np.savez(buffer, **named)
    return buffer.getvalue()


def arrays_from_bytes(data: bytes) -> dict[str, np.ndarray[Any, Any]]:
    """The arrays; nothing is unpickled."""
    with np.load(io.BytesIO(data), allow_pickle=False) as file:
        return {name: file[name] for name in file.files}


def save_arrays(url: str, arrays: Arrays) -> str:
    """Write one npz file at `url` (whole or not at all), readable by `numpy.load` as well; returns the URL."""
    base, _, name = url.rpartition("/")
    files_at(base or ".").write(name, arrays_to_bytes(arrays))
    return url


def load_arrays(url: str) -> dict[str, np.ndarray[Any, Any]]:
    """The arrays of an npz file at any fsspec URL.

    Raises:
        FileNotFoundError: there is no such file.
    """
    base, _, name = url.rpartition("/")
    return arrays_from_bytes(files_at(base or ".").read(name))
