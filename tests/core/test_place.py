"""Where gangs go: domains, nodes, islands, devices, prices. The fleet is drawn above each table."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from core_builders import HEARD, POLICY, at, fleet, lease, node, places, request, spot, step

from moorage.core.columns import columns
from moorage.core.decision import Code
from moorage.core.fleet import Gpu
from moorage.core.place import NotPlaced, Placed, place
from moorage.core.request import CapacityType, Request
from moorage.core.state import State


def racks() -> State:
    """
    rack a: n1 [0123] n2 [0123]
    rack b: n3 [0123] n4 [0123 4567]
    rack c: n5 [01]
    all on-demand, 2.00 USD
    """
    return fleet(node("n1", 4, "a"), node("n2", 4, "a"), node("n3", 4, "b"), node("n4", 8, "b"), node("n5", 2, "c"))


def mixed() -> State:
    """
    rack a: od1 [0123] 2.00    s1 [0123] 0.60
    rack b: od2 [0123] 2.00    s2 [0123] 0.60
    """
    return fleet(node("od1", 4, "a"), spot("s1", 4, "a"), node("od2", 4, "b"), spot("s2", 4, "b"))


def islands() -> State:
    """
    n1 [0123|4567]  two NVLink islands of four
    n2 [01|23]      two of two
    """
    return fleet(node("n1", 8, "a", islands=4), node("n2", 4, "a", islands=2))


CASES: list[tuple[str, State, Request, dict[str, tuple[int, ...]] | None, str]] = [
    ("the tightest node wins", racks(), request(1, gpus=2), {"n5": (0, 1)}, "host"),
    ("lowest devices first", racks(), request(1, gpus=3), {"n1": (0, 1, 2)}, "host"),
    ("a gang goes on one node if one holds it", racks(), request(6), {"n4": (0, 1, 2, 3, 4, 5)}, "host"),
    ("else on few nodes of one rack", racks(), request(3, gpus=4), {"n3": (0, 1, 2, 3), "n4": tuple(range(8))}, "rack"),
    ("required rack", racks(), request(2, gpus=4, required="rack"), {"n4": tuple(range(8))}, "host"),
    ("required rack that is too small everywhere", racks(), request(4, gpus=4, required="rack"), None, ""),
    (
        "no wish: across racks if it must",
        racks(),
        request(5, gpus=4),
        {"n1": (0, 1, 2, 3), "n2": (0, 1, 2, 3), "n3": (0, 1, 2, 3), "n4": tuple(range(8))},
        "",
    ),
    (
        "preferred rack that fits",
        racks(),
        request(3, gpus=4, preferred="rack"),
        {"n3": (0, 1, 2, 3), "n4": tuple(range(8))},
        "rack",
    ),
    (
        "preferred rack that does not fit widens",
        racks(),
        request(5, gpus=4, preferred="rack"),
        {"n1": (0, 1, 2, 3), "n2": (0, 1, 2, 3), "n3": (0, 1, 2, 3), "n4": tuple(range(8))},
        "",
    ),
    ("required host", racks(), request(2, gpus=4, required="host"), {"n4": tuple(range(8))}, "host"),
    (
        "spot is taken where it is tolerated and cheaper",
        mixed(),
        request(2, gpus=2, capacity=CapacityType.SPOT),
        {"s1": (0, 1, 2, 3)},
        "host",
    ),
    ("spot is never given to who asked for on-demand", mixed(), request(2, gpus=2), {"od1": (0, 1, 2, 3)}, "host"),
    (
        "price before racks without a wish",
        mixed(),
        request(2, gpus=4, capacity=CapacityType.SPOT),
        {"s1": (0, 1, 2, 3), "s2": (0, 1, 2, 3)},
        "",
    ),
    (
        "a rack before the price with one",
        mixed(),
        request(2, gpus=4, capacity=CapacityType.SPOT, preferred="rack"),
        {"od1": (0, 1, 2, 3), "s1": (0, 1, 2, 3)},
        "rack",
    ),
    ("the tightest island", islands(), request(1, gpus=2, required="island"), {"n2": (0, 1)}, "island"),
    ("an island of four", islands(), request(1, gpus=4, required="island"), {"n1": (0, 1, 2, 3)}, "island"),
    ("an island before a tighter node", islands(), request(4, preferred="island"), {"n1": (0, 1, 2, 3)}, "island"),
    ("no island holds five", islands(), request(5, required="island"), None, ""),
    ("five preferred in an island: a host", islands(), request(5, preferred="island"), {"n1": (0, 1, 2, 3, 4)}, "host"),
]  # fmt: skip


@pytest.mark.parametrize(("state", "wants", "expected", "level"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_places(state: State, wants: Request, expected: dict[str, Any] | None, level: str) -> None:
    answer = place(columns(state, POLICY), wants, wants.workers[0])
    if expected is None:
        assert isinstance(answer, NotPlaced)
    else:
        assert isinstance(answer, Placed), answer
        assert ({spot.node: spot.gpus for spot in answer.spots}, answer.level) == (expected, level)


def test_workers_stay_inside_islands() -> None:
    """n1 [01|234|567]: three workers of 2 GPUs share no island with a cut through it if they need not."""
    gpus = tuple(Gpu(index=i, uuid=str(i), model="H100", island=n) for i, n in enumerate((0, 0, 1, 1, 1, 2, 2, 2)))
    answer = place(columns(fleet(node("n1", gpus)), POLICY), request(3, gpus=2), 3)
    assert isinstance(answer, Placed)
    assert answer.spots[0].workers == ((0, 1), (2, 3), (5, 6))


def test_6_plus_2_in_two_islands_are_not_8() -> None:
    """n1 [012345|67]: 8 free GPUs, but no island of 8."""
    gpus = tuple(Gpu(index=i, uuid=str(i), model="H100", island=int(i > 5)) for i in range(8))
    answer = place(columns(fleet(node("n1", gpus)), POLICY), request(8, required="island"), 8)
    assert isinstance(answer, NotPlaced)
    assert dict(answer.reasons[0].facts) == {"level": "island", "largest": "n1", "free": "6"}


def test_unknown_islands_never_satisfy_a_required_island() -> None:
    answer = place(columns(fleet(node("n1", 8)), POLICY), request(2, required="island"), 2)
    assert isinstance(answer, NotPlaced)


def test_racks_of_two_zones_with_one_name_are_two() -> None:
    """zone x: n1 [01] in rack 1;  zone y: n2 [01] in rack 1"""
    one = node("n1", 2, domains={"zone": "x", "rack": "1"})
    two = node("n2", 2, domains={"zone": "y", "rack": "1"})
    answer = place(columns(fleet(one, two), POLICY), request(4, required="rack"), 4)
    assert isinstance(answer, NotPlaced)


SICK = {
    Code.LOST: {"lost": True},
    Code.DRAINING: {"draining": True},
    Code.CORDONED: {"cordoned": True},
    Code.NOTICE: {"notice_deadline": at(120)},
    Code.STALE: {"heard": HEARD - 20},
    Code.NO_GPU: {"gpus": ()},
    Code.MODEL: {"gpus": node("x", 4, model="A100").gpus},
    Code.GPU_MEMORY: {"gpus": tuple(replace(g, memory=None) for g in node("x").gpus)},
    Code.CAPACITY: {"capacity": CapacityType.SPOT},
    Code.LABELS: {"labels": {"team": "blue"}},
    Code.UNHEALTHY: {"gpus": tuple(replace(g, healthy=False) for g in node("x").gpus)},
    Code.TOO_SMALL: {"gpus": node("x", 1).gpus},
    Code.CPU: {"cpus": 3.0},
    Code.MEMORY: {"memory": 3 << 30},
}


@pytest.mark.parametrize("code", SICK)
def test_each_rule_excludes_one_node_and_counts_it(code: Code) -> None:
    """n1 [0123] and n2 [0123] are well; n3 is not, in one way at a time."""
    well = {"labels": {"team": "red"}, "cpus": 64.0, "memory": 64 << 30}
    third = node("n3", **{**well, **SICK[code]})
    state = fleet(node("n1", **well), node("n2", **well), third)
    wants = request(
        7, gpus=2, models=("H100",), gpu_memory=40 << 30, labels={"team": "red"}, cpus_per_worker=2,
        memory_per_worker=2 << 30,
    )  # fmt: skip
    if code in (Code.CPU, Code.MEMORY):
        wants = replace(wants, cpus_per_worker=4, memory_per_worker=4 << 30)
    answer = place(columns(state, POLICY), wants, 7)
    assert isinstance(answer, NotPlaced)
    assert [(r.code, r.nodes) for r in answer.reasons] == [(Code.TOO_SMALL, 0), (code, 1)]
    assert answer.reasons[0].facts == {"fits": "4"}


def test_unknown_is_usable_where_nothing_is_asked() -> None:
    """Health, CPU, memory and islands not known: a node that says little is still a node."""
    bare = node("n1", tuple(Gpu(index=i, uuid=str(i), model="H100") for i in range(2)))
    assert bare.cpus is None
    assert isinstance(place(columns(fleet(bare), POLICY), request(2, cpus_per_worker=4), 2), Placed)


def test_cpu_bounds_the_workers_of_a_node() -> None:
    """n1 [0123] with 10 cores: two workers of 4 cores, not four."""
    state = fleet(node("n1", cpus=10.0))
    assert isinstance(place(columns(state, POLICY), request(2, cpus_per_worker=4), 2), Placed)
    assert isinstance(place(columns(state, POLICY), request(3, cpus_per_worker=4), 3), NotPlaced)
    state, _ = step(
        state.with_leases(lease("one", request(2, cpus_per_worker=4)), lease("two", request(1, cpus_per_worker=4)))
    )
    assert (places(state, "one"), places(state, "two")) == ({"n1": (0, 1)}, {})


def test_an_unhealthy_gpu_is_left_out() -> None:
    gpus = tuple(replace(g, healthy=g.index != 1) for g in node("n1").gpus)
    answer = place(columns(fleet(node("n1", gpus)), POLICY), request(3), 3)
    assert isinstance(answer, Placed)
    assert answer.spots[0].gpus == (0, 2, 3)


def test_price_orders_pools_inside_a_rack() -> None:
    cheap = node("n2", 4, "a", price=Decimal("1.50"))
    answer = place(columns(fleet(node("n1", 4, "a"), cheap), POLICY), request(6, required="rack"), 6)
    assert isinstance(answer, Placed)
    assert {spot.node: len(spot.gpus) for spot in answer.spots} == {"n2": 4, "n1": 2}
