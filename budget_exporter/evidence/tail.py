"""A file that grows, is renamed, replaced or cut short: its lines, once each."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from budget_exporter.errors import SourceDenied, SourceError
from budget_exporter.evidence import Record

__all__ = ["Tail"]

_CHUNK = 1 << 18
_PRINT = 64
"""Bytes before our place that are compared: a file cut short and refilled beyond it no longer holds them."""


class Tail:
    """
    Read ``path`` line by line; blocking.

    ``cursor`` is ``device:inode:offset`` of an earlier line's end: reading goes on there if that file is still to be
    found under the path or beside it (renamed by a rotation), else at the start of what is under the path now.
    ``limit`` are the bytes of a line that are kept.
    """

    def __init__(self, path: Path, cursor: str | None, limit: int) -> None:
        self.path = path
        self._limit = limit
        self._cursor = cursor
        self._descriptor: int | None = None
        self._identity = (0, 0)
        self._offset = 0
        self._line = bytearray()
        self._dropped = False
        self._print = b""

    @property
    def opened(self) -> bool:
        """Return whether there is a file under the path that is being read."""
        return self._descriptor is not None

    def close(self) -> None:
        """Release the descriptor."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def read(self) -> list[Record]:
        """
        Return the next lines, an empty list where there are none now.

        Raise SourceError where the directory cannot be read or the path is no regular file, SourceDenied where it may
        not be read.
        """
        try:
            if self._descriptor is None and not self._open():
                return []
            self._check_cut_short()
            records = self._more()
            return records or self._turn()
        except PermissionError as error:
            raise SourceDenied(f"{self.path}: {error.strerror}; needs CAP_DAC_READ_SEARCH or its group") from error
        except OSError as error:
            raise SourceError(f"{self.path}: {error.strerror}") from error

    def _open(self) -> bool:
        place = self._resumed()
        path, offset = place or (self.path, 0)
        self._cursor = None
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
        except FileNotFoundError:
            os.stat(self.path.parent)  # noqa: PTH116 - raises where the directory is missing too
            return False
        self._take(descriptor, offset)
        return True

    def _take(self, descriptor: int, offset: int) -> None:
        state = os.fstat(descriptor)
        if not stat.S_ISREG(state.st_mode):
            os.close(descriptor)
            raise SourceError(f"{self.path}: not a regular file")
        self._descriptor = descriptor
        self._identity = (state.st_dev, state.st_ino)
        self._place(offset)

    def _place(self, offset: int) -> None:
        self._offset = offset
        self._line.clear()
        self._dropped = False
        self._print = b"" if self._descriptor is None else _before(self._descriptor, offset)

    def _resumed(self) -> tuple[Path, int] | None:
        """Return the file a cursor names and the place in it, where that is still a line's end."""
        try:
            device, inode, offset = (int(part) for part in (self._cursor or "").split(":"))
        except ValueError:
            return None
        for path in _candidates(self.path):
            try:
                state = path.stat()
                if (state.st_dev, state.st_ino) == (device, inode) and _ends_a_line(path, offset):
                    return path, offset
            except OSError:
                continue
        return None

    def _check_cut_short(self) -> None:
        """Start again where the file is shorter than our place, or no longer holds what was before it."""
        descriptor = self._descriptor
        if descriptor is None:
            return
        size = os.fstat(descriptor).st_size
        if size < self._offset or _before(descriptor, self._offset) != self._print:
            self._place(0)

    def _more(self) -> list[Record]:
        """Return the lines that end in the next chunk that ends any; none only at the end of the file."""
        if self._descriptor is None:
            return []
        while chunk := os.pread(self._descriptor, _CHUNK, self._offset):
            records = list(self._lines(chunk))
            self._print = (self._print + chunk)[-_PRINT:]
            if records:
                return records
        return []

    def _lines(self, chunk: bytes) -> Iterator[Record]:
        start = 0
        while start < len(chunk):
            end = _line_end(chunk, start)
            part = chunk[start : len(chunk) if end < 0 else end]
            room = self._limit - len(self._line)
            self._line += part[:room]
            self._dropped = self._dropped or len(part) > room
            stop = len(chunk) if end < 0 else end + 1
            self._offset += stop - start
            start = stop
            if end >= 0:
                yield from self._emit(cut=self._dropped)

    def _emit(self, *, cut: bool) -> Iterator[Record]:
        if self._line:
            device, inode = self._identity
            yield Record(bytes(self._line), cursor=f"{device}:{inode}:{self._offset}", cut=cut)
        self._line.clear()
        self._dropped = False

    def _turn(self) -> list[Record]:
        """
        Go over to a new file under the path, once something stands in it and the old one is read to its end.

        Until then the old one is followed: a writer that was not told to reopen goes on writing there.
        """
        try:
            state = self.path.stat()
        except FileNotFoundError:
            return []
        if (state.st_dev, state.st_ino) == self._identity or state.st_size == 0:
            return []
        last = self._more()
        if last:
            return last
        left = list(self._emit(cut=True))
        self.close()
        self._open()
        return left or self._more()


def _line_end(chunk: bytes, start: int) -> int:
    newline, carriage = chunk.find(b"\n", start), chunk.find(b"\r", start)
    return min(newline, carriage) if newline >= 0 and carriage >= 0 else max(newline, carriage)


def _before(descriptor: int, offset: int) -> bytes:
    size = min(_PRINT, offset)
    return os.pread(descriptor, size, offset - size) if size else b""


def _candidates(path: Path) -> Iterator[Path]:
    yield path
    try:
        yield from sorted(each for each in path.parent.iterdir() if each.name.startswith(path.stem) and each != path)
    except OSError:
        return


def _ends_a_line(path: Path, offset: int) -> bool:
    with path.open("rb") as file:
        if offset == 0:
            return True
        file.seek(offset - 1)
        return file.read(1) in (b"\n", b"\r")
