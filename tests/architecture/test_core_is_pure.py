"""core imports numpy and a few harmless modules of the standard library, and nothing that could tell it the world."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

CORE = Path(__file__).parents[2] / "plugin" / "moorage" / "core"

#: No clock, randomness, environment, file, socket, thread or logger is among these.
ALLOWED = {
    "__future__", "collections", "collections.abc", "dataclasses", "datetime", "decimal", "enum", "fractions",
    "functools", "itertools", "math", "numpy", "numpy.typing", "signal", "statistics", "typing",
}  # fmt: skip

#: Attribute reads that would bring the world in through an allowed module.
FORBIDDEN = {"now", "utcnow", "today", "random", "set_wakeup_fd", "alarm", "kill", "load", "save", "fromfile", "tofile"}

FILES = sorted(CORE.rglob("*.py"))


def imports(tree: ast.AST) -> Iterator[str]:
    for found in ast.walk(tree):
        if isinstance(found, ast.Import):
            yield from (name.name for name in found.names)
        elif isinstance(found, ast.ImportFrom):
            yield found.module or ""


def reads(tree: ast.AST) -> Iterator[str]:
    """Attributes read from an imported module or class, such as ``datetime.now``; not those of our own values."""
    known = {"datetime", "date", "np", "numpy", "signal", "signals", "math"}
    for found in ast.walk(tree):
        if isinstance(found, ast.Attribute) and isinstance(found.value, ast.Name) and found.value.id in known:
            yield found.attr


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_imports(file: Path) -> None:
    foreign = {name for name in imports(ast.parse(file.read_text())) if not name.startswith("moorage.core")}
    assert foreign <= ALLOWED


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_reads_no_clock_and_no_chance(file: Path) -> None:
    tree = ast.parse(file.read_text())
    assert FORBIDDEN.isdisjoint(reads(tree))
    calls = {n.func.id for n in ast.walk(tree) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)}
    assert calls.isdisjoint({"open", "input", "print", "exec", "eval", "__import__"})


def test_the_check_sees_what_it_should() -> None:
    bad = ast.parse("import os\nfrom time import time\nx = datetime.now()\n")
    assert set(imports(bad)) == {"os", "time"}
    assert set(reads(bad)) == {"now"}
