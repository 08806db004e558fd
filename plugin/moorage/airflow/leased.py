"""What every operator with a lease shares: find or submit it, wait for it in the triggerer, and say how it ended."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NoReturn

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from moorage.airflow import options, report
from moorage.airflow.hook import MoorageHook
from moorage.airflow.labels import owner
from moorage.airflow.links import FleetLink, lease_url
from moorage.airflow.triggers import LeaseTrigger
from moorage.api.errors import Denied, MoorageError, NotFound
from moorage.api.values import LeaseView, Submission
from moorage.core.invalid import Invalid
from moorage.core.job import Job
from moorage.core.lease import LeaseState, Outcome
from moorage.core.request import Request

if TYPE_CHECKING:
    from airflow.sdk import Context

    from moorage.api.protocols import LeaseApi

#: Key in the task state store. Never rename it: running tasks have it stored.
STATE_KEY = "moorage_lease"
#: Past `stop_at` the broker has stopped the lease long ago; only a broker that is gone for good meets this.
PAST_STOP = timedelta(minutes=15)
#: A new attempt waits this long for the last one's GPUs to be given back, in seconds.
SETTLE_S = 900.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What an operator wants: the request, and the job with its code (None: nothing to ship)."""

    request: Request
    job: Job | None
    code: bytes | None = None


class LeasedOperator(BaseOperator):
    """Submits once per task instance, however often workers, triggerers or the broker die, and waits deferred.

    The lease is looked for in the task state store, then by its owner labels, then made. A retry after a failure
    continues its checkpoints; a clear after success starts anew, because success forgets the lease.
    """

    operator_extra_links = (FleetLink(),)
    #: What the task waits for: ``ended`` or ``granted``.
    until = "ended"

    def __init__(self, *, moorage_conn_id: str = MoorageHook.default_conn_name, team: str | None = None, **kwargs: Any):
        super().__init__(**kwargs)
        self.moorage_conn_id = moorage_conn_id
        self.team = team
        #: For the link; only known in the process that met the lease.
        self.lease_id: str | None = None

    def ask(self, context: Context, now: datetime) -> Ask:
        """The request and job, from rendered fields. Raises `Invalid`."""
        raise NotImplementedError

    def value(self, ended: Mapping[str, Any]) -> Any:
        """What the task returns after success, from the trigger's event."""
        return {"lease": ended["lease"], "result": ended["result"], "cost": ended["cost"]}

    def execute(self, context: Context) -> Any:
        """Find or submit the lease, then wait for it without a worker."""
        try:
            with MoorageHook(self.moorage_conn_id).get_conn() as api:
                view = self._find(api, context) or self._submit(api, context)
        except (Invalid, Denied) as error:
            raise AirflowFailException(str(error)) from None
        except MoorageError as error:
            raise AirflowException(str(error)) from error
        return self._wait(view, context)

    def execute_complete(self, context: Context, event: Mapping[str, Any]) -> Any:
        """Say how the lease ended: in the log, and as value or exception."""
        self.lease_id = event["lease"]
        if "error" in event:
            raise AirflowException(event["error"])
        tail = report.write(self.log, MoorageHook(self.moorage_conn_id), event)
        match event["outcome"]:
            case Outcome.SUCCEEDED:
                context["task_state_store"].delete(STATE_KEY)
                return self.value(event)
            case Outcome.FAILED:
                raise AirflowException(f"{event['reason']}\n{tail}".strip())
            case _:
                raise AirflowFailException(event["reason"] or "The lease was stopped.")

    def execute_after_stop(self, context: Context, event: Mapping[str, Any]) -> Any:
        """The last attempt's lease is gone now: start over, from its checkpoints."""
        self.log.info("Lease %s is over; going on.", event["lease"])
        return self.execute(context)

    def _wait(self, view: LeaseView, context: Context) -> Any:
        lease = view.lease
        self.lease_id = lease.id
        context["task_state_store"].set(STATE_KEY, lease.id)
        context["ti"].xcom_push(key=FleetLink().xcom_key, value=lease_url(lease.id))
        if lease.state is LeaseState.STOPPING and lease.outcome is not Outcome.SUCCEEDED:
            self.log.info("Waiting until lease %s has given its GPUs back: %s", lease.id, lease.reason)
            self._defer(lease.id, "execute_after_stop", timedelta(seconds=2 * SETTLE_S), linger_s=SETTLE_S)
        stop_at = lease.request.stop_at
        left = max(stop_at - datetime.now(UTC), timedelta(0)) + PAST_STOP if stop_at else None
        self._defer(lease.id, "execute_complete", left, until=self.until)

    def _defer(self, lease: str, method: str, timeout: timedelta | None, **settings: Any) -> NoReturn:
        trigger = LeaseTrigger(lease, self.moorage_conn_id, **settings)
        self.defer(trigger=trigger, method_name=method, timeout=timeout)
        raise AssertionError("defer() always raises")

    def _find(self, api: LeaseApi, context: Context) -> LeaseView | None:
        """This task's lease, if it lives, or succeeded and nobody has heard of it yet."""
        known = context["task_state_store"].get(STATE_KEY)
        if known is not None:
            try:
                view = api.get(str(known))
            except NotFound:
                self.log.warning("The broker does not know lease %s any more.", known)
            else:
                if view.lease.state is not LeaseState.ENDED or view.lease.outcome is Outcome.SUCCEEDED:
                    self.log.info("Found lease %s again: %s", view.lease.id, view.lease.reason)
                    return view
        live = api.find(owner(context["ti"]), live=True, limit=1)
        return live[0] if live else None

    def _submit(self, api: LeaseApi, context: Context) -> LeaseView:
        labels = owner(context["ti"])
        last = next(iter(api.find(labels, limit=1)), None)
        now = datetime.now(UTC)
        wanted = self.ask(context, now)
        if last is None:
            options.refuse_past(wanted.request, now)
        if wanted.code is not None:
            api.put_code(wanted.code)
        failed = last is not None and last.lease.outcome is not Outcome.SUCCEEDED
        view = api.submit(
            Submission(
                owner=labels,
                request=wanted.request,
                job=wanted.job,
                client_id=client_id(labels, last.lease.generation + 1 if last else 1),
                team=self.team if options.given(self.team) else None,
                resume_from=last.lease.id if last and failed else None,
            )
        )
        self.log.info("Submitted lease %s: %s", view.lease.id, view.lease.reason)
        return view

    def stop_at(self, context: Context, now: datetime) -> datetime | None:
        """The end that `execution_timeout` and the DAG run's time-out allow."""
        own = now + self.execution_timeout if self.execution_timeout else None
        limit, run = getattr(context["dag"], "dagrun_timeout", None), context["dag_run"]
        whole = run.start_date + limit if limit and run.start_date else None
        return options.earliest(own, whole)


def client_id(labels: Mapping[str, str], generation: int) -> str:
    """The same for every try of one generation: a submission whose answer was lost finds its lease."""
    text = "\n".join([*(f"{key}={labels[key]}" for key in sorted(labels)), str(generation)])
    return f"airflow-{hashlib.sha256(text.encode()).hexdigest()[:32]}"


#: Fields that all leased operators template.
TEMPLATED: Sequence[str] = ("team",)
