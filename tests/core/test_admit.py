"""What can never be right is refused by name; what_if; and what policy says about a node."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

import pytest
from core_builders import HEARD, POLICY, PROCESS, RAY, T0, at, fleet, lease, node, request, running, spot

from moorage.core.admit import admit
from moorage.core.decision import Code
from moorage.core.facts import describe
from moorage.core.fleet import Gpu, Node
from moorage.core.health import condition, silent
from moorage.core.invalid import Invalid
from moorage.core.job import Job
from moorage.core.policy import Policy, Pool
from moorage.core.request import CapacityType, Request
from moorage.core.state import State
from moorage.core.what_if import what_if

FLEET = fleet(node("n1", 4, "a"), node("n2", 4, "a"), node("n3", 2, "b", model="A100"), spot("s1", 4, "b"))


@pytest.mark.parametrize(
    ("wants", "job", "message"),
    [
        (request(1, gpus=5), RAY, "gpus_per_worker=5: can never fit: largest node has 4"),
        (request(1, models=("B200",)), RAY, "models=('B200',): the fleet has A100, H100"),
        (
            request(1, required="pod"),
            RAY,
            "topology.required='pod': name one of the fleet's levels: zone, block, rack, host, island",
        ),
        (
            request(1, preferred="pod"),
            RAY,
            "topology.preferred='pod': name one of the fleet's levels: zone, block, rack, host, island",
        ),
        (
            request(1, deadline=at(-1)),
            RAY,
            "deadline='2026-12-01T11:59:59+00:00': give a time in the future; it is 2026-12-01T12:00:00+00:00",
        ),
        (
            request(1, stop_at=at(0)),
            RAY,
            "stop_at='2026-12-01T12:00:00+00:00': give a time in the future; it is 2026-12-01T12:00:00+00:00",
        ),
        (request(1), None, "stop_at=None: a lease without a job needs a time at which it is stopped"),
        (
            request(3, gpus=4),
            RAY,
            (
                "workers=(3, 3): can never fit: the whole fleet has room for 2 of 3 workers; "
                "1 node is less steady than asked for, 1 has too few GPUs for one worker"
            ),
        ),
        (
            request(2, gpus=4, required="host"),
            RAY,
            (
                "workers=(2, 2): can never fit: it needs 8 GPUs in one host, and the largest host is n1 with 4; "
                "1 node is less steady than asked for, 1 has too few GPUs for one worker"
            ),
        ),
        (
            request(8),
            PROCESS,
            (
                "workers=(8, 8): can never fit: it needs 8 GPUs in one host, and the largest host is n1 with 4; "
                "1 node is less steady than asked for"
            ),
        ),
        (
            request(1, labels={"disk": "nvme"}),
            RAY,
            (
                "workers=(1, 1): can never fit: the whole fleet has room for 0 of 1 workers; "
                "1 node is less steady than asked for, 3 have other labels"
            ),
        ),
    ],
)
def test_refused(wants: Request, job: Job | None, message: str) -> None:
    with pytest.raises(Invalid) as error:
        admit(wants, job, FLEET, POLICY, T0)
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("state", "wants", "job"),
    [
        (FLEET, request(2, gpus=4), RAY),
        (FLEET, request(1, models=("B200", "H100")), RAY),
        (FLEET, request(3, gpus=4, capacity=CapacityType.SPOT), RAY),
        (FLEET, request(1, stop_at=at(60)), None),
        (FLEET, request(1, 99), PROCESS),
        (fleet(), request(64, gpus=8, models=("B200",)), RAY),
    ],
)
def test_admitted(state: State, wants: Request, job: Job | None) -> None:
    admit(wants, job, state, POLICY, T0)


def test_what_is_down_or_taken_now_may_be_up_later() -> None:
    down = fleet(*(replace(n, lost=True, cordoned=True, heard=None) for n in FLEET.nodes.values()))
    admit(request(2, gpus=4), RAY, down, POLICY, T0)
    admit(request(2, gpus=4), RAY, running(FLEET, lease("all", request(2, gpus=4))), POLICY, T0)


# --- what_if


def test_what_if_it_fits() -> None:
    answer = what_if(FLEET, POLICY, request(2, 4, gpus=4, preferred="rack"), T0)
    assert (answer.fits, answer.ever, answer.level) == (True, True, "rack")
    assert answer.placement == {"n1": (0, 1, 2, 3), "n2": (0, 1, 2, 3)}
    assert answer.sentence == "2 x 4 GPUs: fits now on n1, n2 in rack a"


def test_what_if_not_now() -> None:
    busy = running(FLEET, lease("x", request(1, gpus=3)))
    answer = what_if(busy, POLICY, request(2, gpus=4), T0)
    assert (answer.fits, answer.ever, answer.placement) == (False, True, {})
    assert answer.sentence == (
        "2 x 4 GPUs: 1 of 2 workers would fit now; "
        "1 node is less steady than asked for, 1 has too few GPUs for one worker, 1 is busy"
    )


def test_what_if_never() -> None:
    answer = what_if(FLEET, POLICY, request(9, gpus=4), T0)
    assert (answer.fits, answer.ever, answer.reasons[0].code) == (False, False, Code.NEVER)
    assert answer.sentence == (
        "9 x 4 GPUs: can never fit: the whole fleet has room for 2 of 9 workers; "
        "1 node is less steady than asked for, 1 has too few GPUs for one worker"
    )


def test_what_if_without_nodes() -> None:
    answer = what_if(fleet(), POLICY, request(1), T0)
    assert (answer.fits, answer.ever, answer.sentence) == (False, True, "1 x 1 GPU: no node has joined the fleet yet")


# --- facts and health

POOLS = Policy(
    pools=(
        Pool(
            name="spot",
            capacity=CapacityType.SPOT,
            price=Decimal("0.6"),
            on_demand_price=Decimal(2),
            match={"pool": "s", "gpu": "h"},
        ),
        Pool(name="rest", price=Decimal(2), match={"gpu": "h"}),
    )
)


def test_describe() -> None:
    labels = {"pool": "s", "gpu": "h", "topology.k8s.aws/network-node-layer-3": "r9", "moorage.io/zone": "z1", "x": "y"}
    found = describe(Node(id="n", labels=labels, price=Decimal(99), pool="mine"), POOLS)
    assert (found.pool, found.capacity, found.price, found.on_demand_price) == ("spot", "spot", Decimal("0.6"), 2)
    assert list(found.domains.items()) == [("zone", "z1"), ("rack", "r9")]
    rest = describe(Node(id="n", labels={"gpu": "h"}), POOLS)
    assert (rest.pool, rest.on_demand_price, rest.domains) == ("rest", Decimal(2), {})
    assert describe(Node(id="n"), POOLS).pool == "default"


def test_a_device_index_beyond_the_word_is_refused() -> None:
    with pytest.raises(Invalid, match=r"gpus\.index=64: number the GPUs of a node from 0 to 63"):
        describe(Node(id="n", gpus=(Gpu(index=64, uuid="u", model="m"),)), POLICY)


@pytest.mark.parametrize(
    ("facts", "word"),
    [
        ({}, "ready"),
        ({"cordoned": True}, "cordoned"),
        ({"cordoned": True, "draining": True}, "draining"),
        ({"draining": True, "heard": HEARD - 15}, "stale"),
        ({"heard": None}, "stale"),
        ({"heard": HEARD - 20, "notice_deadline": at(9)}, "notice"),
        ({"lost": True, "notice_deadline": at(9)}, "lost"),
    ],
)
def test_condition(facts: dict[str, object], word: str) -> None:
    assert condition(node("n", **facts), HEARD, POLICY) == word


def test_silence() -> None:
    assert silent(node("n", heard=HEARD - 3), HEARD) == 3
    assert silent(node("n", heard=HEARD + 3), HEARD) == 0
    assert silent(node("n", heard=None), HEARD) is None
