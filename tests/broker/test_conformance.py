"""The conformance suite in process, over a SQLite file and SQLite in memory."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from conformance import CHECKS, World


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_conforms(world: World, check: Callable[[World], None]) -> None:
    check(world)
