"""What Moorage writes to MLflow: one run per lease with what it cost, and its report."""

from moorage.mlflow.recorder import Recorder
from moorage.mlflow.report import render
from moorage.mlflow.timeline import CostReport, cost_report

__all__ = ["CostReport", "Recorder", "cost_report", "render"]
