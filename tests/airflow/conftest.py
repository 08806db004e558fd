"""Airflow reads its configuration at the first import, so its home is set here, before any."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

_HOME = tempfile.mkdtemp(prefix="moorage-airflow-")
os.environ.update(
    AIRFLOW_HOME=_HOME,
    AIRFLOW__CORE__LOAD_EXAMPLES="False",
    AIRFLOW__CORE__DAGS_FOLDER=f"{_HOME}/dags",
    AIRFLOW__DATABASE__SQL_ALCHEMY_CONN=f"sqlite:///{_HOME}/airflow.db",
    AIRFLOW__API_AUTH__JWT_SECRET="a secret of tests only, as long as its hash wants it to be: sixty-four bytes",
    AIRFLOW__USAGE_DATA_COLLECTION__ENABLED="False",
)
Path(_HOME, "dags").mkdir()
