"""A real broker behind the app, over HTTP."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from moorage.broker import Broker
from moorage.core.policy import Policy
from moorage.web import bearer, create_app

# Helpers of these tests lie beside them, and the broker's conformance suite beside its own; pytest's importlib mode
# puts no folder on the path.
HERE = Path(__file__).parent
for folder in (HERE, HERE.parent / "broker"):
    sys.path.insert(0, str(folder))


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    """On SQLite, with its own threads."""
    policy = Policy(unwatch_grace_s=3.0)
    with Broker.open(f"sqlite:///{tmp_path}/moorage.db", policy=policy) as made:
        made.start()
        yield made


@pytest.fixture
def url(broker: Broker) -> Iterator[str]:
    """Served with 8 threads for broker calls."""
    from web_server import served, who

    app = create_app(broker.acting, bearer(who), broker, threads=8)
    with served(app) as address:
        yield address
