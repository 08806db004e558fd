"""A script that runs itself on a lease: its folder is shipped, its lease watched, its result returned."""

from __future__ import annotations

import io
import json
import os
import sys
import zipfile
from pathlib import Path

from moorage import settings
from moorage.api.ids import new_id
from moorage.api.protocols import LeaseApi
from moorage.api.values import LeaseView, Submission
from moorage.core.invalid import Invalid
from moorage.core.job import DoneWhen, Job, JobKind
from moorage.core.lease import LeaseState, Outcome
from moorage.core.request import Request
from moorage.ray.trainer import Result

#: Of the code, unpacked.
CODE_LIMIT = 32 << 20
POLL_S = 20.0
_SKIPPED = {"__pycache__", ".git", ".venv", "node_modules"}


class RunFailed(RuntimeError):
    """The lease ended without success; its text is the broker's reason."""


def submit_and_watch(name: str, workers: tuple[int, int], gpus_per_worker: int, storage: str | None) -> Result:
    """Submit the running script as a lease and wait for its end.

    Raises:
        Invalid: there is no script to ship, or its folder is too large.
        RunFailed: the lease failed or was stopped.
    """
    from moorage.client import Client

    script = _script()
    where = settings.connection()
    with Client(where.url, where.token) as client:
        job = Job(
            kind=JobKind.RAY,
            entrypoint=("python", script.name, *sys.argv[1:]),
            code=client.put_code(pack_folder(script.parent)),
            done_when=DoneWhen.MARKER,
            storage=storage,
        )
        request = Request(workers=workers, gpus_per_worker=gpus_per_worker)
        submission = Submission(owner=_owner(name), request=request, job=job, client_id=new_id())
        return _result(_watch(client, client.submit(submission)), storage)


def pack_folder(folder: Path) -> bytes:
    """A zip of a folder's files, without hidden ones and caches; equal folders give equal bytes."""
    buffer = io.BytesIO()
    size = 0
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(p for p in folder.rglob("*") if p.is_file()):
            inside = path.relative_to(folder)
            if any(part in _SKIPPED or part.startswith(".") for part in inside.parts):
                continue
            size += path.stat().st_size
            if size > CODE_LIMIT:
                raise Invalid("code", str(folder), "ship at most 32 MiB; move data out of the script's folder")
            archive.writestr(zipfile.ZipInfo(str(inside)), path.read_bytes(), zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


def _script() -> Path:
    path = Path(sys.argv[0])
    if not path.is_file() or path.suffix != ".py":
        raise Invalid("script", sys.argv[0], "save the code as a .py file and run that: a notebook cannot be shipped")
    return path.resolve()


def _owner(name: str) -> dict[str, str]:
    return {"moorage.script": name, "moorage.user": os.environ.get("USER", "unknown"), "moorage.run": new_id()}


def _watch(client: LeaseApi, view: LeaseView) -> LeaseView:
    watcher, said = new_id(), ""
    while view.lease.state is not LeaseState.ENDED:
        if view.lease.reason != said:
            said = view.lease.reason
            sys.stderr.write(f"lease {view.lease.id} {view.lease.state}: {said}\n")
        view = client.watch(view.lease.id, watcher, since=view.revision, timeout=POLL_S)
    return view


def _result(view: LeaseView, storage: str | None) -> Result:
    lease = view.lease
    if lease.outcome is not Outcome.SUCCEEDED:
        raise RunFailed(f"lease {lease.id} {lease.outcome}: {lease.reason}")
    return Result(metrics=json.loads(lease.result or "{}"), checkpoint=None, storage=storage)
