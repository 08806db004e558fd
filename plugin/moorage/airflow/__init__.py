"""Airflow provider: operators, decorator, trigger, hook and the *GPU fleet* page.

Names are imported on first use, because provider discovery imports this package before Airflow is ready.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from moorage.airflow.decorators import gpu_task
    from moorage.airflow.hook import MoorageHook
    from moorage.airflow.operators import GpuTrainOperator
    from moorage.airflow.reserve import GpuLeaseOperator, GpuReleaseOperator
    from moorage.airflow.triggers import LeaseTrigger

__all__ = ["GpuLeaseOperator", "GpuReleaseOperator", "GpuTrainOperator", "LeaseTrigger", "MoorageHook", "gpu_task"]

_HOMES = {
    "GpuLeaseOperator": "reserve",
    "GpuReleaseOperator": "reserve",
    "GpuTrainOperator": "operators",
    "LeaseTrigger": "triggers",
    "MoorageHook": "hook",
    "gpu_task": "decorators",
}


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return getattr(import_module(f"moorage.airflow.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'moorage.airflow' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
