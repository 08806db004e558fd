"""Train a small digits model on 1 to 4 spot GPUs, then evaluate it on one."""

import os
from datetime import timedelta
from pathlib import Path

from airflow.sdk import DAG, Asset, Param, task

from moorage.airflow import GpuTrainOperator

DATA = os.environ.get("DIGITS_DATA", str(Path(__file__).parents[1] / "build" / "digits"))

with DAG(
    "train_digits",
    schedule=None,
    dagrun_timeout=timedelta(hours=1),
    params={"data": Param(DATA, type="string", description="Folder that this machine and the GPU nodes share")},
    tags=["moorage"],
):

    @task
    def prepare(folder: str) -> str:
        import numpy as np
        from sklearn.datasets import load_digits

        x, y = load_digits(return_X_y=True)
        order = np.random.default_rng(0).permutation(len(x))
        train, test = order[:1500], order[1500:]
        path = Path(folder, "digits.npz")
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez(path, x=x[train] / 16, y=y[train], x_test=x[test] / 16, y_test=y[test])
        return str(path)

    data = prepare("{{ params.data }}")

    train = GpuTrainOperator(
        task_id="train",
        script="ray_jobs/train_digits.py",
        args=["--data", data],
        workers=(1, 4),
        gpus_per_worker=1,
        capacity="spot",
        topology={"preferred": "rack"},
        budget_usd=5,
        deadline=timedelta(minutes=30),
        retries=1,
    )

    @task.gpu(gpus=1, outlets=[Asset("moorage://models/digits")])
    def evaluate(data: str, trained: dict) -> float:
        import numpy as np

        held_out, model = np.load(data), np.load(trained["result"]["model"])
        hidden = np.maximum(held_out["x_test"] @ model["w1"] + model["b1"], 0)
        digits = (hidden @ model["w2"] + model["b2"]).argmax(axis=1)
        return float((digits == held_out["y_test"]).mean())

    evaluate(data, train.output)
