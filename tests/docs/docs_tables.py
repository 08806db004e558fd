"""Tables that stand in the docs but are printed from the code. Run as a program, it writes them anew."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, fields
from decimal import Decimal
from enum import StrEnum
from pathlib import Path
from typing import Any

from moorage.core.job import Activity, Phase
from moorage.core.lease import (
    ALLOCATION_TABLE,
    LEASE_TABLE,
    AllocationEvent,
    AllocationState,
    LeaseEvent,
    LeaseState,
    Outcome,
)
from moorage.core.policy import Elastic, Level, Policy, Pool, Team

DOCS = Path(__file__).parents[2] / "docs"


def markdown(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def render_table(table: Mapping[tuple[Any, Any], Any], states: type[StrEnum], events: type[StrEnum]) -> str:
    """A state table: a row per state, a column per event; a dot is a pair that is refused."""

    def cell(state: StrEnum, event: StrEnum) -> str:
        after = table.get((state, event))
        return "·" if after is None else "stays" if after is state else f"**{after}**"

    rows = ([f"`{state}`", *(cell(state, event) for event in events)] for state in states)
    return markdown(["", *(f"{event}" for event in events)], rows)


def comments(owner: type) -> dict[str, str]:
    """The ``#:`` lines above each member, without the code marks that Markdown spells differently."""
    found: dict[str, str] = {}
    gathered: list[str] = []
    for line in inspect.getsource(owner).splitlines():
        text = line.strip()
        if text.startswith("#:"):
            gathered.append(text.removeprefix("#:").strip())
        elif name := re.match(r"([a-z_A-Z0-9]+)(: .+)? = |([a-z_]+): ", text):
            found[name[1] or name[3]] = " ".join(gathered).replace("``", "`")
            gathered = []
    return found


def render_words(*enums: type[StrEnum]) -> str:
    """Members of enums with their comments."""
    rows = [(f"`{word}`", comments(kind).get(word.name, "")) for kind in enums for word in kind]
    return markdown(("word", "meaning"), rows)


def render_keys(owner: type, prefix: str = "") -> str:
    """The keys of a part of the policy: name, default, meaning."""
    said = comments(owner)
    rows = [(f"`{prefix}{one.name}`", _default(one), said.get(one.name, "")) for one in fields(owner)]
    return markdown(("key", "default", "meaning"), rows)


def _default(one: Any) -> str:
    if one.default is MISSING and one.default_factory is MISSING:
        return "required"
    value = one.default_factory() if one.default is MISSING else one.default
    match value:
        case None:
            return "none"
        case bool():
            return f"`{str(value).lower()}`"
        case StrEnum():
            return f'`"{value}"`'
        case Elastic():
            return "see below"
        case tuple() if value and isinstance(value[0], Level):
            return ", ".join(f"`{level.name}`" for level in value)
        case tuple() | dict():
            return "empty"
        case float() | int() | Decimal():
            return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"
    return f"`{value}`"


#: Page -> name of a table in it -> what prints it. In the page: <!-- table: NAME --> ... <!-- /table -->
TABLES: Mapping[str, Mapping[str, Callable[[], str]]] = {
    "concepts.md": {
        "lease": lambda: render_table(LEASE_TABLE, LeaseState, LeaseEvent),
        "lease-states": lambda: render_words(LeaseState),
        "outcomes": lambda: render_words(Outcome),
        "allocation": lambda: render_table(ALLOCATION_TABLE, AllocationState, AllocationEvent),
        "allocation-states": lambda: render_words(AllocationState),
        "phases": lambda: markdown(
            ("the attempt says", "its GPU time is"), [(f"`{phase}`", f"`{phase.activity}`") for phase in Phase]
        ),
        "activities": lambda: markdown(("part",), [(f"`cost/{activity}_usd`",) for activity in Activity]),
    },
    "configuration.md": {
        "policy": lambda: render_keys(Policy),
        "pools": lambda: render_keys(Pool, "pools."),
        "teams": lambda: render_keys(Team, "teams."),
        "levels": lambda: render_keys(Level, "levels."),
        "elastic": lambda: render_keys(Elastic, "elastic."),
    },
}


def filled(page: str, text: str) -> str:
    """The page's text with every table as the code prints it now."""
    for name, table in TABLES[page].items():
        place = re.compile(rf"(<!-- table: {name} -->\n).*?(\n?<!-- /table -->)", re.DOTALL)
        text, times = place.subn(lambda found, table=table: f"{found[1]}{table()}\n<!-- /table -->", text)
        if times != 1:
            raise ValueError(f"docs/{page}: table {name!r} stands {times} times; write <!-- table: {name} --> once")
    return text


def main() -> None:
    for page in TABLES:
        path = DOCS / page
        path.write_text(filled(page, path.read_text()))


if __name__ == "__main__":
    main()
