"""Chunks of a growing file to whole lines, many of them at a time."""

from __future__ import annotations

import re
from collections.abc import Iterator

__all__ = ["Blocks", "Piece"]

Piece = tuple[bytes, int, bool]
"""Lines without the last one's end, where in the chunk they end, and whether the end of the last was dropped."""
_ENDS = re.compile(rb"[\r\n]+")


class Blocks:
    """
    Cut chunks where lines end, keeping what is left for the next one.

    Carriage returns end a line as newlines do: a progress bar is many short lines, not one long one. ``limit`` are the
    bytes of a line that are kept.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._line = bytearray()
        self._dropped = False

    @property
    def pending(self) -> bool:
        """Return whether a line has begun and not ended."""
        return bool(self._line) or self._dropped

    def feed(self, chunk: bytes) -> list[Piece]:
        """Return the lines that end in ``chunk``: those that lie whole in it as one piece, where none is too long."""
        pieces: list[Piece] = []
        start = 0
        if self.pending:
            end = _ENDS.search(chunk)
            self._keep(chunk[: end.start() if end else len(chunk)])
            if end is None:
                return []
            start = end.end()
            pieces += self.flush(start)
        last = max(chunk.rfind(b"\n"), chunk.rfind(b"\r")) + 1
        if start < last:
            pieces += self._whole(chunk[start:last], start)
        self._keep(chunk[max(start, last) :])
        return pieces

    def flush(self, end: int = 0, *, cut: bool = False) -> list[Piece]:
        """Return the line that has begun as far as it is known, and forget it."""
        pieces = [(bytes(self._line), end, cut or self._dropped)] if self._line else []
        self._line.clear()
        self._dropped = False
        return pieces

    def _keep(self, part: bytes) -> None:
        room = self._limit - len(self._line)
        self._line += part[:room]
        self._dropped = self._dropped or len(part) > room

    def _whole(self, block: bytes, start: int) -> Iterator[Piece]:
        lines = block.strip(b"\r\n")
        if not lines:
            return
        if len(lines) <= self._limit or max(map(len, lines.split(b"\n"))) <= self._limit:
            yield lines, start + len(block), False
            return
        position = 0
        for end in _ENDS.finditer(block):
            line = block[position : end.start()]
            if line:
                yield line[: self._limit], start + end.end(), len(line) > self._limit
            position = end.end()
