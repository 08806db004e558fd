"""The edges of the trainer that need no Ray: arguments, results, the marker, what is shipped."""

from __future__ import annotations

import io
import json
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from moorage.core.invalid import Invalid
from moorage.ray import ElasticTrainer
from moorage.ray import trainer as room
from moorage.ray.submit import pack_folder
from moorage.ray.words import LoopFailed
from moorage.ray.worker import as_json


def nothing(config: Any, job: Any) -> None:
    """A loop."""


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"global_batch": 0}, "global_batch=0"),
        ({"gpus_per_worker": 0}, "gpus_per_worker=0"),
        ({"workers": (3, 1)}, r"workers=\(3, 1\)"),
        ({"workers": 0}, r"workers=\(0, 0\)"),
        ({"checkpoint_every_s": 0}, "checkpoint_every_s=0"),
    ],
)
def test_mistakes_name_the_field(arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(Invalid, match=says):
        ElasticTrainer(nothing, **{"global_batch": 8, **arguments})


def test_a_lease_without_storage_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOORAGE_LEASE", "L")
    monkeypatch.setenv("MOORAGE_EPOCH", "1")
    monkeypatch.delenv("MOORAGE_STORAGE", raising=False)
    with pytest.raises(Invalid, match="storage=None"):
        ElasticTrainer(nothing, global_batch=8).fit()


def test_a_lease_without_a_ray_cluster_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOORAGE_LEASE", "L")
    monkeypatch.setenv("MOORAGE_EPOCH", "1")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with pytest.raises(Invalid, match="RAY_ADDRESS=None"):
        ElasticTrainer(nothing, global_batch=8, storage="/tmp/x").fit()


def test_an_epoch_that_is_no_number_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOORAGE_LEASE", "L")
    monkeypatch.setenv("MOORAGE_EPOCH", "one")
    with pytest.raises(Invalid, match="MOORAGE_EPOCH='one'"):
        ElasticTrainer(nothing, global_batch=8, storage="/tmp/x").fit()


@pytest.mark.parametrize(
    ("given", "offered", "expected"),
    [
        (None, "/s/team/L", "/s/team/L"),
        ("/s", "/s/team/L", "/s/team/L"),
        ("/s/", "/s/team/L", "/s/team/L"),
        ("/mine", "/s/team/L", "/mine/L"),
        ("/mine", None, "/mine/L"),
        (None, None, None),
    ],
)
def test_a_lease_has_a_folder_of_its_own(given: str | None, offered: str | None, expected: str | None) -> None:
    assert room.lease_storage(given, offered, "L") == expected


def test_results_are_json() -> None:
    text = as_json({"accuracy": np.float64(0.5), "n": np.int64(3), "list": np.arange(2), "none": None})
    assert json.loads(text) == {"accuracy": 0.5, "n": 3, "list": [0, 1], "none": None}
    assert as_json(None) == "{}"
    assert json.loads(as_json({"loss": float("nan"), "all": [np.inf, 1.0]})) == {"loss": None, "all": [None, 1.0]}
    with pytest.raises(Invalid, match="return JSON"):
        as_json({"net": object()})
    with pytest.raises(Invalid, match="at most 64 KiB"):
        as_json({"weights": "x" * 70000})


def test_the_marker_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOORAGE_MARKER", str(tmp_path / "m.json"))
    room._write_marker('{"a": 1}')
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("m.json", '{"a": 1}')]
    monkeypatch.delenv("MOORAGE_MARKER")
    room._write_marker("{}")


def test_a_failure_ends_with_the_users_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        room._fail(LoopFailed("Traceback ...\nValueError: mine\n"))
    assert end.value.code == 1
    assert capsys.readouterr().err.endswith("ValueError: mine\n")


@pytest.mark.parametrize(
    ("storage", "folder"),
    [("/data/x", "/data/x/ray"), ("file:///data/x", "/data/x/ray")],
)
def test_rays_own_files_go_beside_ours(storage: str, folder: str) -> None:
    assert room._ray_folder(storage) == folder
    assert room._ray_folder("s3://bucket/x").startswith(str(Path("/")))


def test_a_folder_is_shipped_without_caches(tmp_path: Path) -> None:
    for name in ("a.py", "lib/b.py", "__pycache__/a.pyc", ".git/config", "lib/.hidden"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(name)
    data = pack_folder(tmp_path)
    assert sorted(zipfile.ZipFile(io.BytesIO(data)).namelist()) == ["a.py", "lib/b.py"]
    assert pack_folder(tmp_path) == data


def test_a_folder_that_is_too_large_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("moorage.ray.submit.CODE_LIMIT", 10)
    (tmp_path / "a.py").write_text("x" * 11)
    with pytest.raises(Invalid, match="at most 32 MiB"):
        pack_folder(tmp_path)


def test_installed_modules_stay_where_they_are(tmp_path: Path) -> None:
    assert room._installed(Path(np.__file__))
    assert room._installed(Path(room.__file__))
    assert room._installed(Path(json.__file__))
    assert not room._installed(tmp_path / "helpers.py")


def test_importing_the_room_loads_no_framework() -> None:
    import subprocess

    code = (
        "import sys, moorage.ray, moorage.ray.trainer, moorage.ray.job, moorage.ray.internals;"
        "print([m for m in ('ray', 'pandas', 'pyarrow', 'torch', 'httpx') if m in sys.modules])"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert said.stdout.strip() == "[]"
