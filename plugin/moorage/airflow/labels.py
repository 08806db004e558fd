"""The labels by which a task instance's leases are found."""

from __future__ import annotations

from typing import Any


def owner(ti: Any) -> dict[str, str]:
    """Labels that name the task instance; neither its id nor its try number, which change with every try."""
    return {
        "airflow.dag_id": ti.dag_id,
        "airflow.run_id": ti.run_id,
        "airflow.task_id": ti.task_id,
        "airflow.map_index": str(-1 if ti.map_index is None else ti.map_index),
    }
