"""Airflow as a part of the demo."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from moorage.cli.demo.parts import Part, Parts
from moorage.testing.airflow import AirflowStandalone

#: Seconds that Airflow may take to be healthy: five processes that import for half a minute on two cores.
LIMIT_S = 240.0


class Airflow(AirflowStandalone):
    """The demo's Airflow, and what a person needs to look at it."""

    @property
    def fleet_url(self) -> str:
        """The *GPU fleet* page."""
        return f"{self.url}/plugin/moorage"

    @property
    def login(self) -> str:
        return f"user admin, password {self.password}"


def start_airflow(parts: Parts, work: Path, source: Path, port: int, env: Mapping[str, str]) -> tuple[Part, Airflow]:
    """Start it with the checkout's DAGs; what `prepare` writes goes below the demo's folder."""
    airflow = Airflow(work / "airflow", source / "dags", {**env, "DIGITS_DATA": str(work / "data")}, port)
    airflow.prepare()
    part = Part(
        "airflow",
        airflow.argv,
        work / "airflow.log",
        lambda: airflow.url if airflow.healthy() else None,
        airflow.env,
        limit_s=LIMIT_S,
    )
    return parts.start(part), airflow
