"""What runs on the GPU node for ``@task.gpu``, as ``main.py`` beside ``task_function.py`` and ``call.json``.

It calls one function and writes ``{"value": ...}`` to $MOORAGE_MARKER. Standard library only: nothing of Moorage or
Airflow needs to be installed there.
"""

from __future__ import annotations

import json
import os
import sys
from importlib import import_module
from pathlib import Path

#: Bound on the completion marker, in bytes.
MAX_RESULT = 64 * 1024


def devices(text: str) -> list[int | str]:
    """The leased devices from CUDA_VISIBLE_DEVICES: indices, or ids where the agent gave ids."""
    return [int(word) if word.isdigit() else word for word in text.split(",") if word]


def encode(function: str, value: object) -> bytes:
    """The marker's JSON. Raises `TypeError` or `ValueError` with the fix, for people."""
    try:
        text = json.dumps({"value": value}, allow_nan=False).encode()
    except ValueError as error:
        raise ValueError(f"{function} returned NaN, infinity or a circular value: return JSON ({error})") from None
    except TypeError as error:
        raise TypeError(
            f"{function} returned a {type(value).__name__} that is not JSON ({error}): "
            "return numbers, strings, lists or dicts, or write it to storage and return its address"
        ) from None
    if len(text) > MAX_RESULT:
        raise ValueError(
            f"{function} returned {len(text)} bytes of JSON, at most {MAX_RESULT}: "
            "write it to storage and return its address"
        )
    return text


def main(folder: Path) -> None:
    """Run the call that lies in `folder`."""
    call = json.loads((folder / "call.json").read_text())
    sys.path.insert(0, str(folder))
    function = getattr(import_module("task_function"), call["function"])
    if call["gpu"]:
        lease = os.environ.get("MOORAGE_LEASE")
        call["kwargs"]["gpu"] = {"devices": devices(os.environ.get("CUDA_VISIBLE_DEVICES", "")), "lease": lease}
    marker = encode(call["function"], function(*call["args"], **call["kwargs"]))
    target = Path(os.environ["MOORAGE_MARKER"])
    part = target.with_name(target.name + ".part")
    part.write_bytes(marker)
    # Whole or not at all: half a marker would be no evidence.
    part.replace(target)


if __name__ == "__main__":
    sys.dont_write_bytecode = True
    main(Path(__file__).resolve().parent)
