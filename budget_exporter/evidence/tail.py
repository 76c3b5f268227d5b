"""A file that grows, is renamed, replaced or cut short: its lines, once each."""

from __future__ import annotations

import contextlib
import os
import zlib
from pathlib import Path

from budget_exporter.errors import SourceDenied, SourceError
from budget_exporter.evidence import Record
from budget_exporter.evidence.blocks import Blocks, Piece
from budget_exporter.evidence.opened import PRINT, Opened, opened
from budget_exporter.evidence.rotation import Place, newer, resumed

__all__ = ["Tail"]

_CHUNK = 1 << 18


class Tail:
    """
    Read ``path``; blocking.

    A record is one line, or as many whole lines as one read brought. ``cursor`` is that of an earlier record: reading
    goes on after it if that place is still to be found under the path or in a rotated file beside it, else at the start
    of what was written since. ``limit`` are the bytes of a line that are kept. ``rotated`` says that without a cursor
    the rotated files are to be read before.
    """

    def __init__(self, path: Path, cursor: str | None, limit: int, *, rotated: bool = False) -> None:
        self.path = path
        self._place = Place.of(cursor) or (Place(0, 0, 0, None, 1) if rotated else None)
        self._file: Opened | None = None
        self._next: list[Opened] = []
        """Rotated files that are to be read before what is under the path."""
        self._offset = 0
        self._written = 0
        self._lines = Blocks(limit)
        self._print = b""

    @property
    def opened(self) -> bool:
        """Return whether there is a file under the path that is being read."""
        return self._file is not None

    def close(self) -> None:
        """Release the descriptors."""
        for file in (self._file, *self._next):
            if file is not None:
                file.close()
        self._file, self._next = None, []

    def read(self) -> list[Record]:
        """
        Return the next records, an empty list where there are none now.

        Raise SourceError where the directory cannot be read or the path is no regular file, SourceDenied where it may
        not be read.
        """
        try:
            if self._file is None and not self._open():
                return []
            return self._cut_short() or self._more() or self._turn()
        except PermissionError as error:
            raise SourceDenied(f"{self.path}: {error.strerror}; needs CAP_DAC_READ_SEARCH or its group") from error
        except OSError as error:
            raise SourceError(f"{self.path}: {error.strerror}") from error

    def _open(self) -> bool:
        """Open what is to be read: from our place on if there is one, else what is under the path."""
        place, self._place = self._place, None
        offset = 0
        if place is not None:
            self._next, offset = resumed(self.path, place)
        else:
            file = opened(self.path)
            self._next = [] if file is None else [file]
        if not self._next:
            self._place = place
            os.stat(self.path.parent)  # noqa: PTH116 - raises where the directory is missing too
            return False
        self._take(self._next.pop(0), offset)
        return True

    def _take(self, file: Opened, offset: int) -> None:
        """Read on in ``file``; a line that has begun goes on there."""
        if self._file is not None and self._file is not file:
            self._file.close()
        self._file = file
        self._offset = offset
        self._print = file.before(offset)

    def _here(self, file: Opened) -> Place:
        return Place(*file.identity, self._offset, zlib.crc32(self._print), self._written)

    def _cut_short(self) -> list[Record]:
        """
        Where the file no longer holds what was before our place, go on in what it was copied to, if it was.

        After that, and where there is no copy, it is read from its start.
        """
        file = self._file
        if file is None or file.packed:
            return []
        state = file.state()
        if state.st_size >= self._offset and file.before(self._offset) == self._print:
            self._written = state.st_mtime_ns
            return []
        self._next, offset = resumed(self.path, self._here(file))
        left = [] if offset else self._left()
        self._take(self._next.pop(0) if self._next else file, offset)
        return left

    def _more(self) -> list[Record]:
        """Return the lines that end in the next chunk that ends any; none only at the end of the file."""
        file = self._file
        while file is not None and (chunk := file.pread(_CHUNK, self._offset)):
            written = chunk if chunk[0] or self._lines.pending else self._past_hole(file, chunk)
            before, start = self._print, self._offset
            self._offset += len(written)
            self._print = _last(before, written, len(written))
            pieces = self._lines.feed(written)
            if pieces:
                return [self._record(piece, start + piece[1], _last(before, written, piece[1])) for piece in pieces]
        return []

    def _record(self, piece: Piece, offset: int, before: bytes) -> Record:
        data, _, cut = piece
        identity = self._file.identity if self._file else (0, 0)
        return Record(data, cursor=str(Place(*identity, offset, zlib.crc32(before), self._written)), cut=cut)

    def _past_hole(self, file: Opened, chunk: bytes) -> bytes:
        """Return what of a chunk was written: a writer whose file was cut short goes on at its place, behind a hole."""
        written = chunk.lstrip(b"\0")
        beyond = self._offset + len(chunk) - len(written)
        self._offset = beyond if written else max(beyond, file.data_from(self._offset))
        self._print = file.before(self._offset)
        return written

    def _left(self) -> list[Record]:
        """Return the line that began in a file in which nothing will come any more."""
        return [self._record(piece, self._offset, self._print) for piece in self._lines.flush(cut=True)]

    def _turn(self) -> list[Record]:
        """
        Go over to the next file once this one is read to its end: one rotated since, else what is under the path.

        The newest rotated one is followed until something stands under the path: a writer that was not told to reopen
        goes on writing there.
        """
        if self._file is None:
            return []
        if not self._next:
            try:
                state = self.path.stat()
            except FileNotFoundError:
                return []
            if (state.st_dev, state.st_ino) == self._file.identity or state.st_size == 0:
                return []
            self._next = newer(self.path, self._here(self._file))
        if not self._next or self._waits():
            return []
        if last := self._more():
            return last
        left = self._left()
        self._take(self._next.pop(0), 0)
        return left or self._more()

    def _waits(self) -> bool:
        """Return whether the next file is the last one and nothing stands in it yet."""
        file = self._next[0]
        if len(self._next) > 1 or file.packed or file.state().st_size:
            return False
        with contextlib.suppress(FileNotFoundError):
            state = self.path.stat()
            if (state.st_dev, state.st_ino) == file.identity:
                return True
        # Rotated away as empty as it was: another stands there now, or will.
        self._next.pop().close()
        return True


def _last(before: bytes, chunk: bytes, end: int) -> bytes:
    """Return the bytes before ``end`` in ``chunk`` by which the place is known again; ``before`` precede the chunk."""
    return chunk[end - PRINT : end] if end >= PRINT else (before + chunk[:end])[-PRINT:]
