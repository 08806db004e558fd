"""Commands of operators: drain, cordon, lose, priority, freeze."""

from __future__ import annotations

from typing import Annotated

import typer

from moorage.api import ids
from moorage.cli import show
from moorage.cli.connect import TokenFile, Url, connect

NodeName = Annotated[str, typer.Argument(help="Node name.")]


def drain(node: NodeName, url: Url = None, token_file: TokenFile = None) -> None:
    """No new grants on a node, and its leases move away at their next checkpoint."""
    with connect(url, token_file) as client:
        client.drain(node, ids.new_id())
    show.out.print(f"{node} drains; `moorage uncordon {node}` brings it back.")


def cordon(node: NodeName, url: Url = None, token_file: TokenFile = None) -> None:
    """No new grants on a node; what runs stays."""
    with connect(url, token_file) as client:
        client.cordon(node, on=True, client_id=ids.new_id())
    show.out.print(f"{node} is cordoned.")


def uncordon(node: NodeName, url: Url = None, token_file: TokenFile = None) -> None:
    """Grants on the node again."""
    with connect(url, token_file) as client:
        client.cordon(node, on=False, client_id=ids.new_id())
    show.out.print(f"{node} takes grants.")


def lose(node: NodeName, url: Url = None, token_file: TokenFile = None) -> None:
    """Say that a node is gone for good: what it held is freed at once. Only if nothing can be running there."""
    with connect(url, token_file) as client:
        client.lose(node, ids.new_id())
    show.out.print(f"{node} is lost; it is used again after a clean report.")


def priority(
    lease: Annotated[str, typer.Argument(help="Lease id.")],
    value: Annotated[int, typer.Argument(help="Higher goes first.")],
    url: Url = None,
    token_file: TokenFile = None,
) -> None:
    """Change a lease's priority."""
    with connect(url, token_file) as client:
        client.priority(lease, value, ids.new_id())
    show.out.print(f"{lease} has priority {value}.")


def freeze(url: Url = None, token_file: TokenFile = None) -> None:
    """Stop every voluntary disruption (preempt, resize, move); grants go on."""
    with connect(url, token_file) as client:
        client.freeze(on=True, client_id=ids.new_id())
    show.out.print("Disruption is frozen; `moorage unfreeze` ends that.")


def unfreeze(url: Url = None, token_file: TokenFile = None) -> None:
    """Allow disruption again."""
    with connect(url, token_file) as client:
        client.freeze(on=False, client_id=ids.new_id())
    show.out.print("Disruption is allowed.")
