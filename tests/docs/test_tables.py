"""What the docs say of the code is what the code says: tables, commands, options, files, links."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer.main
from docs_tables import DOCS, TABLES, filled, render_table

from moorage.cli.app import app
from moorage.cli.config import load_policy
from moorage.core.lease import LEASE_TABLE, LeaseEvent, LeaseState

PAGES = sorted(DOCS.rglob("*.md"))
_FENCE = re.compile(r"^```(\w+)\n(.*?)^```", re.DOTALL | re.MULTILINE)


def fences(page: Path, kind: str) -> list[str]:
    return [body for found, body in _FENCE.findall(page.read_text()) if found == kind]


@pytest.mark.parametrize("page", TABLES)
def test_tables_are_as_the_code_prints_them(page: str) -> None:
    text = (DOCS / page).read_text()
    assert text == filled(page, text), "run: python tests/docs/docs_tables.py"


def test_a_state_table_has_a_row_per_state_and_a_column_per_event() -> None:
    lines = render_table(LEASE_TABLE, LeaseState, LeaseEvent).splitlines()
    assert len(lines) == 2 + len(LeaseState)
    assert lines[0].split() == ["|", "|", "grant", "|", "heard", "|", "retry", "|", "stop", "|", "freed", "|"]
    assert "| `queued` | **granted** | · | · | **stopping** | · |" in lines


def test_every_printed_word_has_a_meaning() -> None:
    for page, tables in TABLES.items():
        for name, table in tables.items():
            empty = [row for row in table().splitlines()[2:] if "|  |" in row]
            assert not empty, f"docs/{page}, {name}: give these a `#:` line in the code: {empty}"


def commands() -> list[tuple[str, list[str]]]:
    found = []
    for page in PAGES:
        for block in fences(page, "console"):
            for line in block.splitlines():
                words = shlex.split(line.removeprefix("$ ").split(" > ")[0], comments=True)
                if words[:1] == ["moorage"]:
                    found.append((page.name, words[1:]))
    return found


@pytest.mark.parametrize(
    ("page", "words"), commands(), ids=lambda value: value[0] if isinstance(value, list) else value
)
def test_commands_and_options_exist(page: str, words: list[str]) -> None:
    command: Any = typer.main.get_command(app)
    while hasattr(command, "commands"):
        assert words[0] in command.commands, f"docs/{page}: no command {words[0]}"
        command, words = command.commands[words[0]], words[1:]
    known = {option for parameter in command.params for option in parameter.opts}
    mine = words[: words.index("--")] if "--" in words else words
    unknown = {word for word in mine if word.startswith("-")} - known
    assert not unknown, f"docs/{page}: `{command.name}` has no {unknown}"


def test_the_example_policy_is_valid_and_the_one_on_the_page() -> None:
    policy = load_policy(DOCS / "moorage.example.toml")
    assert [pool.name for pool in policy.pools] == ["spot", "on-demand"]
    [shown] = fences(DOCS / "configuration.md", "toml")
    assert shown in (DOCS / "moorage.example.toml").read_text()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_compiles_and_links_lead_somewhere(page: Path) -> None:
    for block in fences(page, "python"):
        compile(block, str(page), "exec")
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
        assert target.startswith("http") or (page.parent / target).exists(), f"{page.name}: {target}"
