"""Commands of lease owners: status, leases, queue, explain, logs, release."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from moorage.api import ids
from moorage.api.values import LeaseView
from moorage.cli import show
from moorage.cli.connect import Json, TokenFile, Url, connect

if TYPE_CHECKING:
    from moorage.client import Client

LeaseId = Annotated[str, typer.Argument(help="Lease id, or enough of its start to be unique.")]
#: Seconds of one long poll.
POLL_S = 20.0


def status(url: Url = None, token_file: TokenFile = None, json: Json = False) -> None:
    """The fleet: nodes, who holds what, who waits and why."""
    with connect(url, token_file) as client:
        fleet = client.fleet()
    show.print_json(fleet) if json else show.print_fleet(fleet)


def leases(
    url: Url = None,
    token_file: TokenFile = None,
    all_: Annotated[bool, typer.Option("--all", "-a", help="Ended ones too.")] = False,
    json: Json = False,
) -> None:
    """Leases, newest first."""
    with connect(url, token_file) as client:
        views = list(client.find({}, live=not all_))
    if json:
        show.print_json(views, list[LeaseView])
    elif views:
        show.out.print(show.lease_table(views))
    else:
        show.out.print("No leases." if all_ else "No live leases; `--all` shows ended ones.")


def queue(url: Url = None, token_file: TokenFile = None, json: Json = False) -> None:
    """Who waits, in the order in which they are tried, and why."""
    with connect(url, token_file) as client:
        waiting = client.fleet().queue
    if json:
        show.print_json(waiting, tuple[LeaseView, ...])
    elif waiting:
        show.out.print(show.lease_table(waiting))
    else:
        show.out.print("Nobody waits.")


def explain(lease: LeaseId, url: Url = None, token_file: TokenFile = None, json: Json = False) -> None:
    """Why a lease waits, or where it is."""
    with connect(url, token_file) as client:
        answer = client.explain(lease)
    show.print_json(answer) if json else show.out.print(answer.sentence, markup=False, soft_wrap=True)


def logs(
    lease: LeaseId,
    url: Url = None,
    token_file: TokenFile = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for more until the lease ends.")] = False,
) -> None:
    """The job's log, over all its attempts."""
    with connect(url, token_file) as client:
        copy_logs(client, lease, follow=follow)


def copy_logs(client: Client, lease: str, *, follow: bool) -> None:
    """Write the log to standard output; with `follow` until the lease has ended."""
    offset = 0
    while True:
        chunk = client.logs(lease, offset, POLL_S if follow else 0)
        sys.stdout.write(chunk.text)
        sys.stdout.flush()
        if chunk.end or (chunk.next == offset and not follow):
            return
        offset = chunk.next


def release(
    lease: LeaseId,
    url: Url = None,
    token_file: TokenFile = None,
    reason: Annotated[str, typer.Option(help="Why; goes to the journal.")] = "released by hand",
    force: Annotated[bool, typer.Option("--force", help="Without a last checkpoint.")] = False,
) -> None:
    """Stop a lease, a checkpoint first."""
    with connect(url, token_file) as client:
        view = client.release(lease, reason, ids.new_id(), force)
    show.out.print(f"{view.lease.id} is {view.lease.state.value}: {view.lease.reason}", markup=False, soft_wrap=True)
