"""Code zips are unpacked without trusting them."""

from __future__ import annotations

import hashlib
import io
import stat
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from moorage.agent.bundle import KEEP, BadCode, CodeStore, unpack

MakeZip = Callable[[Mapping[str, str]], bytes]


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    return tmp_path / "code.zip"


def test_files_folders_and_exec_bits(archive: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(archive, "w") as made:
        made.mkdir("empty")
        made.writestr("a/b.py", "x = 1")
        run = zipfile.ZipInfo("run.sh")
        run.external_attr = (stat.S_IFREG | 0o755) << 16
        made.writestr(run, "#!/bin/sh\n")
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "old").touch()
    unpack(archive, folder)
    assert sorted(str(p.relative_to(folder)) for p in folder.rglob("*")) == ["a", "a/b.py", "empty", "run.sh"]
    assert (folder / "run.sh").stat().st_mode & 0o777 == 0o755
    assert (folder / "a/b.py").stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("name", ["/etc/x", "../x", "a/../../x", "a\\..\\x", "C:/x", "..", "."])
def test_names_that_leave_the_folder(archive: Path, tmp_path: Path, name: str) -> None:
    with zipfile.ZipFile(archive, "w") as made:
        made.writestr(name, "x")
    with pytest.raises(BadCode, match="would leave its folder"):
        unpack(archive, tmp_path / "work")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["code.zip", "work"]


def test_links_are_refused(archive: Path, tmp_path: Path) -> None:
    link = zipfile.ZipInfo("link")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(archive, "w") as made:
        made.writestr(link, "/etc/passwd")
    with pytest.raises(BadCode, match="'link', which is neither a file nor a folder"):
        unpack(archive, tmp_path / "work")


def test_bytes_are_counted_as_they_come(archive: Path, tmp_path: Path, make_zip: MakeZip) -> None:
    archive.write_bytes(make_zip({"a": "x" * 600, "b": "x" * 600}))
    unpack(archive, tmp_path / "work", most_bytes=1200)
    with pytest.raises(BadCode, match="larger than"):
        unpack(archive, tmp_path / "work", most_bytes=1199)


def test_files_are_counted(archive: Path, tmp_path: Path, make_zip: MakeZip) -> None:
    archive.write_bytes(make_zip({str(i): "" for i in range(4)}))
    with pytest.raises(BadCode, match="code has 4 files; at most 3"):
        unpack(archive, tmp_path / "work", most_files=3)


@pytest.mark.parametrize("data", [b"", b"not a zip", b"PK\x03\x04 truncated"])
def test_what_is_no_zip(archive: Path, tmp_path: Path, data: bytes) -> None:
    archive.write_bytes(data)
    with pytest.raises(BadCode, match="not a zip that can be read"):
        unpack(archive, tmp_path / "work")


def test_a_member_with_a_wrong_checksum(archive: Path, tmp_path: Path, make_zip: MakeZip) -> None:
    data = bytearray(make_zip({"a.txt": "hello world"}))
    at = data.index(b"hello world")
    data[at] ^= 1
    archive.write_bytes(bytes(data))
    with pytest.raises(BadCode, match="not a zip that can be read"):
        unpack(archive, tmp_path / "work")


def test_the_store_asks_once_and_checks(tmp_path: Path, make_zip: MakeZip) -> None:
    data = make_zip({"a": "1"})
    digest = hashlib.sha256(data).hexdigest()
    asked: list[str] = []

    def fetch(wanted: str) -> bytes:
        asked.append(wanted)
        return data

    store = CodeStore(tmp_path / "code", fetch)
    assert store.path(digest).read_bytes() == data
    assert store.path(digest) == store.path(digest)
    assert asked == [digest]
    with pytest.raises(BadCode, match="came with digest"):
        store.path("0" * 64)
    with pytest.raises(BadCode, match="is not a SHA-256"):
        store.path("../../etc/passwd")


def test_the_store_is_bounded(tmp_path: Path) -> None:
    made: dict[str, bytes] = {}
    for number in range(KEEP + 5):
        data = io.BytesIO(str(number).encode()).getvalue()
        made[hashlib.sha256(data).hexdigest()] = data
    store = CodeStore(tmp_path / "code", made.__getitem__)
    for digest in made:
        store.path(digest)
    assert len(list((tmp_path / "code").iterdir())) == KEEP
