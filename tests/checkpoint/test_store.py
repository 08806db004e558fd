"""A store is torn in every way that a crash or a bad disk tears one; it must always restore."""

from __future__ import annotations

import itertools
import json
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moorage.checkpoint import Store
from moorage.core.invalid import Invalid

FILES = {"a.npz": b"x" * 100, "b.json": b'{"k": 1}'}
numbers = itertools.count()


def folders(base: Path) -> set[str]:
    return {f"{step.parent.name}/{step.name}" for step in base.glob("*/*")}


@pytest.fixture(params=["disk", "object store"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "lease") if request.param == "disk" else f"memory://store{next(numbers)}/lease"


def test_an_empty_store_has_none(url: str) -> None:
    assert Store(url).newest() is None
    assert Store(url).restore() is None


def test_what_is_saved_comes_back(url: str) -> None:
    pointer = Store(url).save(7, FILES, {"position": 448})
    found = Store(url).restore()
    assert found == (pointer, FILES)
    assert (pointer.epoch, pointer.step, pointer.meta) == (1, 7, {"position": 448})
    assert Store(url).load(pointer) == FILES


@pytest.mark.parametrize(
    ("saved", "reader", "expected"),
    [
        pytest.param([(1, 10), (1, 20)], 1, (1, 20), id="the highest step"),
        pytest.param([(1, 10), (2, 20)], 3, (2, 20), id="of an earlier attempt"),
        pytest.param([(1, 10), (2, 20)], 1, (1, 10), id="never of a later attempt"),
        pytest.param([(1, 20), (2, 20)], 2, (2, 20), id="the later attempt at the same step"),
        pytest.param([(1, 30), (2, 20)], 2, (1, 30), id="the highest step over attempts"),
        pytest.param([(1, 9), (1, 10)], 1, (1, 10), id="by number, not by text"),
    ],
)
def test_newest(url: str, saved: list[tuple[int, int]], reader: int, expected: tuple[int, int]) -> None:
    for epoch, step in saved:
        Store(url, epoch=epoch).save(step, FILES)
    newest = Store(url, epoch=reader).newest()
    assert newest is not None
    assert (newest.epoch, newest.step) == expected


def test_old_ones_go(url: str) -> None:
    store = Store(url, keep=2)
    for step in (1, 2, 3, 4):
        store.save(step, {"f": bytes([step])})
    assert [step for step in (1, 2, 3, 4) if store._try(1, step)] == [3, 4]


def test_torn_folders_behind_the_kept_ones_go_and_later_epochs_stay(tmp_path: Path) -> None:
    (tmp_path / "1" / "1").mkdir(parents=True)
    (tmp_path / "1" / "1" / "f").write_bytes(b"torn")
    Store(str(tmp_path), epoch=9).save(1, FILES)
    for step in (2, 3, 4):
        Store(str(tmp_path), epoch=1, keep=2).save(step, FILES)
    assert folders(tmp_path) == {"1/3", "1/4", "9/1"}


def test_saving_a_valid_step_again_changes_nothing(url: str) -> None:
    Store(url).save(5, {"f": b"first"})
    again = Store(url).save(5, {"f": b"second"})
    assert Store(url).load(again) == {"f": b"first"}


def test_saving_a_broken_step_again_repairs_it(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    pointer = store.save(5, {"f": b"first"})
    (tmp_path / "1" / "5" / "f").write_bytes(b"fir")
    assert store.newest() is None
    store.save(5, {"f": b"again"})
    assert store.load(pointer) == {"f": b"again"}


def test_a_removed_checkpoint_says_so(url: str) -> None:
    store = Store(url)
    pointer = store.save(5, FILES)
    store._files.remove("1/5")
    with pytest.raises(FileNotFoundError, match="not valid any more"):
        store.load(pointer)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Store("", epoch=1), "storage"),
        (lambda: Store("nosuch://x"), "storage"),
        (lambda: Store("/tmp/x", keep=1), "keep"),
        (lambda: Store("/tmp/x", epoch=-1), "epoch"),
        (lambda: Store("memory://x").save(-1, FILES), "step"),
        (lambda: Store("memory://x").save(1, {"../a": b""}), "files"),
        (lambda: Store("memory://x").save(1, {"manifest.json": b""}), "files"),
    ],
)
def test_mistakes_name_the_field(make: object, says: str) -> None:
    with pytest.raises(Invalid, match=f"^{says}="):
        make()  # type: ignore[operator]


content = st.dictionaries(st.sampled_from(["a.npz", "b.json", "c"]), st.binary(max_size=64), min_size=1)


class Torn(Exception):
    """The machine went down here."""


@settings(max_examples=150, deadline=None)
@given(good=content, bad=content, written=st.integers(0, 300), keeps_manifest=st.booleans())
def test_a_crash_at_any_byte_restores_the_previous(
    tmp_path_factory: pytest.TempPathFactory,
    good: dict[str, bytes],
    bad: dict[str, bytes],
    written: int,
    keeps_manifest: bool,
) -> None:
    """Bytes go to disk in order until the machine dies after `written` of them: what is half there has no name yet."""
    base = tmp_path_factory.mktemp("crash")
    Store(str(base)).save(1, good, {"n": 1})
    store, left = Store(str(base)), written
    real = store._files.write

    def write(path: str, data: bytes) -> None:
        nonlocal left
        if len(data) > left:
            # A file system without atomic rename (or a lost sync) may leave a short file under the real name.
            target = base / path
            target.parent.mkdir(parents=True, exist_ok=True)
            if keeps_manifest or not path.endswith("manifest.json"):
                target.write_bytes(data[:left])
            raise Torn
        left -= len(data)
        real(path, data)

    store._files.write = write  # type: ignore[method-assign]
    try:
        store.save(2, bad, {"n": 2})
        expected, step = bad, 2
    except Torn:
        expected, step = good, 1
    found = Store(str(base)).restore()
    assert found is not None
    assert (found[0].step, found[0].meta, found[1]) == (step, {"n": step}, expected)
    shutil.rmtree(base)


@settings(max_examples=150, deadline=None)
@given(data=st.data(), how=st.sampled_from(["cut", "flip", "remove"]))
def test_any_damage_to_the_newest_restores_the_previous(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, how: str
) -> None:
    base = tmp_path_factory.mktemp("damage")
    for step in (1, 2):
        Store(str(base)).save(step, {"f": bytes([step]) * 40, "g": b"g"}, {"n": step})
    victim = base / "1" / "2" / data.draw(st.sampled_from(["f", "g", "manifest.json"]))
    before = victim.read_bytes()
    at = data.draw(st.integers(0, len(before) - 1))
    match how:
        case "cut":
            victim.write_bytes(before[:at])
        case "flip":
            victim.write_bytes(before[:at] + bytes([before[at] ^ 1]) + before[at + 1 :])
        case _:
            victim.unlink()
    found = Store(str(base)).restore()
    assert found is not None
    pointer, files = found
    same = pointer.step == 2 and how == "flip" and victim.name == "manifest.json"
    if same:  # The flip hit a byte that means nothing (JSON white space): then all must be as it was.
        assert json.loads(victim.read_bytes())["body"] == json.loads(before)["body"]
    assert (pointer.meta, files) == ({"n": pointer.step}, {"f": bytes([pointer.step]) * 40, "g": b"g"})
    assert pointer.step == (2 if same else 1)
    shutil.rmtree(base)
