"""Fixtures for tests of DAGs and jobs, without a GPU: ``broker``, ``fake_fleet`` and ``metadata_server``.

Importing this loads nothing; each fixture loads what it needs when it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from moorage.testing.fleet import FakeFleet, FakeNode
    from moorage.testing.metadata import MetadataServer
    from moorage.testing.served import ServedBroker


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[ServedBroker]:
    """A real broker on SQLite behind HTTP: ``.url``, ``.token`` (an operator's) and ``.client``."""
    from moorage.testing.served import ServedBroker

    folder = tmp_path / "broker"
    folder.mkdir()
    with ServedBroker(folder) as served:
        yield served


@pytest.fixture
def fake_fleet(broker: ServedBroker, tmp_path: Path) -> Iterator[Callable[..., FakeFleet]]:
    """Start agents with fake GPUs: ``fake_fleet([FakeNode(name="n1", gpus=4)], processes=False)``."""
    from moorage.testing.fleet import FakeFleet

    with ExitStack() as stack:

        def start(nodes: Sequence[FakeNode], *, processes: bool = False) -> FakeFleet:
            fleet = FakeFleet(broker.url, broker.token, nodes, tmp_path / "agents", processes=processes)
            return stack.enter_context(fleet)

        yield start


@pytest.fixture
def metadata_server() -> Iterator[Callable[..., MetadataServer]]:
    """Start a cloud's metadata service: ``metadata_server(["n1", "n2"]).notice(seconds=20, node="n1")``."""
    from moorage.testing.metadata import MetadataServer

    with ExitStack() as stack:

        def start(nodes: Sequence[str] = ()) -> MetadataServer:
            return stack.enter_context(MetadataServer(nodes))

        yield start
