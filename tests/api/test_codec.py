"""What a person wrote by hand becomes a value, or the slip of the pen is named."""

from __future__ import annotations

from decimal import Decimal

import pytest

from moorage.api.codec import build
from moorage.core.invalid import Invalid
from moorage.core.policy import Policy
from moorage.core.request import Request, Topology


@pytest.mark.parametrize(
    ("kind", "written", "sentence"),
    [
        (Request, {"worker": [1, 2]}, "worker=[1, 2]: no such key; did you mean workers?"),
        (Request, {"topology": {"requird": "rack"}}, "topology.requird='rack': no such key; did you mean required?"),
        (Request, {"topology": {"x": 1}}, "topology.x=1: no such key; known: preferred, required"),
        (Policy, {"pools": [{"name": "a", "prize": 3}]}, "pools.0.prize=3: no such key; did you mean price?"),
        (Policy, {"elastic": {"colldown_s": 3}}, "elastic.colldown_s=3: no such key; did you mean cooldown_s?"),
        (Policy, {"pools": 3}, "pools=3: Input should be a list"),
        (Policy, {"teams": [3]}, "teams.0=3: Input should be a dictionary or an instance of Team"),
    ],
)
def test_a_slip_is_named(kind: type, written: dict[str, object], sentence: str) -> None:
    with pytest.raises(Invalid) as error:
        build(kind, written)
    assert str(error.value) == sentence


def test_keys_of_the_writers_own_are_not_ours_to_know() -> None:
    made = build(Policy, {"pools": [{"name": "a", "price": "1.50", "match": {"anything": "x"}}]})
    assert (made.pools[0].price, made.pools[0].match) == (Decimal("1.50"), {"anything": "x"})
    assert build(Request, {"topology": Topology(required="rack")}).topology.required == "rack"
