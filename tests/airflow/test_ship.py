"""A decorated function runs as a plain process that has neither Moorage nor Airflow."""

from __future__ import annotations

import functools
import io
import json
import math
import os
import runpy
import subprocess
import sys
import zipfile
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from moorage.airflow import ship
from moorage.core.invalid import Invalid

THRESHOLD = 0.5


def mean(values: list[float], scale: float = 1.0) -> float:
    """The mean."""
    text = """
# not a comment
"""
    assert text.count("#") == 1
    return scale * sum(values) / len(values)


def who(gpu: Any = None) -> Any:
    return gpu


def roots(values: list[float]) -> dict[str, list[float]]:
    import math

    def root(value: float) -> float:
        return math.sqrt(value)

    return {"roots": [root(value) for value in values]}


def annotated(value: np.ndarray) -> int:  # type: ignore[name-defined]  # noqa: F821
    return len(value)


def breaks() -> None:
    raise LookupError("no such digit")


def a_set() -> set[int]:
    return {1}


def not_a_number() -> float:
    return float("nan")


def too_much() -> str:
    return "x" * 70_000


def run(
    folder: Path, function: Callable[..., Any], *args: Any, env: dict[str, str] | None = None, **kwargs: Any
) -> Any:
    """Unpack and run as an agent does; the marker's value, or stderr."""
    with zipfile.ZipFile(io.BytesIO(ship.bundle(function, args, kwargs))) as code:
        code.extractall(folder)
    marker = folder / "marker.json"
    clean = {"PATH": os.environ["PATH"], "MOORAGE_MARKER": str(marker), **(env or {})}
    # -I -S: no site-packages, so nothing but the standard library can be imported.
    argv = [sys.executable, "-I", "-S", "main.py"]
    done = subprocess.run(argv, cwd=folder, env=clean, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode:
        assert not marker.exists()
        return done.stderr
    return json.loads(marker.read_text())["value"]


def test_arguments_in_and_value_out(tmp_path: Path) -> None:
    assert run(tmp_path, mean, [1, 2, 3], scale=2.0) == 4.0


def test_it_imports_what_it_needs(tmp_path: Path) -> None:
    assert run(tmp_path, roots, (4, 9)) == {"roots": [2.0, 3.0]}


def test_annotations_of_the_dag_file_do_not_matter(tmp_path: Path) -> None:
    assert run(tmp_path, annotated, [1, 2]) == 2


def test_the_lease_reaches_a_function_that_asks(tmp_path: Path) -> None:
    env = {"CUDA_VISIBLE_DEVICES": "2,3", "MOORAGE_LEASE": "abc"}
    assert run(tmp_path, who, env=env) == {"devices": [2, 3], "lease": "abc"}


def test_the_caller_may_set_gpu(tmp_path: Path) -> None:
    assert run(tmp_path, who, gpu="mine") == "mine"


def test_its_own_exception_comes_with_its_line(tmp_path: Path) -> None:
    trace = run(tmp_path, breaks)
    assert 'raise LookupError("no such digit")' in trace
    assert trace.endswith("LookupError: no such digit\n")


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        (a_set, "a_set returned a set that is not JSON"),
        (not_a_number, "not_a_number returned NaN"),
        (too_much, "too_much returned 70013 bytes of JSON, at most 65536"),
    ],
)
def test_results_that_cannot_travel(tmp_path: Path, function: Callable[..., Any], sentence: str) -> None:
    assert sentence in run(tmp_path, function)


@pytest.mark.parametrize("value", [date(2026, 1, 1), math.inf, {1}, object()])
def test_arguments_that_cannot_travel(value: object) -> None:
    with pytest.raises(Invalid, match=r"^scale=.*arguments of @task.gpu travel as JSON"):
        ship.bundle(mean, ([1],), {"scale": value})


def test_names_that_do_not_travel() -> None:
    around = 3

    def closes() -> int:
        return around

    def looks() -> float:
        return max(THRESHOLD for _ in range(3))

    def defaults(by: float = THRESHOLD) -> float:
        class Here:
            low = 0.0
            high = low + by

        return Here.high

    with pytest.raises(Invalid, match="closes='around': it is a variable around the function"):
        ship.bundle(closes, (), {})
    for function in (looks, defaults):
        with pytest.raises(Invalid, match=f"{function.__name__}='THRESHOLD': it is a name of the DAG file"):
            ship.bundle(function, (), {})


def test_functions_that_do_not_travel() -> None:
    @functools.wraps(mean)
    def wrapped() -> None: ...

    async def later() -> None: ...

    for function in (wrapped, later, lambda: 1):
        with pytest.raises(Invalid, match="only a plain function travels"):
            ship.source(function)


def test_the_same_call_is_the_same_code() -> None:
    assert ship.bundle(mean, ([1],), {"scale": 1}) == ship.bundle(mean, ([1],), {"scale": 1})


DECORATED = """
class task:
    gpu = staticmethod(lambda **options: lambda function: function)

def factory():
    @task.gpu(
        gpus=1,
    )
    def inner():
        # kept
        return 1
    return inner
"""


def test_decorators_stay_at_home(tmp_path: Path) -> None:
    (tmp_path / "dag.py").write_text(DECORATED)
    space = runpy.run_path(str(tmp_path / "dag.py"))
    assert ship.source(space["factory"]()) == "def inner():\n    # kept\n    return 1\n"
