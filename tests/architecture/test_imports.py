"""Which room may load what: the layers, and the promise that no framework is loaded unless it is used."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

#: Frameworks that are extras.
FRAMEWORKS = (
    "airflow",
    "ray",
    "mlflow",
    "fastapi",
    "sqlalchemy",
    "kubernetes",
    "pynvml",
    "sklearn",
    "uvicorn",
    "alembic",
)

#: Module -> frameworks that importing it may load.
MAY_LOAD = {
    "moorage": (),
    "moorage.core.decide": (),
    "moorage.api.protocols": (),
    "moorage.client": (),
    "moorage.cli.app": (),
    "moorage.checkpoint": (),
    "moorage.sim": (),
    "moorage.testing": (),
    "moorage.testing.pytest_plugin": (),
    "moorage.airflow": (),
    "moorage.airflow.get_provider_info": (),
    "moorage.airflow.plugin": ("airflow", "sqlalchemy"),
    "moorage.mlflow": (),
    "moorage.agent": ("pynvml",),
    "moorage.broker": ("sqlalchemy", "alembic"),
    "moorage.web": ("fastapi",),
}


def loaded_by(module: str, home: Path) -> set[str]:
    """Frameworks in sys.modules after importing `module` in a fresh interpreter; Airflow makes its home at import."""
    code = f"import {module}, sys, json; print(json.dumps(sorted({{name.partition('.')[0] for name in sys.modules}})))"
    env = {**os.environ, "AIRFLOW_HOME": str(home)}
    run = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=120, check=False
    )
    assert run.returncode == 0, run.stderr
    return set(json.loads(run.stdout.splitlines()[-1])) & set(FRAMEWORKS)


@pytest.mark.parametrize("module", MAY_LOAD)
def test_importing_a_room_loads_no_framework_but_its_own(module: str, tmp_path: Path) -> None:
    assert loaded_by(module, tmp_path) <= set(MAY_LOAD[module])


def test_layers() -> None:
    """The contract in pyproject.toml: rooms are layers, rooms on one line never import each other."""
    lint = Path(sys.executable).with_name("lint-imports")
    run = subprocess.run([lint, "--no-cache"], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == 0, run.stdout + run.stderr


def test_production_never_imports_testing() -> None:
    """Only the command line (for the demo), the benchmarks and tests may."""
    rooms = [path for path in (ROOT / "plugin" / "moorage").iterdir() if path.name not in {"cli", "bench", "testing"}]
    files = [file for room in rooms for file in ([room] if room.suffix == ".py" else room.rglob("*.py"))]
    offenders = [str(file) for file in files if "moorage.testing" in file.read_text()]
    assert offenders == []
