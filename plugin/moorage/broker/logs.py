"""Job logs as files: one per attempt as its agent counts bytes, and an index that makes them one text for readers.

``<lease>/<epoch>.log`` holds an attempt's bytes. ``<lease>/index`` has a line ``epoch start`` each time the writing
attempt changes, so that bytes once read keep their place even if an older attempt's last lines come late.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

#: Bytes kept of one attempt.
ATTEMPT_LIMIT = 64 << 20
#: Most bytes of one answer.
CHUNK_LIMIT = 1 << 20


@dataclass(frozen=True, slots=True)
class _Piece:
    """Bytes [start, end) of an attempt's file."""

    epoch: int
    start: int
    end: int


class Logs:
    """Files below one folder. Calls of one broker only."""

    def __init__(self, root: Path, limit: int = ATTEMPT_LIMIT) -> None:
        self._root = root
        self._limit = limit
        self._note = (
            f"\n[moorage: the rest of this attempt's log is left out, it has more than {limit} bytes]\n".encode()
        )
        self._lock = Lock()

    def put(self, lease: str, epoch: int, offset: int, text: bytes) -> int:
        """Append `text`, which begins at byte `offset` of the attempt; returns the offset that is wanted next."""
        with self._lock:
            path = self._file(lease, epoch)
            size = _size(path)
            end = offset + len(text)
            if size >= self._limit:
                return max(end, self._limit)
            if offset > size or end <= size:
                return size
            fresh = text[size - offset :][: self._limit - size]
            full = size + len(fresh) >= self._limit
            self._switch(lease, epoch, size)
            with path.open("ab") as file:
                file.write(fresh + (self._note if full else b""))
            return end

    def read(self, lease: str, offset: int) -> tuple[str, int, bool]:
        """Text from byte `offset` of all attempts, the next offset, and whether it reaches the present end."""
        with self._lock:
            raw, more = self._bytes(lease, max(0, offset))
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        text = decoder.decode(raw)
        # A character that is cut by the chunk's end comes whole with the next one.
        cut = len(decoder.getstate()[0])
        if cut and not more:
            cut, text = 0, text + decoder.decode(b"", final=True)
        return text, max(0, offset) + len(raw) - cut, not more

    def _bytes(self, lease: str, offset: int) -> tuple[bytes, bool]:
        found, at = b"", 0
        for piece in self._pieces(lease):
            length = piece.end - piece.start
            skip = min(max(0, offset - at), length)
            at += length
            if skip == length:
                continue
            if len(found) >= CHUNK_LIMIT:
                return found, True
            with self._file(lease, piece.epoch).open("rb") as file:
                file.seek(piece.start + skip)
                found += file.read(min(length - skip, CHUNK_LIMIT - len(found)))
            if len(found) >= CHUNK_LIMIT and offset + len(found) < at:
                return found, True
        return found, False

    def _pieces(self, lease: str) -> Iterator[_Piece]:
        index = self._index(lease)
        for place, (epoch, start) in enumerate(index):
            later = next((s for e, s in index[place + 1 :] if e == epoch), None)
            yield _Piece(epoch, start, _size(self._file(lease, epoch)) if later is None else later)

    def _index(self, lease: str) -> list[tuple[int, int]]:
        path = self._root / lease / "index"
        if not path.exists():
            return []
        lines = path.read_text().split("\n")[:-1]
        return [(int(epoch), int(start)) for epoch, start in (line.split() for line in lines)]

    def _switch(self, lease: str, epoch: int, size: int) -> None:
        index = self._index(lease)
        if index and index[-1][0] == epoch:
            return
        path = self._root / lease / "index"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as file:
            file.write(f"{epoch} {size}\n")

    def _file(self, lease: str, epoch: int) -> Path:
        return self._root / lease / f"{epoch}.log"


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
