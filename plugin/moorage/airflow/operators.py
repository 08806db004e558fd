"""`GpuTrainOperator`: a training script on leased GPUs, elastic, across interruptions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moorage.airflow import options, package
from moorage.airflow.gang import ASKED, GangOperator
from moorage.airflow.leased import TEMPLATED, Ask
from moorage.core.invalid import Invalid
from moorage.core.job import DoneWhen, Job, JobKind

if TYPE_CHECKING:
    from airflow.sdk import Context

#: Arguments that say what runs, and how.
PROGRAM = ("script", "entrypoint", "args", "code")
JOB = ("env", "secrets", "storage", "max_retries")


class GpuTrainOperator(GangOperator):
    """Runs a script with `moorage.ray.ElasticTrainer` (or any Ray driver) on a Ray cluster of its own.

    Returns ``{"lease": id, "result": what the trainer returned, "cost": {"total_usd": "0.41", ...}}``.

    Args:
        script: path of the driver, relative to the DAG file's folder, its parent, or the working directory.
        entrypoint: a command instead of a script, run in the code folder; ``python`` is the node's interpreter.
        args: words after the script or entrypoint.
        code: folder to ship, at most 32 MiB as a zip; None: the script's folder.
        workers, gpus_per_worker, models, capacity, topology, budget_usd, deadline, ...: see `GangOperator`.
        env: variables of the job. secrets: variable -> reference (``env:NAME`` on the node).
        storage: fsspec URL for checkpoints; None: the policy's.
        max_retries: attempts that may fail by the job's own fault, within one Airflow try; interruptions never count.
        team: only for an operator's token: on whose account.
        moorage_conn_id: connection of type ``moorage``; without one, MOORAGE_URL and MOORAGE_TOKEN count.
    """

    template_fields: Sequence[str] = (*TEMPLATED, *ASKED, *PROGRAM, *JOB)
    ui_color = "#d7ecf7"

    def __init__(
        self,
        *,
        script: str | None = None,
        entrypoint: Sequence[str] | None = None,
        args: Sequence[str | int | float] = (),
        code: str | None = None,
        env: Mapping[str, str] | None = None,
        secrets: Mapping[str, str] | None = None,
        storage: str | None = None,
        max_retries: int | str = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.script, self.entrypoint, self.args, self.code = script, entrypoint, args, code
        self.env, self.secrets, self.storage, self.max_retries = env, secrets, storage, max_retries

    def ask(self, context: Context, now: datetime) -> Ask:
        """The request and the job, from rendered fields. Raises `Invalid`."""
        request = self.request(now, self.stop_at(context, now))
        folder, words = self._program(getattr(context["dag"], "fileloc", None))
        code = package.pack_folder(folder) if folder else None
        job = Job(
            kind=JobKind.RAY,
            entrypoint=words,
            code=package.digest(code) if code else None,
            done_when=DoneWhen.MARKER,
            **options.job({name: getattr(self, name) for name in JOB}),
        )
        return Ask(request=request, job=job, code=code)

    def _program(self, dag_file: str | None) -> tuple[Path | None, tuple[str, ...]]:
        """The folder to ship, and the command to run in it."""
        code = package.resolve("code", str(self.code), dag_file) if options.given(self.code) else None
        args = options.argv("args", self.args)
        match options.given(self.script), options.given(self.entrypoint):
            case True, False:
                script = package.resolve("script", str(self.script), dag_file)
                folder = code or script.parent
                return folder, ("python", package.inside(script, folder), *args)
            case False, True:
                return code, (*options.argv("entrypoint", self.entrypoint), *args)
            case both, _:
                fix = "give a script or an entrypoint, not both" if both else "give a script or an entrypoint"
                raise Invalid("script", self.script, fix)
