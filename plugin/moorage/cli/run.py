"""moorage run: a command on leased GPUs, as if it ran here."""

from __future__ import annotations

import getpass
import io
import re
import shlex
import signal
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from moorage.api import ids
from moorage.api.errors import Invalid, Unavailable
from moorage.api.values import LeaseView, Submission
from moorage.cli import show
from moorage.cli.connect import TokenFile, Url, connect
from moorage.core.job import DoneWhen, Job, JobKind
from moorage.core.lease import LeaseState, Outcome
from moorage.core.request import CapacityType, Request, Topology

if TYPE_CHECKING:
    from moorage.client import Client

#: Seconds of one long poll, and how long a broker that is away is waited for while the job runs.
POLL_S, AWAY_S = 20.0, 900.0
WATCHER = "cli"
#: Exit status after Ctrl-C, as shells have it.
INTERRUPTED = 130
#: Bounds on what is read, and on its zip, in bytes; the latter is the broker's.
MAX_READ, MAX_ZIP = 256 << 20, 32 << 20


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
    budget: Annotated[str | None, typer.Option("--budget", help="Dollars; the lease is stopped in time.")] = None,
    deadline: Annotated[
        str | None, typer.Option("--deadline", help="When it is wanted: 90m, 2h, 1d, or ISO 8601 with a time zone.")
    ] = None,
    priority: Annotated[int, typer.Option("--priority", help="Higher goes first.")] = 0,
    code: Annotated[Path | None, typer.Option("--code", help="Folder to ship; the command runs in it.")] = None,
    env: Annotated[list[str] | None, typer.Option("--env", help="Variable of the job NAME=VALUE; repeatable.")] = None,
    retries: Annotated[int, typer.Option("--retries", help="Attempts that may fail by the job's own fault.")] = 0,
    done_when: Annotated[
        DoneWhen, typer.Option("--done-when", help="exit: status 0 is enough; marker: moorage.ray must also say so.")
    ] = DoneWhen.EXIT,
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Print the lease id and return.")] = False,
) -> None:
    """Run a command on leased GPUs; its output is shown, and its lease is released on Ctrl-C."""
    check_program(command, code)
    request = Request(
        workers=parse_workers(workers),
        gpus_per_worker=gpus,
        capacity=capacity,
        models=tuple(model or ()),
        topology=Topology(required=required, preferred=preferred),
        budget_usd=parse_dollars(budget),
        deadline=parse_deadline(deadline, datetime.now(UTC)),
        priority=priority,
    )
    job = Job(
        kind=JobKind.RAY if ray else JobKind.PROCESS,
        entrypoint=tuple(command),
        env=parse_env(env or []),
        max_retries=retries,
        done_when=done_when,
    )
    with connect(url, token_file) as client:
        submission = submission_of(client, request, job, code)
        if detach:
            typer.echo(client.submit(submission).lease.id)
            return
        with connect(url, token_file, retry_for=AWAY_S) as patient:
            raise typer.Exit(attended(client, patient, submission))


def submission_of(client: Client, request: Request, job: Job, code: Path | None) -> Submission:
    """What is asked for, its code stored."""
    from dataclasses import replace

    call = ids.new_id()
    owner = {"cli.user": getpass.getuser(), "cli.command": shlex.join(job.entrypoint)[:200], "cli.call": call}
    stored = replace(job, code=client.put_code(zip_folder(code))) if code else job
    return Submission(owner=owner, request=request, job=stored, client_id=call)


# --- from submit to the end


def attended(client: Client, patient: Client, submission: Submission) -> int:
    """Show what the job prints until its lease ends; Ctrl-C releases it. Returns the command line's exit status."""
    try:
        with interruptible():
            view = follow(patient, client.submit(submission))
    except KeyboardInterrupt:
        # The same call again finds the lease, also if its first answer never came.
        view = client.submit(submission)
        view = client.release(view.lease.id, "interrupted at the terminal", ids.new_id())
        tell(f"lease {view.lease.id} is released")
        return INTERRUPTED
    tell(f"{view.lease.outcome}: {view.lease.reason} · ${view.cost.total_usd:.4f}")
    return 0 if view.lease.outcome is Outcome.SUCCEEDED else 1


@contextmanager
def interruptible() -> Iterator[None]:
    """SIGTERM and a terminal that closes count as Ctrl-C: nobody is left who would want the output."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.signal(number, interrupt) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def follow(client: Client, view: LeaseView) -> LeaseView:
    """Copy the log to standard output and say why the lease waits, until it has ended."""
    lease = view.lease.id
    tell(f"lease {lease} is queued")
    try:
        return _follow(client, view)
    except Unavailable as error:
        raise Unavailable(f"{error}; the job goes on: `moorage logs -f {lease}` once the broker is back") from error


def _follow(client: Client, view: LeaseView) -> LeaseView:
    lease, offset, told = view.lease.id, 0, ""
    while True:
        if view.lease.state is LeaseState.QUEUED:
            if view.lease.reason not in ("", told):
                told = view.lease.reason
                tell(f"waits: {told}")
            view = client.watch(lease, WATCHER, view.revision, POLL_S)
            continue
        chunk = client.logs(lease, offset, POLL_S)
        sys.stdout.write(chunk.text)
        sys.stdout.flush()
        if chunk.end:
            return client.get(lease)
        offset = chunk.next
        # Also says that the owner is there.
        view = client.watch(lease, WATCHER, 0, 0)


def tell(sentence: str) -> None:
    """What is not the job's own output goes to standard error."""
    show.err.print(sentence, markup=False, highlight=False, soft_wrap=True)


# --- words to values


def check_program(command: list[str], code: Path | None) -> None:
    """Refuse an empty command, and a script that cannot be on the node. Raises `Invalid`."""
    if not command[0].strip():
        raise Invalid("command", command[0], "name a program, for example: moorage run -- nvidia-smi")
    if code is not None and not code.is_dir():
        raise Invalid("code", str(code), "name a folder")
    script = script_of(command)
    if script is None or Path(script).is_absolute():
        return
    if code is None:
        raise Invalid("command", script, "the node does not have your files; ship their folder with --code FOLDER")
    if not (code / script).is_file():
        raise Invalid("command", script, f"there is no such file in --code {code}")


def script_of(command: list[str]) -> str | None:
    """The file that a ``python`` command runs. None: another program, ``-c``, ``-m``, or nothing."""
    if not re.fullmatch(r"python[0-9.]*", Path(command[0]).name):
        return None
    words = iter(command[1:])
    for word in words:
        if word in ("-W", "-X"):
            next(words, None)
        elif word.startswith(("-c", "-m")) or word == "-":
            return None
        elif not word.startswith("-"):
            return word
    return None


def parse_workers(text: str) -> tuple[int, int]:
    """``3`` or ``1..4``. Raises `Invalid`."""
    low, dots, high = text.partition("..")
    try:
        return int(low), int(high if dots else low)
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


def parse_deadline(text: str | None, now: datetime) -> datetime | None:
    """``90m``, ``2h``, ``1d`` from `now`, or ISO 8601; the broker and `Request` refuse what is past or has no zone."""
    if text is None:
        return None
    if length := re.fullmatch(r"(\d{1,6})([smhd])", text):
        return now + int(length[1]) * timedelta(seconds={"s": 1, "m": 60, "h": 3600, "d": 86_400}[length[2]])
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise Invalid("deadline", text, "write 90m, 2h, 1d, or a time like 2026-11-30T20:00:00+00:00") from None


def parse_env(pairs: list[str]) -> dict[str, str]:
    """``NAME=VALUE`` each. Raises `Invalid`; it shows the name alone."""
    made = {}
    for pair in pairs:
        name, sep, value = pair.partition("=")
        if not (name and sep):
            raise Invalid("env", name, "write NAME=VALUE")
        made[name] = value
    return made


def zip_folder(folder: Path) -> bytes:
    """Every file below the folder except hidden ones and byte code, the same bytes for the same files.

    Raises:
        Invalid: it is more than the broker keeps.
    """
    buffer, size = io.BytesIO(), 0
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(folder.rglob("*")):
            parts = path.relative_to(folder).parts
            if path.is_file() and not any(part.startswith(".") or part == "__pycache__" for part in parts):
                size += path.stat().st_size
                check_size(folder, size, MAX_READ)
                archive.writestr(zipfile.ZipInfo("/".join(parts)), path.read_bytes(), zipfile.ZIP_DEFLATED)
    check_size(folder, buffer.tell(), MAX_ZIP)
    return buffer.getvalue()


def check_size(folder: Path, size: int, most: int) -> None:
    if size > most:
        fix = f"it has more than {most >> 20} MiB; ship code, and put data into storage"
        raise Invalid("code", str(folder), fix)
