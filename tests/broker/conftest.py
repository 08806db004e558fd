"""Worlds to test in: a broker with a clock that moves when told."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from conformance import World  # noqa: E402

from moorage.api.auth import Principal  # noqa: E402
from moorage.api.protocols import Api  # noqa: E402
from moorage.broker import Broker, FakeClock  # noqa: E402


class InProcess(World):
    """A broker in this process; `restart` opens its database again."""

    def __init__(self, url: str, logs: Path) -> None:
        self.url, self.logs, self.clock = url, logs, FakeClock()
        self.broker = self.open()

    def open(self) -> Broker:
        return Broker.open(
            self.url, clock=self.clock, logs=self.logs, public_url="http://broker", mlflow_uri="http://ml"
        )

    def api_for(self, principal: Principal) -> Api:
        return self.broker.acting(principal)

    def step(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.broker.tick()

    def settle(self) -> None:
        self.broker.settle()

    def close(self) -> None:
        self.broker.close()

    def restart(self, down: float = 0.0) -> None:
        """Close, be away for so many seconds, and open again."""
        self.broker.close()
        self.clock.advance(down)
        self.broker = self.open()


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
