"""moorage place: where would this request go, or why not."""

from __future__ import annotations

import json as json_module
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from moorage.api import codec
from moorage.api.errors import Invalid
from moorage.cli import show
from moorage.cli.connect import Json, TokenFile, Url, connect, read_text
from moorage.cli.run import parse_workers
from moorage.core.request import Request


def place(
    request: Annotated[Path, typer.Argument(help="Request as TOML, JSON or YAML.")],
    url: Url = None,
    token_file: TokenFile = None,
    json: Json = False,
) -> None:
    """Ask the broker where a request would go now; nothing changes. Exit status 1 if it does not fit."""
    wanted = codec.build(Request, read(request))
    with connect(url, token_file) as client:
        answer = client.what_if(wanted)
    if json:
        show.print_json(answer)
    else:
        show.out.print(answer.sentence, markup=False, soft_wrap=True)
        if answer.placement:
            rows = ((node, ", ".join(map(str, gpus)) or "-") for node, gpus in answer.placement.items())
            show.out.print(show.table(("NODE", "GPUS"), rows))
    raise typer.Exit(0 if answer.fits else 1)


def read(path: Path) -> dict[str, Any]:
    """The file's mapping by its ending. Raises `Invalid`."""
    parse = PARSERS.get(path.suffix)
    if parse is None:
        raise Invalid("request", str(path), f"use one of the endings {', '.join(PARSERS)}")
    text = read_text("request", path)
    try:
        values = parse(text)
    except ValueError as error:
        # YAML's errors have lines; ours is one sentence.
        why = " ".join(str(error).split())
        raise Invalid("request", str(path), f"write valid {path.suffix.lstrip('.').upper()} ({why})") from error
    if not isinstance(values, dict):
        raise Invalid("request", str(path), "write a mapping, for example workers: [1, 4]")
    return with_bounds(values)


def with_bounds(values: dict[str, Any]) -> dict[str, Any]:
    """One number of workers, or ``"1..4"``, as a pair."""
    workers = values.get("workers")
    if isinstance(workers, int | str):
        return {**values, "workers": parse_workers(str(workers))}
    return values


def _yaml(text: str) -> Any:
    try:
        import yaml
    except ImportError as error:
        raise ValueError("YAML needs the package pyyaml; TOML and JSON need nothing") from error
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error


#: Ending -> what reads it.
PARSERS: Mapping[str, Callable[[str], Any]] = {
    ".toml": tomllib.loads,
    ".json": json_module.loads,
    ".yaml": _yaml,
    ".yml": _yaml,
}
