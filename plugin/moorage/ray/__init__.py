"""Ray: a cluster of its own for each lease, the elastic trainer, and the autoscaler hook for long-lived heads.

Importing this loads no Ray: names are loaded when they are used.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_WHERE = {
    "placement_group": "moorage.ray.placement",
    "gang_labels": "moorage.ray.placement",
    "Batch": "moorage.ray.data",
    "ElasticTrainer": "moorage.ray.trainer",
    "Job": "moorage.ray.job",
    "LoopFailed": "moorage.ray.words",
    "Result": "moorage.ray.trainer",
}

__all__ = ["Batch", "ElasticTrainer", "Job", "LoopFailed", "Result", "gang_labels", "placement_group"]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_WHERE[name]), name)
