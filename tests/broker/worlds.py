"""A world in this process: a broker with a clock that moves when told."""

from __future__ import annotations

from pathlib import Path

from conformance import World

from moorage.api.auth import Principal
from moorage.api.protocols import Api
from moorage.broker import Broker, FakeClock


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
