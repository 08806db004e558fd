"""Ray's demand as the broker's requests."""

from __future__ import annotations

import pytest

from moorage.core.invalid import Invalid
from moorage.core.job import JobKind, OwnerSilent
from moorage.core.request import CapacityType, Topology
from moorage.ray.demand import (
    CPUS_PER_WORKER,
    Bundle,
    Cluster,
    Gang,
    Selector,
    Singles,
    gang_owner,
    gang_shape,
    shape_id,
    single_shape,
    submission,
)

PG = "0123456789abcdef0123456789ab01000000"
GPU2 = {"GPU": 2.0, "CPU": 1.0}
KEY = (Selector("moorage.io/gang", ("g1",)),)


def gang(strategy: str, *resources: dict[str, float], selectors: tuple[Selector, ...] = ()) -> Gang:
    return Gang(PG, strategy, tuple(Bundle(each, selectors) for each in resources))


@pytest.mark.parametrize(
    ("strategy", "bundles", "workers", "gpus", "cpus"),
    [
        ("PACK", [GPU2, GPU2], 2, 2, 1),
        ("SPREAD", [GPU2, GPU2], 2, 2, 1),
        ("STRICT_SPREAD", [GPU2, GPU2], 2, 2, 1),
        ("STRICT_PACK", [GPU2, GPU2], 1, 4, 2),
        # A trainer's CPU bundle shares a raylet; each raylet is as large as the largest.
        ("PACK", [{"CPU": 1}, {"GPU": 1, "CPU": 2}, {"GPU": 1, "CPU": 2}], 2, 1, 3),
        ("STRICT_SPREAD", [{"CPU": 1}, {"GPU": 1}], 2, 1, 1),
        ("STRICT_PACK", [{"CPU": 4}, {"GPU": 1}], 1, 1, 4),
        # Unequal bundles: all as the largest.
        ("PACK", [{"GPU": 1}, {"GPU": 4}], 2, 4, 0),
        # Shares of a GPU take a whole one.
        ("PACK", [{"GPU": 0.5, "CPU": 0.5}], 1, 1, 0.5),
        ("STRICT_PACK", [{"GPU": 0.5}, {"GPU": 0.5}, {"GPU": 0.5}], 1, 2, 0),
    ],
)
def test_the_shape_holds_all_bundles(
    strategy: str, bundles: list[dict[str, float]], workers: int, gpus: int, cpus: float
) -> None:
    shape = gang_shape(gang(strategy, *bundles))
    assert (shape.workers, shape.gpus, shape.cpus) == (workers, gpus, cpus)


@pytest.mark.parametrize(
    ("bundle", "words"),
    [
        (Bundle({"CPU": 8}), "ask for at least one GPU"),
        (Bundle({"GPU": 1, "tpu": 1}), "'tpu': leave custom resources out"),
        (Bundle({"GPU": 1}, (Selector("zone", ("a", "b")),)), "zone in a, b"),
        (Bundle({"GPU": 1}, (Selector("zone", ("a",), negated=True),)), "zone not in a"),
        (Bundle({"GPU": 1}, (Selector("ray.io/accelerator-type", ("T4",), negated=True),)), "not in T4"),
    ],
)
def test_what_no_raylet_can_hold_is_refused_with_a_reason(bundle: Bundle, words: str) -> None:
    with pytest.raises(Invalid, match=words):
        gang_shape(Gang(PG, "PACK", (bundle,)))


def test_bundles_that_want_different_racks_are_no_gang() -> None:
    bundles = tuple(Bundle({"GPU": 1}, (Selector("moorage.io/rack", (rack,)),)) for rack in ("r1", "r2"))
    with pytest.raises(Invalid, match="same value in every bundle"):
        gang_shape(Gang(PG, "PACK", bundles))


def test_accelerators_become_models_and_other_labels_stay_labels() -> None:
    selectors = (Selector("ray.io/accelerator-type", ("A100", "H100")), Selector("moorage.io/rack", ("r1",)), *KEY)
    shape = gang_shape(gang("PACK", {"GPU": 1, "accelerator_type:B200": 0.001}, selectors=selectors))
    assert shape.models == ("A100", "B200", "H100")
    assert shape.labels == {"moorage.io/rack": "r1"}
    assert shape.steering == {"moorage.io/gang": "g1"}


def test_a_gang_becomes_a_raylet_lease_that_its_selector_finds(cluster: Cluster) -> None:
    wishes = (
        *KEY,
        Selector("moorage.io/required", ("rack",)),
        Selector("moorage.io/priority", ("7",)),
        Selector("moorage.io/capacity", ("spot",)),
        Selector("team-label", ("x",)),
    )
    group = gang("PACK", GPU2, GPU2, selectors=wishes)
    made = submission(cluster, gang_owner(cluster, group), gang_shape(group), 1)
    assert made.owner == {
        "ray.head": "head@10.0.0.1:6379",
        "ray.cluster": "session_1",
        "ray.placement_group": PG,
        "ray.job": "01000000",
    }
    request = made.request
    assert (request.workers, request.gpus_per_worker, request.cpus_per_worker) == ((2, 2), 2, 1)
    assert request.topology == Topology(required="rack")
    assert (request.priority, request.capacity, request.labels) == (7, CapacityType.SPOT, {"team-label": "x"})
    job = made.job
    assert job is not None
    assert (job.kind, job.head, job.on_owner_silent) == (JobKind.RAYLET, "10.0.0.1:6379", OwnerSilent.RELEASE)
    assert job.env == {CPUS_PER_WORKER: "1"}
    # Ray only places on nodes that carry every label that was asked for.
    assert job.ray_labels == {s.key: s.values[0] for s in wishes}


def test_without_wishes_a_rack_is_preferred(cluster: Cluster) -> None:
    group = gang("PACK", GPU2)
    made = submission(cluster, gang_owner(cluster, group), gang_shape(group), 1)
    assert made.request.topology == Topology(preferred="rack")


@pytest.mark.parametrize(("key", "value"), [("moorage.io/priority", "high"), ("moorage.io/capacity", "cheap")])
def test_a_steering_label_with_an_unknown_value_is_refused(cluster: Cluster, key: str, value: str) -> None:
    group = gang("PACK", GPU2, selectors=(Selector(key, (value,)),))
    with pytest.raises(Invalid, match=value):
        submission(cluster, gang_owner(cluster, group), gang_shape(group), 1)


def test_the_client_id_is_the_owner_and_the_generation(cluster: Cluster) -> None:
    group, other = gang("PACK", GPU2), Gang(PG.replace("0123", "3210"), "PACK", (Bundle(GPU2),))
    ids = [
        submission(cluster, gang_owner(cluster, each), gang_shape(each), generation).client_id
        for each, generation in ((group, 1), (group, 1), (group, 2), (other, 1))
    ]
    assert ids[0] == ids[1]
    assert len(set(ids)) == 3


def test_equal_singles_have_one_shape_name() -> None:
    one = Singles(Bundle({"GPU": 1.0, "CPU": 1.0}), 3)
    same = Singles(Bundle({"CPU": 1.0, "GPU": 1.0}), 1)
    other = Singles(Bundle({"CPU": 1.0, "GPU": 1.0}, KEY), 1)
    names = [shape_id(single_shape(each)) for each in (one, same, other)]
    assert names[0] == names[1] != names[2]
    assert names[0].startswith("g1-c1-m0-")
