"""A broker, two nodes of four fake GPUs in one rack, and a stranger at a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from moorage.testing.fleet import FakeFleet, FakeNode
from moorage.testing.served import ServedBroker

sys.path.append(str(Path(__file__).parent))

from cli_terminal import HangsUp, Site, Zygote

NODES = [FakeNode(name=name, gpus=4, labels={"moorage.io/rack": "r1"}) for name in ("n1", "n2")]


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    made = Zygote()
    yield made
    made.close()


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory, zygote: Zygote) -> Iterator[Site]:
    folders = {name: tmp_path_factory.mktemp(name) for name in ("broker", "agents", "folder", "scratch")}
    with ServedBroker(folders["broker"]) as broker, FakeFleet(broker.url, broker.token, NODES, folders["agents"]):
        yield Site(broker, folders["folder"], folders["scratch"], zygote)


@pytest.fixture(scope="session")
def hangs_up(site: Site) -> Iterator[HangsUp]:
    """Starts first, because it takes ten seconds, which the other tests use; see test_unavailable.py."""
    made = HangsUp(site)
    yield made
    made.close()
