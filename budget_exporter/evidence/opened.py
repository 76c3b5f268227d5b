"""An open log file, plain or packed."""

from __future__ import annotations

import contextlib
import os
import stat
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

from budget_exporter.errors import SourceError

if TYPE_CHECKING:
    import bz2
    import gzip
    import lzma

__all__ = ["PACKED", "PRINT", "Opened", "opened"]

PRINT = 64
"""Bytes before a place that are compared: a file cut short and refilled beyond it no longer holds them."""
PACKED = (".gz", ".bz2", ".xz")


class Opened:
    """An open log file, plain or packed; ``pread`` is all that is wanted of it."""

    def __init__(self, path: Path) -> None:
        """Open ``path``; raise OSError where that cannot be done, SourceError where it is no regular file."""
        self.path = path
        # A FIFO would block, and opening it would take another reader's lines.
        self._descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
        state = self.state()
        if not stat.S_ISREG(state.st_mode):
            self.close()
            raise SourceError(f"{path}: not a regular file")
        self.identity = (state.st_dev, state.st_ino)
        self._packed = _unpacker(path, self._descriptor)

    def state(self) -> os.stat_result:
        """Return the file's state now."""
        return os.fstat(self._descriptor)

    def pread(self, size: int, offset: int) -> bytes:
        """Return up to ``size`` bytes from ``offset`` on; a packed file ends where it is broken."""
        if self._packed is None:
            return os.pread(self._descriptor, size, offset)
        data = b""
        with contextlib.suppress(OSError, EOFError, ValueError, zlib.error, _lzma_error()):
            if self._packed.tell() != offset:
                self._packed.seek(offset)
            if self._packed.tell() == offset:
                # Not read(): what lies before a damage would go down with it.
                while more := self._packed.read1(size - len(data)):
                    data += more
        return data

    def before(self, offset: int) -> bytes:
        """Return the bytes before ``offset`` by which a place is known again."""
        size = min(PRINT, offset)
        return self.pread(size, offset - size) if size else b""

    def data_from(self, offset: int) -> int:
        """Return where the next byte that was written stands: a file cut short under its writer begins with a hole."""
        try:
            return os.lseek(self._descriptor, offset, os.SEEK_DATA)
        except OSError:
            return offset

    @property
    def packed(self) -> bool:
        """Return whether its bytes are not those of the lines."""
        return self._packed is not None

    def close(self) -> None:
        """Close it."""
        os.close(self._descriptor)


def _unpacker(path: Path, descriptor: int) -> gzip.GzipFile | bz2.BZ2File | lzma.LZMAFile | None:
    """Return a reader of what is packed in a file, None for a plain one; the libraries are loaded only then."""
    if path.suffix not in PACKED:
        return None
    raw = os.fdopen(descriptor, "rb", closefd=False)
    if path.suffix == ".gz":
        import gzip  # noqa: PLC0415 - rarely needed

        return gzip.GzipFile(fileobj=raw)
    if path.suffix == ".bz2":
        import bz2  # noqa: PLC0415 - rarely needed

        return bz2.BZ2File(raw)
    import lzma  # noqa: PLC0415 - rarely needed

    return lzma.LZMAFile(raw)


def _lzma_error() -> type[Exception]:
    import lzma  # noqa: PLC0415 - rarely needed

    return lzma.LZMAError


def opened(path: Path) -> Opened | None:
    """Open a file if it is there; raise OSError or SourceError where it is and cannot be read."""
    try:
        return Opened(path)
    except FileNotFoundError:
        return None
