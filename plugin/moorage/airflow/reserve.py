"""GPUs held across several tasks: a setup task that leases, a teardown task that releases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from moorage.airflow import options
from moorage.airflow.gang import ASKED, GangOperator
from moorage.airflow.hook import MoorageHook
from moorage.airflow.labels import owner
from moorage.airflow.leased import TEMPLATED, Ask, client_id
from moorage.api.errors import MoorageError
from moorage.core.invalid import Invalid
from moorage.core.lease import LeaseState

if TYPE_CHECKING:
    from airflow.sdk import Context


class GpuLeaseOperator(GangOperator):
    """Leases GPUs without a job, and ends once it has them; returns ``{"lease": id}``.

    The lease needs an end: `stop_after`, `execution_timeout` or the DAG's `dagrun_timeout`. ``lease.teardown()`` makes
    the task that releases it. While no task runs on the lease, something must `watch` it, or it is given back after the
    policy's grace (2 minutes).

    Args:
        stop_after: the lease's end, from submission.
        workers, gpus_per_worker, models, capacity, topology, ...: see `GangOperator`.
    """

    template_fields: Sequence[str] = (*TEMPLATED, *ASKED, "stop_after")
    until = "granted"

    def __init__(
        self,
        *,
        stop_after: timedelta | str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.stop_after = stop_after

    def ask(self, context: Context, now: datetime) -> Ask:
        """The request; raises `Invalid` if the lease would have no end."""
        own = options.moment("stop_after", self.stop_after, now) if options.given(self.stop_after) else None
        stop_at = options.earliest(own, self.stop_at(context, now))
        if stop_at is None:
            raise Invalid("stop_after", None, "a lease without a job needs an end, for example timedelta(hours=2)")
        return Ask(request=self.request(now, stop_at), job=None)

    def execute_complete(self, context: Context, event: Mapping[str, Any]) -> Any:  # noqa: ARG002
        """The lease has its GPUs, or never got them."""
        self.lease_id = event["lease"]
        if "error" in event:
            raise AirflowException(event["error"])
        if not LeaseState(event["state"]).active:
            raise AirflowFailException(event["reason"])
        return {"lease": event["lease"]}

    def teardown(self, task_id: str | None = None) -> GpuReleaseOperator:
        """The task that releases the lease, whatever became of the tasks in between."""
        release = GpuReleaseOperator(
            task_id=task_id or f"{self.task_id}_release", lease=self.output, moorage_conn_id=self.moorage_conn_id
        )
        release.as_teardown(setups=self)
        return release


class GpuReleaseOperator(BaseOperator):
    """Releases a lease; an ended one stays as it is.

    Args:
        lease: its id, or what `GpuLeaseOperator` returned.
    """

    template_fields: Sequence[str] = ("lease",)

    def __init__(self, *, lease: Any, moorage_conn_id: str = MoorageHook.default_conn_name, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.lease = lease
        self.moorage_conn_id = moorage_conn_id

    def execute(self, context: Context) -> None:
        """Release it."""
        lease = self.lease["lease"] if isinstance(self.lease, Mapping) else str(self.lease)
        reason = f"Airflow task {self.task_id} released it"
        try:
            with MoorageHook(self.moorage_conn_id).get_conn() as api:
                view = api.release(lease, reason, f"{client_id(owner(context['ti']), 0)}-{lease}")
        except MoorageError as error:
            raise AirflowException(str(error)) from error
        self.log.info("Lease %s is %s: %s", lease, view.lease.state, view.lease.reason)
