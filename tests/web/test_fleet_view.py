"""What the fleet page says, word for word."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from decimal import Decimal

import pytest
from web_samples import NOW, TRAIN, demo, empty, large, lease, long_names, node

from moorage.api.values import GpuUse
from moorage.core.request import Request, Topology
from moorage.web import fleet_view, text
from moorage.web.fleet_view import Cell


@pytest.mark.parametrize(
    ("view", "cells"),
    [
        (node("n", [TRAIN, None]), [Cell.HELD, Cell.FREE]),
        (node("n", [TRAIN, None], condition="cordoned"), [Cell.HELD, Cell.CLOSED]),
        (node("n", [None, None], condition="draining"), [Cell.CLOSED, Cell.CLOSED]),
        (node("n", [None], condition="notice"), [Cell.CLOSED]),
        # Nobody can tell whether a silent node's GPUs are free.
        (node("n", [TRAIN, None], condition="stale"), [Cell.HELD, Cell.UNKNOWN]),
        (node("n", [None], condition="lost"), [Cell.UNKNOWN]),
        (node("n", [TRAIN, None], broken=[0, 1]), [Cell.HELD, Cell.BROKEN]),
        (node("n", [None], broken=[0], condition="stale"), [Cell.UNKNOWN]),
    ],
)
def test_cells(view, cells) -> None:
    found = [fleet_view.cell(view, use, gpu) for use, gpu in zip(view.gpus, view.node.gpus, strict=True)]
    assert found == cells


def test_a_gpu_that_its_node_no_longer_reports_is_drawn() -> None:
    view = node("n", [None])
    view = replace(view, gpus=(*view.gpus, GpuUse(index=5, lease=TRAIN)))
    built = fleet_view.build(replace(demo(), nodes=(view,)), operator=False)
    assert [cell[:2] for cell in built["groups"][0]["nodes"][0]["cells"]] == [["f", 0], ["h", 5]]


def test_totals_of_the_demo() -> None:
    assert fleet_view.totals(demo()) == {
        "held": "8",
        "held_of": "of 16 held",
        "use_note": "8 held \u00b7 4 free \u00b7 4 not usable",
        "nodes_note": "4 nodes, 1 not ready",
        # 4 on demand at 2.49, 4 spot at 0.95.
        "rate": "$13.76",
        "rate_note": "$6.16/h less than on demand",
        "running": "2",
        "lease_note": "1 starting",
        "queued": "1",
        "oldest": "longest wait 4 min",
    }


def test_totals_of_nothing() -> None:
    found = fleet_view.totals(empty())
    assert (found["held_of"], found["rate"], found["oldest"]) == ("of 0 held", "$0.00", "nothing waits")


def test_a_pool_without_a_price_is_said_not_counted_as_free_of_charge() -> None:
    fleet = replace(demo(), nodes=(node("n", [TRAIN, TRAIN], price="0"),))
    assert fleet_view.totals(fleet)["rate_note"].startswith("$4.98/h less") is True
    bare = replace(fleet.nodes[0], node=replace(fleet.nodes[0].node, on_demand_price=Decimal(0)))
    assert fleet_view.totals(replace(fleet, nodes=(bare,)))["rate_note"] == "2 held GPUs without a price"
    assert (
        fleet_view.build(replace(fleet, nodes=(bare,)), operator=False)["groups"][0]["nodes"][0]["price"] == "no price"
    )


def test_groups_are_the_narrowest_level_in_natural_order() -> None:
    nodes = (
        node("n10", [None], rack="r10"),
        node("n2", [None], rack="r2"),
        node("n1", [None], rack="r2"),
        node("x", [None], rack=None),
    )
    groups = fleet_view.build(replace(demo(), nodes=nodes), operator=False)["groups"]
    assert [(g["title"], g["above"], [n["id"] for n in g["nodes"]]) for g in groups] == [
        ("rack r2", "zone eu-1a", ["n1", "n2"]),
        ("rack r10", "zone eu-1a", ["n10"]),
        ("no place known", "", ["x"]),
    ]


def test_rows_of_the_demo() -> None:
    built = fleet_view.build(demo(), operator=True)
    train, sweep, notebook = built["leases"]
    assert train["owner"] == "train_digits \u00b7 train"
    assert train["where"] == "node-a1 \u00d72, node-a2, node-b1 (draining)"
    assert (train["workers"], train["gpus"], train["step"], train["done"]) == ("4 of 1\u20134", 4, "1,840", 65)
    assert (train["spent"], train["loss"], train["started"]) == ("$0.8423", "0.2135", "8 min")
    assert sweep["owner"].endswith("[7]")
    assert (notebook["owner"], notebook["state"], notebook["step"], notebook["done"]) == (
        "mara",
        "starting",
        "\u2013",
        None,
    )
    (waits,) = built["queue"]
    assert waits["asks"] == "2 workers \u00d7 4 H100 GPUs, on-demand, one rack"
    assert waits["reason"].startswith("2 x 4 H100 in one rack")


def test_a_notice_counts_down() -> None:
    nodes = fleet_view.build(demo(), operator=False)["groups"][1]["nodes"]
    assert (nodes[0]["badge"], nodes[0]["note"]) == ("goes in 94 s", "the cloud takes it in 94 s")


def test_a_lease_looks_the_same_everywhere_and_two_rarely_alike() -> None:
    marks = [(text.hue(v.lease.id), text.letter(v.lease.id)) for v in large(10).leases]
    assert marks == [(text.hue(v.lease.id), text.letter(v.lease.id)) for v in large(10).leases]
    assert len(set(marks)) > 0.8 * len(marks)


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(-3, "0 s"), (0, "0 s"), (94, "94 s"), (120, "2 min"), (7100, "118 min"), (7300, "2 h"), (200_000, "2 d")],
)
def test_spans(seconds: float, said: str) -> None:
    assert text.span(seconds) == said


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        ({}, "no owner labels"),
        ({"airflow.dag_id": "d", "airflow.task_id": "t", "airflow.map_index": "-1"}, "d \u00b7 t"),
        ({"airflow.dag_id": "d", "airflow.task_id": "t", "airflow.map_index": "3"}, "d \u00b7 t [3]"),
        ({"ray.gang": "g1", "person": "mara"}, "g1 \u00b7 mara"),
    ],
)
def test_owners(labels: dict[str, str], said: str) -> None:
    assert text.owner(labels) == said


@pytest.mark.parametrize(
    ("amount", "said"), [("0", "$0.00"), ("0.01234", "$0.0123"), ("1.005", "$1.00"), ("1234567.8", "$1,234,567.80")]
)
def test_money(amount: str, said: str) -> None:
    assert text.usd(Decimal(amount)) == said


def test_asking() -> None:
    asked = Request(workers=(1, 4), gpus_per_worker=2, topology=Topology(preferred="rack"), priority=5)
    assert text.asks(asked) == "1\u20134 workers \u00d7 2 GPUs, on-demand, one rack preferred, priority 5"


def test_a_thousand_nodes_stay_small() -> None:
    import json

    built = json.dumps(fleet_view.build(large(), operator=False))
    assert len(built) < 700_000


def test_waiting_says_why_or_that_it_was_not_tried() -> None:
    fleet = replace(demo(), queue=(lease("l1", {}, submitted_at=NOW - timedelta(hours=3)),))
    (row,) = fleet_view.build(fleet, operator=False)["queue"]
    assert (row["reason"], row["since"]) == ("not tried yet", "3 h")
    assert fleet_view.build(long_names(), operator=False)["frozen"] is True


@pytest.mark.parametrize(
    ("amount", "shown"),
    [("3.2", "$3.20"), ("12", "$12.00"), ("1.125", "$1.125"), ("0.0035", "$0.0035"), ("0", "no price")],
)
def test_prices_are_whole_cents_at_least(amount: str, shown: str) -> None:
    assert text.price(Decimal(amount)) == shown


def test_a_domain_named_after_its_level_needs_no_second_word() -> None:
    nodes = (node("a", [None], rack="rack-7"), node("b", [None], rack="r8"))
    groups = fleet_view.build(replace(demo(), nodes=nodes), operator=False)["groups"]
    assert sorted(group["title"] for group in groups) == ["rack r8", "rack-7"]
