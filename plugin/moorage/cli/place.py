"""moorage place: where would this request go, or why not."""

from __future__ import annotations

import json as json_module
import tomllib
from pathlib import Path
from typing import Annotated, Any

import typer

from moorage.api import codec
from moorage.api.errors import Invalid
from moorage.cli import show
from moorage.cli.connect import Json, TokenFile, Url, connect
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
        show.out.print(answer.sentence, markup=False)
        if answer.placement:
            rows = ((node, ", ".join(map(str, gpus)) or "-") for node, gpus in answer.placement.items())
            show.out.print(show.table(("NODE", "GPUS"), rows))
    raise typer.Exit(0 if answer.fits else 1)


def read(path: Path) -> dict[str, Any]:
    """The file's mapping by its ending. Raises `Invalid`."""
    try:
        text = path.read_text()
    except OSError as error:
        raise Invalid("request", str(path), f"name a file that can be read ({error.strerror})") from error
    try:
        values = _parse(path.suffix, text)
    except ValueError as error:
        raise Invalid("request", str(path), f"write valid {path.suffix.lstrip('.')} ({error})") from error
    if not isinstance(values, dict):
        raise Invalid("request", str(path), "write a mapping, for example workers: [1, 4]")
    return values


def _parse(suffix: str, text: str) -> Any:
    match suffix:
        case ".json":
            return json_module.loads(text)
        case ".toml":
            return tomllib.loads(text)
        case ".yaml" | ".yml":
            return _yaml(text)
    raise ValueError(f"unknown ending {suffix!r}; use .toml, .json or .yaml")


def _yaml(text: str) -> Any:
    try:
        import yaml
    except ImportError as error:
        raise ValueError("YAML needs the package pyyaml; TOML and JSON need nothing") from error
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error
