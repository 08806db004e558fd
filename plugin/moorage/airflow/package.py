"""A job's code as a zip: the same files give the same bytes, so that the broker stores them once."""

from __future__ import annotations

import hashlib
import io
import os
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from moorage.core.invalid import Invalid

#: The broker's bound on a zip, in bytes.
MAX_ZIP = 32 * 1024 * 1024
#: Bounds on what is read before it is known how small it zips.
MAX_FILES = 10_000
MAX_READ = 256 * 1024 * 1024

_SKIPPED_FOLDERS = frozenset({"__pycache__", "node_modules", "venv"})
_SKIPPED_SUFFIXES = frozenset({".pyc", ".pyo"})
#: The zip format's first day: no file time gets in.
_EPOCH = (1980, 1, 1, 0, 0, 0)


def pack(files: Mapping[str, bytes]) -> bytes:
    """A zip of these files (path inside -> bytes), equal for equal files.

    Raises:
        Invalid: it is larger than `MAX_ZIP`.
    """
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(files):
            info = zipfile.ZipInfo(name, _EPOCH)
            info.external_attr = 0o644 << 16
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, files[name])
    if buffer.tell() > MAX_ZIP:
        raise Invalid("code", f"{buffer.tell() / 2**20:.0f} MiB", "at most 32 MiB as a zip; put data into storage")
    return buffer.getvalue()


def pack_folder(folder: Path) -> bytes:
    """A zip of a folder's files, without hidden ones, caches and virtual environments.

    Raises:
        Invalid: it is no folder, or too large.
    """
    if not folder.is_dir():
        raise Invalid("code", str(folder), "name a folder")
    files: dict[str, bytes] = {}
    size = 0
    for path in _files(folder):
        size += path.stat().st_size
        if len(files) >= MAX_FILES or size > MAX_READ:
            raise Invalid("code", str(folder), f"at most {MAX_FILES} files and 256 MiB; name a smaller folder")
        files[path.relative_to(folder).as_posix()] = path.read_bytes()
    return pack(files)


def _files(folder: Path) -> Iterator[Path]:
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(n for n in folders if not n.startswith(".") and n not in _SKIPPED_FOLDERS)
        for name in sorted(names):
            path = Path(parent, name)
            if not name.startswith(".") and path.suffix not in _SKIPPED_SUFFIXES and path.is_file():
                yield path


def digest(code: bytes) -> str:
    """What the broker calls these bytes."""
    return hashlib.sha256(code).hexdigest()


def resolve(field: str, path: str, dag_file: str | None) -> Path:
    """Where a relative path is: beside the DAG file, beside its folder, or in the working directory; first one wins.

    Raises:
        Invalid: it is nowhere; names the places.
    """
    bases = [*(Path(dag_file).resolve().parents[:2] if dag_file else ()), Path.cwd()]
    for base in bases:
        if (base / path).exists():
            return (base / path).resolve()
    raise Invalid(field, path, f"no such file or folder; looked in {', '.join(map(str, bases))}")


def inside(script: Path, code: Path) -> str:
    """The script's path in the code folder. Raises `Invalid` if it is not in there."""
    if not script.is_relative_to(code):
        raise Invalid("script", str(script), f"must be in the code folder {code}")
    return script.relative_to(code).as_posix()
