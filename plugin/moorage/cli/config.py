"""moorage config: apply, show, history. The policy as TOML."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated

import typer

from moorage.api import codec, ids
from moorage.api.errors import Invalid
from moorage.api.values import PolicyRevision
from moorage.cli import show
from moorage.cli.connect import Json, TokenFile, Url, connect, read_text
from moorage.core.policy import Policy

config_app = typer.Typer(help="Policy: apply, show, history.", no_args_is_help=True)


def load_policy(path: Path) -> Policy:
    """The policy of a TOML file. Raises `Invalid` with the key that is wrong."""
    try:
        values = tomllib.loads(read_text("policy", path))
    except tomllib.TOMLDecodeError as error:
        raise Invalid("policy", str(path), f"write valid TOML ({error})") from error
    return codec.build(Policy, values)


@config_app.command()
def apply(
    path: Annotated[Path, typer.Argument(help="TOML file; docs/configuration.md has the keys.")],
    url: Url = None,
    token_file: TokenFile = None,
) -> None:
    """Validate a policy and store it as a new revision."""
    policy = load_policy(path)
    with connect(url, token_file) as client:
        stored = client.apply_policy(policy, ids.new_id())
    show.out.print(f"policy revision {stored.revision} is in force.")


@config_app.command("show")
def show_(url: Url = None, token_file: TokenFile = None) -> None:
    """The policy in force, as JSON."""
    with connect(url, token_file) as client:
        show.print_json(client.policy())


@config_app.command()
def history(url: Url = None, token_file: TokenFile = None, json: Json = False) -> None:
    """Stored revisions, oldest first."""
    with connect(url, token_file) as client:
        revisions = list(client.policy_history())
    if json:
        show.print_json(revisions, list[PolicyRevision])
        return
    show.out.print(
        show.table((">REVISION", "AGE", "WHO"), ((str(r.revision), show.ago(r.at), r.who) for r in revisions))
    )
