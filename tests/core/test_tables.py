"""Every (state, event) pair of both tables, decided on purpose."""

from __future__ import annotations

from itertools import product

import pytest

from moorage.core.lease import (
    ALLOCATION_TABLE,
    LEASE_TABLE,
    AllocationEvent,
    AllocationState,
    IllegalTransition,
    LeaseEvent,
    LeaseState,
    next_allocation_state,
    next_lease_state,
)

#: One row per state; a column per event; "-" is refused.
LEASES = """
             grant    heard     retry   stop      freed
    queued   granted  -         -       stopping  -
    granted  -        running   queued  stopping  -
    running  -        running   queued  stopping  -
    stopping -        stopping  -       stopping  ended
    ended    -        -         -       -         -
"""
ALLOCATIONS = """
             started   drain     gone
    reserved held      draining  freed
    held     held      draining  freed
    draining draining  draining  freed
    freed    -         -         freed
"""


def cells(drawing: str) -> dict[tuple[str, str], str]:
    head, *rows = [line.split() for line in drawing.strip().splitlines()]
    return {(row[0], event): row[1 + n] for row in rows for n, event in enumerate(head)}


def test_the_drawings_show_every_pair() -> None:
    assert cells(LEASES).keys() == {(s.value, e.value) for s, e in product(LeaseState, LeaseEvent)}
    assert cells(ALLOCATIONS).keys() == {(s.value, e.value) for s, e in product(AllocationState, AllocationEvent)}


@pytest.mark.parametrize(("state", "event"), list(product(LeaseState, LeaseEvent)))
def test_lease_pairs(state: LeaseState, event: LeaseEvent) -> None:
    expected = cells(LEASES)[state, event]
    if expected == "-":
        with pytest.raises(IllegalTransition, match=f"lease x is {state}: {event} is not possible; possible: "):
            next_lease_state("x", state, event)
    else:
        assert next_lease_state("x", state, event) == expected == LEASE_TABLE[state, event]


@pytest.mark.parametrize(("state", "event"), list(product(AllocationState, AllocationEvent)))
def test_allocation_pairs(state: AllocationState, event: AllocationEvent) -> None:
    expected = cells(ALLOCATIONS)[state, event]
    if expected == "-":
        with pytest.raises(IllegalTransition, match=f"allocation x is {state}: {event} is not possible"):
            next_allocation_state("x", state, event)
    else:
        assert next_allocation_state("x", state, event) == expected == ALLOCATION_TABLE[state, event]
