"""``@task.gpu``: a Python function on leased GPUs, as a plain process on one node."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from airflow.sdk.bases.decorator import DecoratedOperator, TaskDecorator, task_decorator_factory

from moorage.airflow import options, package, ship
from moorage.airflow.leased import TEMPLATED, Ask, LeasedOperator
from moorage.core.invalid import Invalid
from moorage.core.job import DoneWhen, Job, JobKind

if TYPE_CHECKING:
    from airflow.sdk import Context

#: Arguments that become the `Request`, under its own names.
ASKED = ("cpus", "memory", "gpu_memory", "models", "capacity", "labels", "priority", "budget_usd", "deadline")
JOB = ("env", "secrets", "storage", "max_retries")
#: `Request` speaks of workers; here there is one.
_RENAMED = {"cpus": "cpus_per_worker", "memory": "memory_per_worker"}
#: Parameters that Airflow's own decorators fill from the context, and that travel as text.
CONTEXT_TEXTS = frozenset({"ds", "ds_nodash", "ts", "ts_nodash", "run_id"})


class _GpuDecoratedOperator(DecoratedOperator, LeasedOperator):
    """Ships the function's source and its arguments; returns what the function returned."""

    template_fields: Sequence[str] = ("op_args", "op_kwargs", *TEMPLATED, "gpus", *ASKED, *JOB)
    custom_operator_name = "@task.gpu"

    def __init__(
        self,
        *,
        gpus: int | str = 1,
        cpus: float | str = 0,
        memory: int | str = 0,
        gpu_memory: int | str | None = None,
        models: Sequence[str] | str | None = None,
        capacity: str = "on-demand",
        labels: Mapping[str, str] | None = None,
        priority: int | str = 0,
        budget_usd: Decimal | float | str | None = None,
        deadline: datetime | timedelta | str | None = None,
        env: Mapping[str, str] | None = None,
        secrets: Mapping[str, str] | None = None,
        storage: str | None = None,
        max_retries: int | str = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.gpus, self.cpus, self.memory, self.gpu_memory = gpus, cpus, memory, gpu_memory
        self.models, self.capacity, self.labels = models, capacity, labels
        self.priority, self.budget_usd, self.deadline = priority, budget_usd, deadline
        self.env, self.secrets, self.storage, self.max_retries = env, secrets, storage, max_retries

    def ask(self, context: Context, now: datetime) -> Ask:
        """The request and the job, from rendered fields. Raises `Invalid`."""
        asked = {_RENAMED.get(name, name): getattr(self, name) for name in ASKED}
        asked |= {"gpus_per_worker": self.gpus, "stop_at": self.stop_at(context, now)}
        code = ship.bundle(self.python_callable, self.op_args, self._arguments(context))
        job = Job(
            kind=JobKind.PROCESS,
            entrypoint=("python", "main.py"),
            code=package.digest(code),
            done_when=DoneWhen.MARKER,
            **options.job({name: getattr(self, name) for name in JOB}),
        )
        return Ask(request=options.request(asked, now), job=job, code=code)

    def value(self, ended: Mapping[str, Any]) -> Any:
        """What the function returned."""
        return ended["result"]["value"]

    def _arguments(self, context: Context) -> dict[str, Any]:
        """Keyword arguments, with what the function wants of the context."""
        filled = dict(self.op_kwargs)
        for name in ship.wanted(self.python_callable, self.op_args, filled):
            if name in CONTEXT_TEXTS:
                filled[name] = context[name]  # type: ignore[literal-required]
            elif name in context:
                fix = "cannot travel to the GPU node; pass what you need of it as an argument"
                raise Invalid(self.python_callable.__name__, name, fix)
        return filled


def gpu_task(
    python_callable: Callable[..., Any] | None = None, multiple_outputs: bool | None = None, **kwargs: Any
) -> TaskDecorator:
    """``@task.gpu(gpus=1, capacity="spot", models=["H100"], ...)``.

    Only the function's source travels, so it imports what it needs; arguments and the result travel as JSON. A
    parameter ``gpu=None`` receives ``{"devices": [0], "lease": id}``.

    Args:
        gpus: GPUs of the process, all on one node.
        cpus, memory, gpu_memory, models, capacity, labels, priority, budget_usd, deadline, env, secrets, storage,
            max_retries, team, moorage_conn_id: as `GpuTrainOperator` has them; ``cpus`` and ``memory`` (bytes) are the
            process's.
    """
    return task_decorator_factory(
        python_callable=python_callable,
        multiple_outputs=multiple_outputs,
        decorated_operator_class=_GpuDecoratedOperator,
        **kwargs,
    )
