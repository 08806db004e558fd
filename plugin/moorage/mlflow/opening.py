"""The run of a lease: its name, tags and params. Pure."""

from __future__ import annotations

import re
from datetime import datetime

from moorage.core.lease import Lease
from moorage.mlflow.operations import OpenRun, Operation, SetStatus, Write
from moorage.mlflow.tracked import Tracked

_NOT_A_NAME = re.compile(r"[^\w\-. :/]", re.ASCII)


def millis(at: datetime) -> int:
    """Unix milliseconds."""
    return round(at.timestamp() * 1000)


def name(text: str) -> str:
    """The nearest name that MLflow takes for a metric, param or tag."""
    return (_NOT_A_NAME.sub("_", text).strip("/. ") or "_")[:250]


def opening(lease: Lease, who: str, fleet_url: str | None) -> list[Operation]:
    """The lease's run, with what never changes. It waits, so MLflow calls it scheduled."""
    start = millis(lease.submitted_at)
    run = OpenRun(lease=lease.id, epoch=0, name=run_name(lease), start=start, tags=lease_tags(lease, who, fleet_url))
    facts = Write(lease=lease.id, epoch=0, params=request_params(lease))
    return [run, facts, SetStatus(lease=lease.id, epoch=0, status="SCHEDULED")]


def run_name(lease: Lease) -> str:
    """What people call it (task, else the owner's last label), and the id's random end to tell two apart."""
    task = lease.owner.get("airflow.task_id") or (list(lease.owner.values()) or ["lease"])[-1]
    return f"{task} {lease.id[-6:]}"


def lease_tags(lease: Lease, who: str, fleet_url: str | None) -> dict[str, str]:
    """Owner labels as they are, then ours, which an owner cannot overwrite."""
    labels = {name(key): value for key, value in lease.owner.items() if not key.startswith(("mlflow.", "moorage."))}
    ours = {
        "moorage.kind": "lease",
        "moorage.lease": lease.id,
        "moorage.team": lease.team,
        "moorage.owner": ", ".join(f"{key}={value}" for key, value in lease.owner.items()),
        "moorage.state": "queued",
        "mlflow.user": who,
        "mlflow.source.name": "moorage",
        "mlflow.source.type": "JOB",
    }
    if fleet_url:
        ours["moorage.url"] = f"{fleet_url.rstrip('/')}/leases/{lease.id}"
    if lease.resume_from:
        ours["moorage.resume_from"] = lease.resume_from
    return labels | ours


def request_params(lease: Lease) -> dict[str, str]:
    """What was asked for. A later resize does not change it: GPU counts over time are metrics."""
    request, job = lease.request, lease.job
    facts: dict[str, object] = {
        "workers_min": request.workers[0],
        "workers_max": request.workers[1],
        "gpus_per_worker": request.gpus_per_worker,
        "models": ", ".join(request.models) or "any",
        "capacity": request.capacity,
        "topology_required": request.topology.required,
        "topology_preferred": request.topology.preferred,
        "priority": request.priority,
        "budget_usd": request.budget_usd,
        "deadline": request.deadline and request.deadline.isoformat(),
        "stop_at": request.stop_at and request.stop_at.isoformat(),
        "entrypoint": " ".join(job.entrypoint) if job else None,
        "max_retries": job.max_retries if job else None,
    }
    return {f"moorage/{key}": str(value)[:6000] for key, value in facts.items() if value is not None}


def track(lease: Lease) -> Tracked:
    """The beginning of what the recorder remembers."""
    return Tracked(lease=lease.id, submitted=millis(lease.submitted_at))
