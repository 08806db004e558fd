"""A folder of checkpoints in which whatever happened, the newest valid one is found."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from moorage.checkpoint.files import Files, files_at
from moorage.core.invalid import Invalid

#: Written last: a folder without one is not a checkpoint.
MANIFEST = "manifest.json"
FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Pointer:
    """Where a checkpoint is, and what its writer said about it."""

    url: str
    epoch: int
    step: int
    meta: Mapping[str, Any]


class Broken(Exception):
    """A checkpoint that cannot be used, and why. It stays in this file: `Store.newest` goes on to the next one."""


class Store:
    """Checkpoints of a lease at ``<url>/<epoch>/<step>/``. One writer per epoch.

    Args:
        url: any fsspec URL or path that all nodes of the lease can reach.
        epoch: the attempt that saves here. It reads what attempts up to and including itself left.
        keep: complete checkpoints to keep over all epochs, at least 2: the newest may turn out broken.
    """

    def __init__(self, url: str, *, epoch: int = 1, keep: int = 3) -> None:
        if epoch < 0:
            raise Invalid("epoch", epoch, "must not be negative")
        if keep < 2:
            raise Invalid("keep", keep, "keep at least 2: the newest may turn out broken")
        self.url = url.rstrip("/")
        self.epoch = epoch
        self._keep = keep
        self._files: Files = files_at(url)

    def save(self, step: int, files: Mapping[str, bytes], meta: Mapping[str, Any] | None = None) -> Pointer:
        """Write a checkpoint: the data, then (it is durable now) the manifest with sizes and digests.

        Saving a step that is there and valid changes nothing. Older checkpoints beyond `keep` are removed.

        Args:
            step: optimiser steps done, not negative.
            files: name -> content; names without ``/``.
            meta: JSON-able facts, returned with the pointer.
        """
        _check(step, files)
        there = self._try(self.epoch, step)
        if there is not None:
            return there
        folder = f"{self.epoch}/{step}"
        self._files.remove(f"{folder}/{MANIFEST}")
        for name, data in files.items():
            self._files.write(f"{folder}/{name}", data)
        self._files.write(f"{folder}/{MANIFEST}", _manifest(step, files, dict(meta or {})))
        self._prune()
        return self._pointer(self.epoch, step, dict(meta or {}))

    def newest(self) -> Pointer | None:
        """The valid checkpoint with the highest step (then epoch) of this and earlier attempts; None: there is none.

        Every file is read and checked; one that is torn, short, changed or unreadable is passed over.
        """
        found = (self._try(epoch, step) for step, epoch in self._complete(up_to=self.epoch))
        return next((pointer for pointer in found if pointer is not None), None)

    def load(self, pointer: Pointer) -> dict[str, bytes]:
        """Its files, checked against the manifest.

        Raises:
            FileNotFoundError: it was removed, or broke since it was found.
        """
        try:
            return self._verified(pointer.epoch, pointer.step)[1]
        except Broken as error:
            raise FileNotFoundError(f"checkpoint {pointer.url} is not valid any more: {error}") from error

    def restore(self) -> tuple[Pointer, dict[str, bytes]] | None:
        """`newest` and its files in one pass; None: there is none."""
        for step, epoch in self._complete(up_to=self.epoch):
            try:
                meta, files = self._verified(epoch, step)
            except Broken:
                continue
            return self._pointer(epoch, step, meta), files
        return None

    # --- inside

    def _pointer(self, epoch: int, step: int, meta: Mapping[str, Any]) -> Pointer:
        return Pointer(url=f"{self.url}/{epoch}/{step}", epoch=epoch, step=step, meta=meta)

    def _try(self, epoch: int, step: int) -> Pointer | None:
        try:
            return self._pointer(epoch, step, self._verified(epoch, step)[0])
        except Broken:
            return None

    def _verified(self, epoch: int, step: int) -> tuple[dict[str, Any], dict[str, bytes]]:
        folder = f"{epoch}/{step}"
        manifest = _read_manifest(self._read(f"{folder}/{MANIFEST}"), step)
        files = {name: self._read(f"{folder}/{name}") for name in manifest["files"]}
        for name, facts in manifest["files"].items():
            if facts != _facts(files[name]):
                raise Broken(f"{name} is not what the manifest says")
        return manifest["meta"], files

    def _read(self, path: str) -> bytes:
        try:
            return self._files.read(path)
        except FileNotFoundError as error:
            raise Broken(f"{path} is not there") from error
        except OSError as error:
            raise Broken(f"{path} cannot be read: {error}") from error

    def _complete(self, up_to: int | None = None) -> list[tuple[int, int]]:
        """(step, epoch) of the folders that have a manifest, best first."""
        found = ((step, epoch) for epoch, step in self._folders(up_to))
        return sorted((at for at in found if MANIFEST in self._files.names(f"{at[1]}/{at[0]}")), reverse=True)

    def _folders(self, up_to: int | None) -> Iterator[tuple[int, int]]:
        for epoch in _numbers(self._files.names("")):
            if up_to is None or epoch <= up_to:
                yield from ((epoch, step) for step in _numbers(self._files.names(str(epoch))))

    def _prune(self) -> None:
        """Remove what is behind the newest `keep` complete ones, torn folders too. Later epochs are not ours."""
        complete = self._complete(up_to=self.epoch)
        if len(complete) < self._keep:
            return
        oldest_kept = complete[self._keep - 1]
        for epoch, step in list(self._folders(self.epoch)):
            if (step, epoch) < oldest_kept:
                # The manifest first: a crash in between leaves a torn folder, not one that looks complete.
                self._files.remove(f"{epoch}/{step}/{MANIFEST}")
                self._files.remove(f"{epoch}/{step}")


def _check(step: int, files: Mapping[str, bytes]) -> None:
    if step < 0:
        raise Invalid("step", step, "must not be negative")
    for name in files:
        if not name or "/" in name or name == MANIFEST or name.startswith("."):
            raise Invalid("files", name, f"name files without a path, not {MANIFEST} and not hidden")


def _facts(data: bytes) -> dict[str, Any]:
    return {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def _manifest(step: int, files: Mapping[str, bytes], meta: dict[str, Any]) -> bytes:
    body = {"format": FORMAT, "step": step, "files": {n: _facts(d) for n, d in files.items()}, "meta": meta}
    text = json.dumps(body, sort_keys=True, allow_nan=True)
    return json.dumps({"sha256": hashlib.sha256(text.encode()).hexdigest(), "body": text}).encode()


def _read_manifest(data: bytes, step: int) -> dict[str, Any]:
    """The manifest carries its own digest: a bit that flipped in `meta` must not restore another data position."""
    try:
        outer = json.loads(data)
        text = outer["body"]
        digest = outer["sha256"]
        body: dict[str, Any] = json.loads(text)
    except (ValueError, KeyError, TypeError) as error:
        raise Broken(f"{MANIFEST} is torn") from error
    if hashlib.sha256(text.encode()).hexdigest() != digest:
        raise Broken(f"{MANIFEST} was changed")
    if body.get("format") != FORMAT or body.get("step") != step:
        raise Broken(f"{MANIFEST} has format {body.get('format')} of step {body.get('step')}")
    return body


def _numbers(names: tuple[str, ...]) -> list[int]:
    return [int(name) for name in names if name.isascii() and name.isdecimal() and str(int(name)) == name]
