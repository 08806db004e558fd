"""The order of samples knows nothing of workers, restarts or attempts."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage.core.invalid import Invalid
from moorage.ray.data import Order, batches, shard


@given(size=st.integers(0, 300), world=st.integers(1, 17))
def test_shards_cover_a_batch_in_order_and_evenly(size: int, world: int) -> None:
    parts = [np.arange(size)[shard(size, rank, world)] for rank in range(world)]
    assert np.concatenate(parts).tolist() == list(range(size))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


orders = st.builds(Order, samples=st.integers(1, 40), epochs=st.integers(1, 4), seed=st.integers(0, 9))


@given(order=orders, batch=st.integers(1, 50), worlds=st.lists(st.integers(1, 5), min_size=1, max_size=4))
def test_any_resizes_see_the_same_stream(order: Order, batch: int, worlds: list[int]) -> None:
    """Restart at every batch with another number of workers: together they still see the whole stream, in order."""
    whole = order.between(0, order.total).tolist()
    seen: list[int] = []
    step = 0
    while len(seen) < order.total:
        world = worlds[step % len(worlds)]
        parts = [next(batches(order, batch, len(seen), rank, world)) for rank in range(world)]
        assert all(part.all.tolist() == parts[0].all.tolist() for part in parts)
        assert sum(part.weight for part in parts) == parts[0].size
        seen += [int(i) for part in parts for i in part.local]
        step += 1
    assert seen == whole


@given(order=orders, data=st.data())
def test_any_slice_is_a_slice_of_the_whole(order: Order, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, order.total))
    stop = data.draw(st.integers(start, order.total))
    assert order.between(start, stop).tolist() == order.between(0, order.total)[start:stop].tolist()


@given(orders)
def test_each_epoch_has_each_sample_once(order: Order) -> None:
    stream = order.between(0, order.total).reshape(order.epochs, order.samples)
    assert all(sorted(epoch) == list(range(order.samples)) for epoch in stream.tolist())


def test_another_seed_is_another_order() -> None:
    a, b = (Order(samples=100, epochs=1, seed=seed).between(0, 100).tolist() for seed in (0, 1))
    assert a != b


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Order(samples=0, epochs=1, seed=0), "samples=0"),
        (lambda: Order(samples=1, epochs=0, seed=0), "epochs=0"),
        (lambda: Order(samples=1, epochs=1, seed=-1), "seed=-1"),
        (lambda: next(batches(Order(samples=1, epochs=1, seed=0), 0, 0, 0, 1)), "global_batch=0"),
    ],
)
def test_mistakes_name_the_field(make: Callable[[], object], says: str) -> None:
    with pytest.raises(Invalid, match=says):
        make()
