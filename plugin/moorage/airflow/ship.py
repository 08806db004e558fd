"""How a decorated function travels: its source, its arguments as JSON, and the program that calls it."""

from __future__ import annotations

import ast
import builtins
import dis
import inspect
import json
import textwrap
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import CodeType
from typing import Any

from moorage.airflow import package
from moorage.core.invalid import Invalid

_MAIN = Path(__file__).with_name("shipped.py")


def bundle(function: Callable[..., Any], args: Collection[Any], kwargs: Mapping[str, Any]) -> bytes:
    """The zip of a call: ``main.py``, ``task_function.py``, ``call.json``.

    Args:
        function: what was decorated.
        args, kwargs: JSON-able; a sequence (for example a lazy XCom one) becomes a list.

    Raises:
        Invalid: an argument is not JSON, or the function uses a name that does not travel with it.
    """
    # Annotations often name imports of the DAG file; they must not be evaluated there.
    text = f"from __future__ import annotations\n\n{source(function)}"
    check_names(function, text)
    gpu = "gpu" not in kwargs and _takes_gpu(function)
    call = {
        "function": function.__name__,
        "args": [_plain(f"argument {number}", value) for number, value in enumerate(args, start=1)],
        "kwargs": {name: _plain(name, value) for name, value in kwargs.items()},
        "gpu": gpu,
    }
    return package.pack(
        {
            "main.py": _MAIN.read_bytes(),
            "task_function.py": text.encode(),
            "call.json": json.dumps(call, sort_keys=True).encode(),
        }
    )


def source(function: Callable[..., Any]) -> str:
    """The function alone: dedented, without decorators. Raises `Invalid` if it is no plain function in a file."""
    plain = "only a plain function travels: no lambda, no async function, no decorators besides Airflow's"
    if function.__name__ == "<lambda>" or hasattr(function, "__wrapped__"):
        raise Invalid(function.__name__, function, plain)
    try:
        text = textwrap.dedent(inspect.getsource(function))
        tree = ast.parse(text).body[0]
    except (OSError, TypeError, SyntaxError) as error:
        raise Invalid(
            function.__name__, function, f"its source cannot be read ({error}): define it in a file"
        ) from None
    if not isinstance(tree, ast.FunctionDef):
        raise Invalid(function.__name__, function, plain)
    return "".join(text.splitlines(keepends=True)[tree.lineno - 1 :])


def wanted(function: Callable[..., Any], args: Collection[Any], kwargs: Mapping[str, Any]) -> list[str]:
    """Parameters that no argument fills, except ``gpu``."""
    parameters = list(inspect.signature(function).parameters.values())
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    open_ones = [p.name for p in parameters[len(args) :] if p.kind not in variable]
    return [name for name in open_ones if name not in kwargs and name != "gpu"]


def check_names(function: Callable[..., Any], text: str) -> None:
    """Refuse a function that needs more than its own source. Raises `Invalid`."""
    around = function.__code__.co_freevars
    if around:
        raise Invalid(function.__name__, around[0], "it is a variable around the function: pass it as an argument")
    for name in sorted(_needed(compile(text, function.__name__, "exec"), "LOAD_NAME")):
        if name != function.__name__ and not hasattr(builtins, name):
            fix = "it is a name of the DAG file, and only the function travels: import it inside, or pass it"
            raise Invalid(function.__name__, name, fix)


def _needed(code: CodeType, load: str = "LOAD_GLOBAL") -> set[str]:
    """Global names that are read when the function is defined (defaults) or called, also in functions inside it."""
    names = {step.argval for step in dis.get_instructions(code) if step.opname == load}
    return names.union(*(_needed(const) for const in code.co_consts if isinstance(const, CodeType)))


def _takes_gpu(function: Callable[..., Any]) -> bool:
    parameters = inspect.signature(function).parameters
    return "gpu" in parameters and parameters["gpu"].kind is not inspect.Parameter.VAR_KEYWORD


def _plain(name: str, value: object) -> Any:
    try:
        return json.loads(json.dumps(value, default=_listed, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise Invalid(name, value, f"arguments of @task.gpu travel as JSON ({error})") from None


def _listed(value: object) -> list[Any]:
    if isinstance(value, Sequence):
        return list(value)
    raise TypeError(f"{type(value).__name__} is not JSON; pass a string, number, list or dict")
