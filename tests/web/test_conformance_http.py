"""The broker's conformance suite, over HTTP: client, routes and broker together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from conformance import CHECKS, World
from web_server import served
from worlds import InProcess

from moorage.api.auth import Principal
from moorage.api.errors import Denied
from moorage.api.protocols import Api
from moorage.client import Client
from moorage.web import bearer, create_app

#: Real waits: `make test` runs them, `make check` does not.
pytestmark = pytest.mark.slow


class OverHttp(InProcess):
    """The same broker and clock; what a principal does goes over HTTP."""

    def __init__(self, url: str, logs: Path, stack: ExitStack) -> None:
        super().__init__(url, logs)
        self._stack = stack
        self._people: dict[str, Principal] = {}
        self._clients: dict[Principal, Client] = {}
        app = create_app(lambda who: self.broker.acting(who), bearer(self._who), self.broker)
        self._address = stack.enter_context(served(app))

    def _who(self, secret: str) -> Principal:
        if secret not in self._people:
            raise Denied("not known")
        return self._people[secret]

    def api_for(self, principal: Principal) -> Api:
        if principal not in self._clients:
            secret = f"secret-{len(self._people)}"
            self._people[secret] = principal
            self._clients[principal] = self._stack.enter_context(Client(self._address, secret, retry_for=0))
        return self._clients[principal]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with ExitStack() as stack:
        made = OverHttp(f"sqlite:///{tmp_path}/moorage.db", tmp_path / "logs", stack)
        yield made
    made.close()


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_conforms(world: World, check: Callable[[World], None]) -> None:
    check(world)
