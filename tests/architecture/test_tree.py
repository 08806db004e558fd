"""What a reader may rely on in every file of the tree."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "plugin" / "moorage"
TOP_LEVEL = {
    ".ci",
    ".gitignore",
    "CHANGELOG.md",
    "LICENSE",
    "Makefile",
    "README.md",
    "constraints.txt",
    "dags",
    "docker",
    "docs",
    "plugin",
    "pyproject.toml",
    "ray_jobs",
    "tests",
}
ROOMS = sorted(path.name for path in PACKAGE.iterdir() if (path / "__init__.py").is_file())


def tracked() -> list[Path]:
    """Files that git tracks; outside a checkout (an unpacked archive) there is nothing to ask."""
    run = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    if run.returncode != 0:
        pytest.skip("not a git checkout")
    return [ROOT / name for name in run.stdout.split("\0") if name and (ROOT / name).is_file()]


def text_of(path: Path) -> str:
    try:
        return path.read_text()
    except UnicodeDecodeError:
        return ""


def test_top_level_holds_nothing_else() -> None:
    assert {path.relative_to(ROOT).parts[0] for path in tracked()} <= TOP_LEVEL


def test_no_file_names_a_package_index_or_a_path_of_a_machine() -> None:
    index = re.compile(r"(pypi|pythonhosted|npmjs)\.(org|io|com)")
    machine = re.compile(r"(?<![\w./<])/(work|root|home/\w+)/")
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in tracked()
        for number, line in enumerate(text_of(path).splitlines(), 1)
        if path != Path(__file__) and (index.search(line) or machine.search(line))
    ]
    assert found == []


def test_pins_are_names_and_versions() -> None:
    pin = re.compile(r"^[a-z0-9][a-z0-9._-]*(\[[a-z,]+\])?==[^\s;]+( ; .+)?$")
    wrong = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and not pin.match(line)]
    assert wrong == []


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_files_and_functions_stay_small(path: Path) -> None:
    source = path.read_text()
    assert len(source.splitlines()) <= 600
    functions = [
        node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    long = {node.name: (node.end_lineno or 0) - node.lineno + 1 for node in functions}
    assert {name: lines for name, lines in long.items() if lines > 60} == {}


@pytest.mark.parametrize("room", ROOMS)
def test_every_room_has_a_readme_that_starts_with_a_drawing(room: str) -> None:
    readme = PACKAGE / room / "README.md"
    assert readme.is_file(), f"{room} has no README.md"
    assert "```" in readme.read_text()[:1500], f"{room}/README.md does not start with its drawing"
