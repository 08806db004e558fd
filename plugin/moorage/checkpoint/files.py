"""The few file operations that a store needs: durable and atomic on a local disk, single puts on an object store."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any, Protocol

import fsspec

from moorage.core.invalid import Invalid


class Files(Protocol):
    """Paths are relative to a base, with ``/``."""

    def write(self, path: str, data: bytes) -> None:
        """Afterwards the whole of `data` is there, durably, or (a crash in between) nothing of it."""
        ...

    def read(self, path: str) -> bytes:
        """Raises `FileNotFoundError`."""
        ...

    def names(self, path: str) -> tuple[str, ...]:
        """Names of what is in a folder, sorted; empty if there is no such folder."""
        ...

    def remove(self, path: str) -> None:
        """A file or a folder with all in it; no error if it is not there."""
        ...


def files_at(url: str) -> Files:
    """The files below `url`: a path, ``file://`` or any URL that fsspec knows.

    Raises:
        Invalid: fsspec does not know the scheme, or lacks the library for it.
    """
    if not url:
        raise Invalid("storage", url, "give a folder or a URL, for example s3://bucket/folder")
    try:
        system, path = fsspec.core.url_to_fs(url)
    except (ValueError, ImportError) as error:
        raise Invalid("storage", url, f"give a URL that fsspec can open ({error})") from error
    names = (system.protocol,) if isinstance(system.protocol, str) else tuple(system.protocol)
    return LocalFiles(Path(path)) if "file" in names else RemoteFiles(system, path)


class LocalFiles:
    """A disk (or a mounted share): write aside, fsync, rename, fsync the folder."""

    def __init__(self, base: Path) -> None:
        self._base = base

    def write(self, path: str, data: bytes) -> None:
        target = self._base / path
        _make_folders(target.parent)
        aside = target.with_name(f".{target.name}.{os.getpid()}.part")
        with aside.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(target)
        _sync_folder(target.parent)

    def read(self, path: str) -> bytes:
        return (self._base / path).read_bytes()

    def names(self, path: str) -> tuple[str, ...]:
        try:
            return tuple(sorted(entry.name for entry in (self._base / path).iterdir()))
        except (FileNotFoundError, NotADirectoryError):
            return ()

    def remove(self, path: str) -> None:
        target = self._base / path
        if target.is_dir():
            shutil.rmtree(target, ignore_errors=False)
        else:
            target.unlink(missing_ok=True)


class RemoteFiles:
    """Any fsspec file system. A put there is atomic by the promise of object stores."""

    def __init__(self, system: Any, base: str) -> None:
        self._system, self._base = system, base.rstrip("/")

    def _at(self, path: str) -> str:
        return f"{self._base}/{path}" if path else self._base

    def write(self, path: str, data: bytes) -> None:
        self._system.makedirs(self._at(path).rpartition("/")[0], exist_ok=True)
        self._system.pipe_file(self._at(path), data)

    def read(self, path: str) -> bytes:
        data: bytes = self._system.cat_file(self._at(path))
        return data

    def names(self, path: str) -> tuple[str, ...]:
        # A listing that was cached before another attempt wrote would hide its checkpoints.
        self._system.invalidate_cache()
        try:
            found = self._system.ls(self._at(path), detail=False)
        except (FileNotFoundError, NotADirectoryError):
            return ()
        return tuple(sorted(str(name).rstrip("/").rpartition("/")[2] for name in found))

    def remove(self, path: str) -> None:
        if self._system.exists(self._at(path)):
            self._system.rm(self._at(path), recursive=True)


def _make_folders(folder: Path) -> None:
    missing = [parent for parent in (folder, *folder.parents) if not parent.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for made in reversed(missing):
        _sync_folder(made.parent)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
