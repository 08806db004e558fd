"""Airflow reads its configuration at the first import, so its home is set here, before any."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from moorage.api.auth import Role
from moorage.client import Client
from moorage.core.policy import Policy
from moorage.testing.served import ServedBroker

_HOME = tempfile.mkdtemp(prefix="moorage-airflow-")
atexit.register(shutil.rmtree, _HOME, ignore_errors=True)
os.environ.update(
    AIRFLOW_HOME=_HOME,
    AIRFLOW__CORE__LOAD_EXAMPLES="False",
    AIRFLOW__CORE__DAGS_FOLDER=f"{_HOME}/dags",
    AIRFLOW__DATABASE__SQL_ALCHEMY_CONN=f"sqlite:///{_HOME}/airflow.db",
    AIRFLOW__API_AUTH__JWT_SECRET="a secret of tests only, as long as its hash wants it to be: sixty-four bytes",
    AIRFLOW__USAGE_DATA_COLLECTION__ENABLED="False",
)
Path(_HOME, "dags").mkdir()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedBroker]:
    """One broker for a file's tests. An unwatched lease is released sooner than by default."""
    with ServedBroker(tmp_path_factory.mktemp("broker"), Policy(unwatch_grace_s=3.0)) as served:
        yield served


@pytest.fixture(scope="module")
def token(served: ServedBroker) -> str:
    """Of Airflow's tasks, which pay as team research."""
    return served.client.make_token("tasks", Role.SUBMITTER, team="research")


@pytest.fixture
def connected(served: ServedBroker, token: str, monkeypatch: pytest.MonkeyPatch) -> Client:
    """Tasks and triggers reach a real broker; returns an operator's client of it."""
    monkeypatch.setenv("MOORAGE_URL", served.url)
    monkeypatch.setenv("MOORAGE_TOKEN", token)
    return served.client
