"""Commands of lease owners: status, leases, queue, explain, logs, release, run."""

from __future__ import annotations

import getpass
import io
import shlex
import sys
import zipfile
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from moorage.api import ids
from moorage.api.errors import Invalid
from moorage.api.values import LeaseView, Submission
from moorage.cli import show
from moorage.cli.connect import Json, TokenFile, Url, connect
from moorage.core.job import Job, JobKind
from moorage.core.lease import LeaseState, Outcome
from moorage.core.request import CapacityType, Request, Topology

if TYPE_CHECKING:
    from moorage.client import Client

LeaseId = Annotated[str, typer.Argument(help="Lease id, or enough of its start to be unique.")]
#: Seconds of one long poll of `run` and `logs --follow`.
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
    show.print_json(answer) if json else show.out.print(answer.sentence, markup=False)


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
    show.out.print(f"{view.lease.id} is {view.lease.state.value}: {view.lease.reason}", markup=False)


def run(
    command: Annotated[list[str], typer.Argument(help="Command and its arguments; `python` is the node's own.")],
    url: Url = None,
    token_file: TokenFile = None,
    gpus: Annotated[int, typer.Option("--gpus", help="GPUs of each worker.")] = 1,
    workers: Annotated[str, typer.Option("--workers", help="N, or MIN..MAX for an elastic Ray job.")] = "1",
    ray: Annotated[
        bool, typer.Option("--ray", help="Give it a Ray cluster of its own; the command is the driver.")
    ] = False,
    capacity: Annotated[CapacityType, typer.Option("--capacity", help="Least steady capacity tolerated.")] = (
        CapacityType.ON_DEMAND
    ),
    model: Annotated[list[str] | None, typer.Option("--model", help="Acceptable GPU model; repeatable.")] = None,
    required: Annotated[str | None, typer.Option("--required", help="Topology level that all workers share.")] = None,
    preferred: Annotated[str | None, typer.Option("--preferred", help="Topology level to try first.")] = None,
    budget: Annotated[str | None, typer.Option("--budget", help="Dollars.")] = None,
    priority: Annotated[int, typer.Option("--priority")] = 0,
    code: Annotated[Path | None, typer.Option("--code", help="Folder to ship; the command runs in it.")] = None,
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Print the lease id and return.")] = False,
) -> None:
    """Run a command on leased GPUs; its output is shown, and its lease is released on Ctrl-C."""
    request = Request(
        workers=parse_workers(workers),
        gpus_per_worker=gpus,
        capacity=capacity,
        models=tuple(model or ()),
        topology=Topology(required=required, preferred=preferred),
        budget_usd=parse_dollars(budget),
        priority=priority,
    )
    with connect(url, token_file) as client:
        digest = client.put_code(zip_folder(code)) if code else None
        job = Job(kind=JobKind.RAY if ray else JobKind.PROCESS, entrypoint=tuple(command), code=digest)
        call = ids.new_id()
        owner = {"cli.user": getpass.getuser(), "cli.command": shlex.join(command)[:200], "cli.call": call}
        view = client.submit(Submission(owner=owner, request=request, job=job, client_id=call))
        show.out.print(f"lease {view.lease.id}: {view.lease.reason or view.lease.state.value}", markup=False)
        if not detach:
            raise typer.Exit(follow(client, view))


def follow(client: Client, view: LeaseView) -> int:
    """Show the log until the lease ends; Ctrl-C releases it. Returns the exit status of the command line."""
    try:
        copy_logs(client, view.lease.id, follow=True)
        view = wait_until_ended(client, view.lease.id)
    except KeyboardInterrupt:
        view = client.release(view.lease.id, "interrupted at the terminal", ids.new_id())
    show.out.print(f"{view.lease.state.value}: {view.lease.reason} · ${view.cost.total_usd:.4f}", markup=False)
    return 0 if view.lease.outcome is Outcome.SUCCEEDED else 1


def wait_until_ended(client: Client, lease: str, limit_s: float = 600.0) -> LeaseView:
    """Watch until the last allocation is freed, at most `limit_s` seconds after the log ended."""
    until = datetime.now(UTC) + timedelta(seconds=limit_s)
    view = client.get(lease)
    while view.lease.state is not LeaseState.ENDED and datetime.now(UTC) < until:
        view = client.watch(lease, "cli", view.revision, POLL_S)
    return view


def parse_workers(text: str) -> tuple[int, int]:
    """``3`` or ``1..4``. Raises `Invalid`."""
    low, _, high = text.partition("..")
    try:
        return int(low), int(high or low)
    except ValueError:
        raise Invalid("workers", text, "write N or MIN..MAX, for example 1..4") from None


def parse_dollars(text: str | None) -> Decimal | None:
    """A decimal amount. Raises `Invalid`."""
    if text is None:
        return None
    try:
        return Decimal(text.removeprefix("$"))
    except ArithmeticError:
        raise Invalid("budget", text, "write dollars, for example 12.50") from None


def zip_folder(folder: Path) -> bytes:
    """Every file below the folder except hidden ones and byte code, the same bytes for the same files."""
    if not folder.is_dir():
        raise Invalid("code", str(folder), "name a folder")
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(folder.rglob("*")):
            parts = path.relative_to(folder).parts
            if path.is_file() and not any(part.startswith(".") or part == "__pycache__" for part in parts):
                archive.writestr(zipfile.ZipInfo("/".join(parts)), path.read_bytes())
    return buffer.getvalue()
