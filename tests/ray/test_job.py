"""A loop on a gang of threads: the same numbers at any size; saves, holds and stops land on one step of all ranks."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from moorage.checkpoint import BadState, Store, pack
from moorage.core.invalid import Invalid
from moorage.core.job import Phase
from moorage.ray.gang import Gang
from moorage.ray.job import Job
from moorage.ray.words import GangLost, Joiner, Look, Member, Refusal, Stopped, Word

X = np.random.default_rng(1).normal(size=(50, 3))
Y = X @ np.array([1.0, -2.0, 0.5]) + 0.1


def regression(config: dict[str, Any], job: Job) -> dict[str, Any]:
    """Least squares with momentum: any repeated, skipped or reordered sample changes the digits."""
    state = job.restore() or {"w": np.zeros(3), "m": np.zeros(3), "steps": []}
    for batch in job.batches(len(X), epochs=config.get("epochs", 3), seed=5):
        x, y = X[batch.local], Y[batch.local]
        error = x @ state["w"] - y
        with np.errstate(all="ignore"):
            local = (np.mean(error**2) if len(y) else np.nan, (2 * error @ x) / len(y))
        loss, grad = job.all_reduce(local, weight=batch.weight)
        state["m"] = 0.9 * state["m"] + grad
        state["w"] = state["w"] - 0.01 * state["m"]
        state["steps"] = [*state["steps"], job.steps + 1]
        if pause := config.get("pause"):
            time.sleep(pause)
        job.step(loss=loss, metrics={"n": 1.0}, state=lambda: state)
    return {**state, "loss": loss, "checkpoint": job.checkpoint}


def test_the_result_is_the_same_at_any_number_of_workers(gang: Any) -> None:
    one = gang.run(1, regression, {}, batch=7)[0]
    for world in (2, 3, 8):
        for result in gang.run(world, regression, {}, batch=7):
            assert np.allclose(result["w"], one["w"], rtol=1e-12)
            assert result["steps"] == one["steps"] == list(range(1, 23))
            assert result["loss"] == pytest.approx(one["loss"], rel=1e-12)


def start(gang: Any, world: int, config: dict[str, Any], store: str) -> tuple[threading.Thread, list[Any]]:
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.extend(gang.run(world, regression, config, batch=7, store=store)))
    thread.start()
    look_until(gang, lambda look: look.counters and look.counters.phase is Phase.TRAINING)
    return thread, results


def look_until(gang: Any, good: Any, word: Word | None = None) -> Look:
    until = time.monotonic() + 10
    while time.monotonic() < until:
        look: Look = gang.call("look", word)
        if good(look):
            return look
        time.sleep(0.005)
    raise AssertionError(look)


def test_a_resize_at_a_hold_repeats_nothing(gang: Any, tmp_path: Path) -> None:
    undisturbed = gang.run(1, regression, {}, batch=7)[0]
    store = str(tmp_path / "s")
    for hold, world in enumerate((1, 3, 2), start=1):
        thread, results = start(gang, world, {"pause": 0.01}, store)
        held = look_until(gang, lambda look, h=hold: look.held == h, Word(hold=hold, release=hold - 1))
        assert held.checkpoint_step == held.counters.step > 0
        gang.begin(1)  # What a restart does to the ranks that hold: they are gone.
        thread.join(10)
        assert all(isinstance(result, GangLost) for result in results)
    final = gang.run(2, regression, {}, batch=7, store=store)[0]
    assert final["steps"] == undisturbed["steps"]
    assert np.allclose(final["w"], undisturbed["w"], rtol=1e-12)


def test_a_hold_that_is_taken_back_goes_on(gang: Any, tmp_path: Path) -> None:
    thread, results = start(gang, 2, {"pause": 0.01}, str(tmp_path))
    look_until(gang, lambda look: look.held == 1, Word(hold=1))
    gang.call("look", Word(hold=1, release=1))
    thread.join(10)
    assert [result["steps"] for result in results] == [list(range(1, 23))] * 2


def test_a_stop_is_a_checkpoint_and_the_end_on_every_rank(gang: Any, tmp_path: Path) -> None:
    thread, results = start(gang, 3, {"pause": 0.01}, str(tmp_path))
    gang.call("look", Word(stop="budget"))
    thread.join(10)
    assert [str(result) for result in results] == ["budget"] * 3
    assert all(isinstance(result, Stopped) for result in results)
    pointer = Store(str(tmp_path)).newest()
    assert pointer is not None
    assert pointer.step == gang.call("look").checkpoint_step > 0
    assert pointer.meta["position"] == pointer.step * 7


def test_a_stop_ends_a_hold(gang: Any, tmp_path: Path) -> None:
    thread, results = start(gang, 2, {"pause": 0.01}, str(tmp_path))
    look_until(gang, lambda look: look.held == 1, Word(hold=1))
    gang.call("look", Word(hold=1, stop="enough"))
    thread.join(10)
    assert all(isinstance(result, Stopped) for result in results)


def test_a_save_is_written_once_and_training_goes_on(gang: Any, tmp_path: Path) -> None:
    thread, results = start(gang, 2, {"pause": 0.01}, str(tmp_path))
    look_until(gang, lambda look: look.saved == 1, Word(save=1))
    thread.join(10)
    assert [len(result["steps"]) for result in results] == [22, 22]
    assert len(list(tmp_path.glob("1/*"))) == 1


def test_periodic_checkpoints_are_kept_in_bounds(gang: Any, tmp_path: Path) -> None:
    gang.gang._every = 0.02
    gang.run(2, regression, {"pause": 0.01}, batch=7, store=str(tmp_path))
    assert len(list(tmp_path.glob("1/*"))) == 3


def test_progress_counts_samples_and_ends_with_the_phase(gang: Any, tmp_path: Path) -> None:
    gang.run(2, regression, {"pause": 0.03}, batch=7, store=str(tmp_path))
    posts = gang.posts
    assert posts[0].phase is Phase.RESTORING
    last = [post for post in posts if post.phase is Phase.TRAINING][-1]
    assert last.samples_done == min(last.step * 7, 150)
    assert last.samples_total == 150
    assert last.loss_count == last.step
    assert last.metrics == {"n": 1.0}


def test_a_store_that_is_away_costs_a_message_and_no_step(gang: Any, tmp_path: Path) -> None:
    broken = tmp_path / "file"
    broken.write_text("not a folder")
    thread, results = start(gang, 1, {"pause": 0.01}, str(broken))
    look_until(gang, lambda look: look.counters and "failed" in look.counters.message, Word(save=1))
    thread.join(10)
    assert len(results[0]["steps"]) == 22


def test_a_state_that_cannot_be_stored_is_the_users_mistake(gang: Any, tmp_path: Path) -> None:
    def loop(config: Any, job: Job) -> None:
        for batch in job.batches(10, epochs=1, seed=0):
            job.all_reduce(1.0, weight=batch.weight)
            job.step(state=lambda: {"net": object()})

    gang.call("look", Word(stop="now"))
    with pytest.raises(BadState, match=r"state\.net"):
        gang.run(1, loop, {}, batch=2, store=str(tmp_path))


def test_an_earlier_lease_is_read_where_there_is_no_checkpoint_yet(gang: Any, tmp_path: Path) -> None:
    Store(str(tmp_path / "old"), epoch=4).save(
        3, pack({"w": np.ones(3), "m": np.zeros(3), "steps": [1, 2, 3]}), {"position": 21}
    )
    earlier = Store(str(tmp_path / "old"), epoch=9)
    result = gang.run(2, regression, {}, batch=7, store=str(tmp_path / "new"), earlier=earlier)[0]
    assert result["steps"] == list(range(1, 23))


def test_a_fake_gpu_takes_its_time_per_local_sample(gang: Any) -> None:
    took = {}
    for world in (1, 4):
        started = time.monotonic()
        gang.run(world, regression, {"epochs": 1}, batch=20, sample_s=0.004)
        took[world] = time.monotonic() - started
    assert took[1] == pytest.approx(50 * 0.004, abs=0.06)
    assert took[4] < took[1] / 2


def test_a_step_without_a_batch_says_what_is_missing(gang: Any) -> None:
    with pytest.raises(Invalid, match="samples=None"):
        gang.run(1, lambda config, job: job.step(loss=1.0), {}, batch=2)


def test_shapes_that_differ_fail_on_every_rank(gang: Any) -> None:
    def loop(config: Any, job: Job) -> Any:
        try:
            job.all_reduce(np.ones(job.rank + 1), weight=1)
        except ValueError as error:
            return str(error)

    assert all("different shapes" in said for said in gang.run(2, loop, {}, batch=2))


MEMBERS = (
    Member(allocation="L.2", node="n1", workers=2, gpus=(5, 3)),
    Member(allocation="L.3", node="n2", workers=1, gpus=(0,)),
    Member(allocation="L.7", node="n1", workers=1, gpus=(1,)),
)


def test_seats_follow_the_answer_and_devices_are_the_nodes_union(gang: Any) -> None:
    gang.begin(4, MEMBERS)
    rows = [("L.7", 1), ("L.2", 5), ("L.3", 0), ("L.2", 3)]
    joiners = [
        Joiner(ray_rank=i, ray_size=4, allocation=a, host=f"h{i}", gpus=(gpu,)) for i, (a, gpu) in enumerate(rows)
    ]
    seats: dict[int, Any] = {}
    threads = [
        threading.Thread(target=lambda j=j: seats.__setitem__(j.ray_rank, gang.call("join", j))) for j in joiners
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    found = {i: (s.rank, s.local_rank, s.local_size, s.visible) for i, s in seats.items()}
    assert found == {
        3: (0, 0, 3, (1, 3, 5)),
        1: (1, 1, 3, (1, 3, 5)),
        2: (2, 0, 1, (0,)),
        0: (3, 2, 3, (1, 3, 5)),
    }
    look = gang.call("look")
    assert look.full
    assert look.joined == {0: "L.7", 1: "L.2", 2: "L.3", 3: "L.2"}


def test_a_worker_of_another_group_is_refused(gang: Any) -> None:
    gang.begin(2)
    with pytest.raises(Refusal, match="group of 3"):
        gang.call("join", Joiner(ray_rank=0, ray_size=3, allocation="", host="h", gpus=()))
    with pytest.raises(Refusal, match="group 9 is over"):
        gang.call("word", 9)


def test_ranks_that_never_come_are_waited_for_in_bounds() -> None:
    import asyncio

    async def alone() -> None:
        gang = Gang(60, patience_s=0.05)
        await gang.begin(1, (), 2)
        await gang.join(Joiner(ray_rank=0, ray_size=2, allocation="", host="h", gpus=()))

    with pytest.raises(Refusal, match="waited 0 s for workers"):
        asyncio.run(alone())
