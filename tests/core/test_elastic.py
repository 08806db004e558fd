"""When a gang grows and shrinks, with the sentence it gives."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal

import pytest
from core_builders import (
    POLICY,
    PROCESS,
    T0,
    at,
    fleet,
    hearing,
    lease,
    node,
    of_kind,
    places,
    request,
    run,
    running,
    spot,
    step,
    training,
)

from moorage.core.decision import Retarget
from moorage.core.elastic import resize_seconds
from moorage.core.job import Observation
from moorage.core.lease import Why
from moorage.core.loss import trend
from moorage.core.policy import Policy, Team
from moorage.core.request import CapacityType
from moorage.core.state import State
from moorage.core.throughput import throughput

TOTAL = 10_000


def falling(samples: int) -> float:
    return 2.0 * math.exp(-samples / 3000)


def flat(samples: int) -> float:
    return 0.5


def curve(
    until: int, workers: int, rate: float, loss: Callable[[int], float | None], *, every: int = 100, start: int = 0
) -> tuple[Observation, ...]:
    """Observations each `every` samples; the last one is now."""
    marks = range(start + every, until + 1, every)
    return tuple(
        Observation(
            at=T0 - timedelta(seconds=(until - s) / rate),
            step=s // 10,
            samples=s,
            workers=workers,
            loss=loss(s),
            throughput=rate,
        )
        for s in marks
    )


def nodes() -> State:
    return fleet(node("od1", 4, "a"), spot("s1", 4, "a"), node("od2", 4, "b"), spot("s2", 4, "b"))


def taken(state: State, **gpus: int) -> State:
    """So many GPUs of each named node taken by processes."""
    for name, count in gpus.items():
        others = [replace(n, cordoned=n.id != name) for n in state.nodes.values()]
        wants = request(1, gpus=count, capacity=CapacityType.SPOT)
        after = running(state.with_nodes(*others), lease(f"on-{name}", wants, PROCESS))
        state = after.with_nodes(*state.nodes.values())
    return state


def case(
    state: State | None = None,
    *,
    workers: int = 1,
    done: int = 3000,
    rate: float = 31.0,
    loss: Callable[[int], float | None] = falling,
    history: tuple[Observation, ...] | None = None,
    **wants: object,
) -> State:
    """`x` trains on s1 with `workers` workers, `done` of TOTAL samples behind it, settled an hour ago.

    rack a: od1 [0123] 2.00   s1 [0123] 0.60 spot
    rack b: od2 [0123] 2.00   s2 [0123] 0.60 spot
    """
    facts = {"capacity": CapacityType.SPOT, "preferred": "rack", **wants}
    state = running(state or nodes(), lease("x", request(1, 4, **facts)))
    if workers > 1:
        from test_attempts import _grown

        state = _grown(state, workers)
    x = state.leases["x"]
    points = history if history is not None else curve(done, workers, rate, loss)
    progress = training(
        x, samples_done=done, samples_total=TOTAL, step=done // 10, loss=points[-1].loss if points else 0
    )
    long_ago = T0 - timedelta(hours=1)
    resized = long_ago if x.resized_at else None
    settled = replace(x, observations=points, progress=progress, granted_at=long_ago, resized_at=resized)
    return state.with_leases(settled)


def resizes(state: State, policy: Policy = POLICY) -> list[Retarget]:
    return of_kind(step(state, policy)[1], Retarget)


def test_grows_and_says_why() -> None:
    state = case()
    after, answer = step(state)
    (grow,) = of_kind(answer, Retarget)
    assert grow.why is Why.GROW
    assert grow.reason == (
        "grow 1 -> 4: 31 samples/s at 1 worker, about 114 expected at 4; 70 % of the samples left and the loss fell "
        "23 % in the last window; saves about 164 s for a resize of 8 s"
    )
    assert places(after, "x") == {"s1": (0, 1, 2, 3)}
    assert [(a.workers, a.gpus) for a in grow.add] == [(1, (1,)), (1, (2,)), (1, (3,))]
    assert after.leases["x"].target.hold[:2] == state.leases["x"].target.hold, "what it has, it keeps"
    assert step(after)[1].decisions == (), "once"


@pytest.mark.parametrize(
    ("why", "change"),
    [
        ("nearly done", {"done": 9950}),
        ("few observations", {"history": curve(3000, 1, 31.0, falling)[-4:]}),
        ("throughput not known", {"history": curve(3000, 1, 31.0, falling, every=3000)}),
        ("too expensive", {"budget_usd": Decimal("0.05")}),
        ("loss not improving", {"loss": lambda s: 0.5}),
        ("loss rising", {"loss": lambda s: 0.5 + s / TOTAL}),
    ],
)
def test_does_not_grow(why: str, change: dict[str, object]) -> None:
    assert resizes(case(**change)) == []


def test_without_any_loss_goodput_alone_grows() -> None:
    (grow,) = resizes(case(loss=lambda s: None))
    assert "the loss says nothing yet" in grow.reason


def test_not_while_frozen_or_cooling_down_or_behind() -> None:
    assert resizes(case(), Policy(frozen=True)) == []
    state = case(workers=2)
    x = state.leases["x"]
    assert resizes(state)
    assert resizes(state.with_leases(replace(x, resized_at=at(-9)))) == []
    behind = replace(x, progress=replace(x.progress, target_revision=x.target.revision - 1))
    assert resizes(state.with_leases(behind)) == []
    other_size = replace(x, progress=replace(x.progress, workers=1))
    assert resizes(state.with_leases(other_size)) == []


def test_not_past_someone_who_waits() -> None:
    state = case().with_leases(lease("w", request(1, gpus=8), PROCESS, submitted_at=at(1)))
    assert resizes(state) == []
    low = state.with_leases(replace(state.leases["w"], request=request(1, gpus=8, priority=-1)))
    assert resizes(low), "a weaker claim does not hold it back"


def test_within_the_quota() -> None:
    policy = Policy(teams=(Team(name="red", quota=3),))
    after, _ = step(case(), policy)
    assert places(after, "x") == {"s1": (0, 1, 2)}


def test_takes_what_is_free_near() -> None:
    """s1 has one more free GPU; od1 is in its rack, s2 is cheaper and in the other one."""
    state = case(taken(nodes(), s1=2))
    assert places(state, "x") == {"s1": (2,)}
    after, _ = step(state)
    assert places(after, "x") == {"s1": (2, 3), "od1": (0, 1)}
    no_wish = state.with_leases(replace(state.leases["x"], request=request(1, 4, capacity=CapacityType.SPOT)))
    after, _ = step(no_wish)
    assert places(after, "x") == {"s1": (2,), "s2": (0, 1, 2)}


def test_a_smaller_size_if_no_larger_is_free() -> None:
    state = case(taken(nodes(), s1=3, s2=4, od1=4, od2=3))
    after, answer = step(state)
    assert of_kind(answer, Retarget)[0].reason.startswith("grow 1 -> 2: 31 samples/s at 1 worker, about 60.2 expected")
    assert places(after, "x") == {"s1": (3,), "od2": (3,)}


def test_required_rack_binds_the_new_workers() -> None:
    """Rack a has two GPUs left, one on s1 and one on od1; rack b is free."""
    state = case(taken(nodes(), s1=2, od1=3), preferred=None, required="rack")
    after, _ = step(state)
    assert places(after, "x") == {"s1": (2, 3), "od1": (3,)}


def test_shrinks_when_the_loss_is_flat() -> None:
    state = case(workers=4, done=7000, rate=110.0, loss=flat)
    after, answer = step(state)
    (shrink,) = of_kind(answer, Retarget)
    assert shrink.why is Why.SHRINK
    assert shrink.reason == (
        "shrink 4 -> 1: the loss is flat, 0.5 to 0.5 (0.0 %) in the last window; 30 % of the samples left"
    )
    assert after.leases["x"].target.hold == state.leases["x"].target.hold[:2], "the youngest go"


def test_after_flat_it_grows_only_once_the_loss_fell_clearly() -> None:
    """Flat at 0.5 and shrunk: a dip to 0.45 is noise, 0.3 is not."""

    def dip(to: float) -> Callable[[int], float]:
        return lambda s: 0.5 if s <= 4000 else 0.5 - (0.5 - to) * (s - 4000) / 1000

    def small(to: float) -> State:
        state = case(done=5000, loss=dip(to))
        return state.with_leases(replace(state.leases["x"], flat_loss=0.5))

    shrunk = step(case(workers=4, done=7000, rate=110.0, loss=flat))[0]
    assert shrunk.leases["x"].flat_loss == 0.5
    assert resizes(small(0.45)) == []
    assert [resize.why for resize in resizes(small(0.2))] == [Why.GROW]


def test_flat_at_min_stays() -> None:
    assert resizes(case(done=7000, loss=flat)) == []


def test_flat_in_the_last_seconds_stays() -> None:
    assert resizes(case(workers=4, done=9900, rate=110.0, loss=flat)) == []


def test_noise_is_not_a_trend() -> None:
    """Flat but for spikes, and falling but for spikes."""

    def spiky(base: Callable[[int], float]) -> Callable[[int], float]:
        return lambda s: base(s) * (3.0 if s % 700 == 0 else 1.0)

    assert resizes(case(workers=4, done=7000, rate=110.0, loss=spiky(flat)))[0].why is Why.SHRINK
    assert resizes(case(done=3000, loss=spiky(falling)))[0].why is Why.GROW


def test_measured_inefficiency_shrinks() -> None:
    """1 worker did 31 samples/s; 4 do 40: a third of what four should."""
    history = (*curve(2000, 1, 31.0, falling), *curve(3000, 4, 40.0, falling, start=2000))
    (shrink,) = resizes(case(workers=4, history=history))
    assert shrink.reason == "shrink 4 -> 2: 40 samples/s at 4 workers is 32 % of 4 times one worker's"


def test_multiple_of_keeps_replicas_whole() -> None:
    state = running(fleet(node("n1", 8)), lease("x", request(2, 6, multiple_of=2)))
    x = state.leases["x"]
    progress = training(x, samples_done=3000, samples_total=TOTAL, step=300)
    x = replace(x, observations=curve(3000, 2, 31.0, falling), progress=progress, granted_at=at(-3600))
    after, _ = step(state.with_leases(x))
    assert after.leases["x"].workers == 6


# --- models


def test_amdahl_from_one_size() -> None:
    model = throughput(curve(1000, 2, 60.0, falling))
    assert model is not None
    assert model.rate(2) == 60.0
    assert model.rate(1) == pytest.approx(60.0 * (0.03 + 0.97 / 2))
    assert model.efficiency(1) == 1.0


def test_fit_of_several_sizes() -> None:
    """time per sample = 0.01 + 0.09 / n"""
    points = [p for n in (1, 2, 4) for p in curve(1000, n, 1 / (0.01 + 0.09 / n), falling)]
    model = throughput(points)
    assert model is not None
    assert (model.serial, model.shared) == (pytest.approx(0.01), pytest.approx(0.09))
    assert model.rate(8) == pytest.approx(1 / (0.01 + 0.09 / 8))


def test_a_superlinear_measurement_gives_no_negative_time() -> None:
    model = throughput([*curve(1000, 1, 10.0, falling), *curve(1000, 2, 30.0, falling)])
    assert model is not None
    assert model.serial == 0.0
    assert model.rate(4) > 0


def test_nothing_measured_is_unknown() -> None:
    assert throughput([replace(p, throughput=None) for p in curve(1000, 1, 10.0, falling)]) is None
    assert throughput([replace(p, throughput=float("nan")) for p in curve(1000, 1, 10.0, falling)]) is None


def test_the_window_must_be_measured_to_be_flat() -> None:
    short = trend(curve(1000, 1, 10.0, flat), TOTAL, POLICY.elastic)
    assert short is not None
    assert short.covered < 1
    assert not short.flat(POLICY.elastic)
    assert trend(curve(300, 1, 10.0, flat), TOTAL, POLICY.elastic) is None


def test_work_done_again_counts_as_it_went_the_last_time() -> None:
    again = (*curve(5000, 1, 10.0, falling), *curve(5000, 1, 10.0, flat, start=3000))
    found = trend(again, TOTAL, POLICY.elastic)
    assert found is not None
    assert found.flat(POLICY.elastic)


def test_a_tiny_loss_is_flat_although_its_ratio_moves() -> None:
    """From 2.0 to 0.001: halving from there is nothing."""
    found = trend(curve(9000, 1, 10.0, lambda s: 2.0 * math.exp(-s / 500)), TOTAL, POLICY.elastic)
    assert found is not None
    assert found.flat(POLICY.elastic)


def test_the_cost_of_a_resize_is_measured() -> None:
    """100 samples at 10/s: a point each 10 s, and 25 s where the size changed."""
    first = curve(1000, 1, 10.0, falling)
    second = tuple(replace(p, at=p.at + timedelta(seconds=115), workers=2) for p in first)
    assert resize_seconds((*first, *second), 8.0) == pytest.approx(15.0)
    assert resize_seconds(first, 8.0) == 8.0


def test_it_wakes_up_to_look_again() -> None:
    _, answer = step(hearing(run(case(), "x"), 1), now=at(1))
    assert answer.wake_at == at(1 + POLICY.rebalance_every_s)
