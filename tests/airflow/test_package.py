"""Code travels as a zip that depends on nothing but names and bytes."""

from __future__ import annotations

import io
import os
import zipfile
from pathlib import Path

import pytest

from moorage.airflow import package
from moorage.core.invalid import Invalid


def tree(folder: Path, *names: str) -> Path:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"# {name}\n")
    return folder


def test_same_files_same_bytes(tmp_path: Path) -> None:
    one = tree(tmp_path / "one", "b.py", "a.py", "pkg/c.py")
    two = tree(tmp_path / "two", "pkg/c.py", "a.py", "b.py")
    os.utime(two / "a.py", (1, 1))
    (two / "b.py").chmod(0o755)
    assert package.pack_folder(one) == package.pack_folder(two)
    assert package.digest(package.pack_folder(one)) == package.digest(package.pack_folder(two))


def test_what_stays_at_home(tmp_path: Path) -> None:
    tree(tmp_path, "train.py", ".git/config", "__pycache__/train.cpython-311.pyc", ".env", "venv/x.py", "data/a.csv")
    packed = zipfile.ZipFile(io.BytesIO(package.pack_folder(tmp_path))).namelist()
    assert packed == ["data/a.csv", "train.py"]


def test_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "noise").write_bytes(os.urandom(2000))
    monkeypatch.setattr(package, "MAX_ZIP", 1000)
    with pytest.raises(Invalid, match="at most 32 MiB as a zip; put data into storage"):
        package.pack_folder(tmp_path)
    monkeypatch.setattr(package, "MAX_READ", 1000)
    with pytest.raises(Invalid, match="name a smaller folder"):
        package.pack_folder(tmp_path)


def test_scripts_are_found_beside_the_dag_its_folder_or_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree(tmp_path, "repo/dags/dag.py", "repo/dags/near.py", "repo/ray_jobs/train.py", "here/cwd.py")
    monkeypatch.chdir(tmp_path / "here")
    dag = str(tmp_path / "repo/dags/dag.py")
    assert package.resolve("script", "near.py", dag) == tmp_path / "repo/dags/near.py"
    assert package.resolve("script", "ray_jobs/train.py", dag) == tmp_path / "repo/ray_jobs/train.py"
    assert package.resolve("script", "cwd.py", dag) == tmp_path / "here/cwd.py"
    assert package.resolve("script", str(tmp_path / "here/cwd.py"), None) == tmp_path / "here/cwd.py"
    with pytest.raises(Invalid) as refused:
        package.resolve("script", "gone.py", dag)
    assert str(refused.value) == (
        f"script='gone.py': no such file or folder; looked in {tmp_path}/repo/dags, {tmp_path}/repo, {tmp_path}/here"
    )


def test_a_script_outside_its_code_folder(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="must be in the code folder"):
        package.inside(tmp_path / "a.py", tmp_path / "code")
    assert package.inside(tmp_path / "code/sub/a.py", tmp_path / "code") == "sub/a.py"
