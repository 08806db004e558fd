"""A job's code: a zip by its digest, kept, checked, and unpacked without trusting it."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import stat
import zipfile
from collections.abc import Callable
from pathlib import Path, PurePosixPath

_DIGEST = re.compile(r"[0-9a-f]{64}")
MOST_BYTES = 1 << 30
MOST_FILES = 20_000
#: Zips kept for the next attempt.
KEEP = 20


class BadCode(Exception):
    """The zip is not what it should be; says what is wrong with it."""


class CodeStore:
    """Zips by digest, below a folder. `fetch` asks the broker."""

    def __init__(self, folder: Path, fetch: Callable[[str], bytes]) -> None:
        self._folder, self._fetch = folder, fetch

    def path(self, digest: str) -> Path:
        """The zip, fetched once. Raises `BadCode`, and what `fetch` raises."""
        if not _DIGEST.fullmatch(digest):
            raise BadCode(f"code {digest!r} is not a SHA-256 in lower-case hex")
        path = self._folder / f"{digest}.zip"
        if not path.exists():
            self._store(path, digest, self._fetch(digest))
        os.utime(path)
        return path

    def _store(self, path: Path, digest: str, data: bytes) -> None:
        found = hashlib.sha256(data).hexdigest()
        if found != digest:
            raise BadCode(f"code {digest[:12]} came with digest {found[:12]}")
        self._folder.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(f".{os.getpid()}.{id(data):x}.part")
        part.write_bytes(data)
        part.replace(path)
        self._trim()

    def _trim(self) -> None:
        kept = sorted(self._folder.glob("*.zip"), key=lambda path: path.stat().st_mtime, reverse=True)
        for old in kept[KEEP:]:
            old.unlink(missing_ok=True)


def unpack(archive: Path, folder: Path, most_bytes: int = MOST_BYTES, most_files: int = MOST_FILES) -> None:
    """Unpack into a fresh `folder`.

    Raises:
        BadCode: a name that leaves the folder, a link, or more files or bytes than allowed (counted while unpacking: a
            zip may lie about its sizes).
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        with zipfile.ZipFile(archive) as opened:
            members = opened.infolist()
            if len(members) > most_files:
                raise BadCode(f"code has {len(members)} files; at most {most_files} are unpacked")
            left = most_bytes
            for member in members:
                left -= _member(opened, member, folder, left)
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError) as error:
        raise BadCode(f"code is not a zip that can be read: {error}") from error


def _member(opened: zipfile.ZipFile, member: zipfile.ZipInfo, folder: Path, left: int) -> int:
    """Bytes written."""
    target = folder / _safe(member)
    if member.is_dir():
        target.mkdir(parents=True, exist_ok=True)
        return 0
    target.parent.mkdir(parents=True, exist_ok=True)
    written = 0
    with opened.open(member) as source, target.open("wb") as sink:
        while chunk := source.read(1 << 20):
            written += len(chunk)
            if written > left:
                raise BadCode(f"code is larger than {MOST_BYTES >> 20} MiB unpacked, at {member.filename!r}")
            sink.write(chunk)
    target.chmod(0o755 if (member.external_attr >> 16) & 0o100 else 0o644)
    return written


def _safe(member: zipfile.ZipInfo) -> PurePosixPath:
    mode = member.external_attr >> 16
    name = member.filename
    if stat.S_IFMT(mode) not in (0, stat.S_IFREG, stat.S_IFDIR):
        raise BadCode(f"code has {name!r}, which is neither a file nor a folder")
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name or ":" in name or not path.parts:
        raise BadCode(f"code has {name!r}, which would leave its folder")
    return path
