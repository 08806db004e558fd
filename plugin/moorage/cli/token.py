"""moorage token: create, list, revoke."""

from __future__ import annotations

from typing import Annotated

import typer

from moorage.api.auth import Role
from moorage.api.values import TokenView
from moorage.cli import show
from moorage.cli.connect import Json, TokenFile, Url, connect

token_app = typer.Typer(help="Tokens: create, list, revoke.", no_args_is_help=True)


@token_app.command()
def create(
    name: Annotated[str, typer.Argument(help="Whose it is; goes to the journal.")],
    role: Annotated[Role, typer.Option(help="What it may do.")],
    team: Annotated[str | None, typer.Option(help="Team of a submitter.")] = None,
    node: Annotated[
        str | None, typer.Option(help="Node of an agent; without, the first node that joins with it.")
    ] = None,
    url: Url = None,
    token_file: TokenFile = None,
) -> None:
    """Print a new token: it is shown this once and stored hashed."""
    with connect(url, token_file) as client:
        typer.echo(client.make_token(name, role, team, node))


@token_app.command("list")
def list_(url: Url = None, token_file: TokenFile = None, json: Json = False) -> None:
    """Tokens without their secrets."""
    with connect(url, token_file) as client:
        views = list(client.tokens())
    if json:
        show.print_json(views, list[TokenView])
        return
    rows = (
        (
            view.id,
            view.name,
            view.role,
            view.team or view.node or "-",
            show.ago(view.created_at),
            "revoked" if view.revoked_at else "",
        )
        for view in views
    )
    show.out.print(show.table(("ID", "NAME", "ROLE", "FOR", "AGE", ""), rows))


@token_app.command()
def revoke(
    token: Annotated[str, typer.Argument(help="Token id, from `moorage token list`.")],
    url: Url = None,
    token_file: TokenFile = None,
) -> None:
    """End a token."""
    with connect(url, token_file) as client:
        client.revoke_token(token)
    show.out.print(f"{token} is revoked.")
