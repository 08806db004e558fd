"""A real broker over HTTP, and a proxy before it that loses replies."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from moorage.broker import Broker
from moorage.web import bearer, create_app

# Helpers lie beside these tests and beside those of the web; pytest's importlib mode puts no folder on the path.
HERE = Path(__file__).parent
for folder in (HERE, HERE.parent / "web"):
    sys.path.insert(0, str(folder))


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with Broker.open(f"sqlite:///{tmp_path}/moorage.db") as made:
        made.start()
        yield made


@pytest.fixture
def url(broker: Broker) -> Iterator[str]:
    from web_server import served, who

    with served(create_app(broker.acting, bearer(who), broker)) as address:
        yield address
