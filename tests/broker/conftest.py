"""Worlds to test in."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# Helpers of these tests lie beside them, and pytest's importlib mode puts no folder on the path.
sys.path.insert(0, str(Path(__file__).parent))

from worlds import InProcess


@pytest.fixture(params=["sqlite-file", "sqlite-memory"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[InProcess]:
    url = f"sqlite:///{tmp_path}/moorage.db" if request.param == "sqlite-file" else "sqlite://"
    made = InProcess(url, tmp_path / "logs")
    yield made
    made.close()


@pytest.fixture
def on_disk(tmp_path: Path) -> Iterator[InProcess]:
    made = InProcess(f"sqlite:///{tmp_path}/moorage.db", tmp_path / "logs")
    yield made
    made.close()


@pytest.fixture
def in_memory(tmp_path: Path) -> Iterator[InProcess]:
    made = InProcess("sqlite://", tmp_path / "logs")
    yield made
    made.close()
