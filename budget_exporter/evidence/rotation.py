"""
The files one log is spread over once it was rotated: which they are, in what order, and which holds a known place.

Rotated files are recognised by their name beside the log: ``NAME.1``, ``NAME.2.gz``, ``NAME-20260203``,
``NAME.20260203-100029.gz``, ``STEM-20260203.SUFFIX``, ``STEM.1.SUFFIX``. Packed ones are read where Python can (gz,
bz2, xz). A place is found again by device and inode, or by the bytes before it, as a copied or packed file has another
inode. What is not found: files moved to another directory, packed by zstd, or deleted.
"""

from __future__ import annotations

import contextlib
import os
import re
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from budget_exporter.errors import SourceError
from budget_exporter.evidence.opened import PACKED, PRINT, Opened, opened

__all__ = ["Place", "newer", "resumed"]

_TRIES = 20


@dataclass(frozen=True, slots=True)
class Place:
    """
    A line's end in one file.

    ``checksum`` is that of the bytes before it, None where it is not known; ``written`` is when the file had last been
    written to, in nanoseconds of Unix time, as far as it had been read.
    """

    device: int
    inode: int
    offset: int
    checksum: int | None = None
    written: int = 0

    @property
    def identity(self) -> tuple[int, int]:
        """Return device and inode."""
        return self.device, self.inode

    def __str__(self) -> str:
        """Return the cursor that stands for it."""
        return f"{self.device}:{self.inode}:{self.offset}:{self.checksum}:{self.written}"

    @classmethod
    def of(cls, cursor: str | None) -> Place | None:
        """Return the place a cursor stands for, None for one that makes no sense."""
        parts = (cursor or "").split(":")
        if not 3 <= len(parts) <= 5 or not all(part.isdecimal() and len(part) < 20 for part in parts):  # noqa: PLR2004
            return None
        numbers = [int(part) for part in parts]
        return cls(*numbers)


def resumed(path: Path, place: Place) -> tuple[list[Opened], int]:
    """
    Return the files to read on from ``place``, oldest first and opened, and the offset in the first of them.

    The last one is what is under ``path``. Where the place is in none of them the offset is 0, and they are those that
    were written to after it.
    """
    return _consistent(path, lambda files: _from(files, path, place))


def newer(path: Path, place: Place) -> list[Opened]:
    """Return the files that came after the one ``place`` is the end of, oldest first and opened, ``path`` the last."""
    files, _ = _consistent(path, lambda files: (_after(files, path, place), 0))
    return files


def _from(files: Sequence[_File], path: Path, place: Place) -> tuple[Sequence[_File], int]:
    same = [i for i, file in enumerate(files) if file.identity == place.identity]
    copies = range(len(files) - 1, -1, -1) if place.checksum is not None else ()
    for i in (*same, *copies):
        if _holds(files[i].path, place):
            return files[i:], place.offset
    return [file for file in files if file.path == path or (place.written and file.written > place.written)], 0


def _after(files: Sequence[_File], path: Path, place: Place) -> Sequence[_File]:
    for i, file in enumerate(files):
        if file.identity == place.identity:
            return files[i + 1 :]
    return [file for file in files if file.path == path or file.written > place.written]


def _consistent(
    path: Path, choose: Callable[[Sequence[_File]], tuple[Sequence[_File], int]]
) -> tuple[list[Opened], int]:
    """
    Return the files chosen of those there are, opened, and what was chosen with them.

    A rotation renames one file after the other: what was listed may be another file when it is opened. Then, or where
    another list is there afterwards, it is done again.
    """
    for _ in range(_TRIES):
        files = _listed(path)
        chosen, offset = choose(files)
        found = _open(chosen)
        if len(found) == len(chosen) and _names(_listed(path)) == _names(files):
            return found, offset
        for file in found:
            file.close()
    raise SourceError(f"{path}: rotated faster than it can be read")


@dataclass(frozen=True, slots=True)
class _File:
    path: Path
    state: os.stat_result
    number: int | None
    date: str

    @property
    def identity(self) -> tuple[int, int]:
        return self.state.st_dev, self.state.st_ino

    @property
    def written(self) -> int:
        return self.state.st_mtime_ns


def _listed(path: Path) -> list[_File]:
    """Return the rotated files beside ``path``, oldest first, and what is under it, if it is there."""
    with contextlib.suppress(FileNotFoundError):
        return [*_rotated(path), _File(path, path.stat(), None, "")]
    return _rotated(path)


def _names(files: Sequence[_File]) -> list[tuple[Path, tuple[int, int]]]:
    return [(file.path, file.identity) for file in files]


def _rotated(path: Path) -> list[_File]:
    """Return the rotated files beside ``path``, oldest first."""
    name = re.escape(path.name)
    stem, suffix = re.escape(path.stem), re.escape(path.suffix)
    mark = r"[.-](?:(?P<{0}n>\d{{1,4}})|(?P<{0}d>\d{{6,8}}[\dTZ_.-]{{0,24}}))"
    pattern = re.compile(
        rf"(?:{name}{mark.format('a')}|{stem}{mark.format('b')}{suffix})(?:\.(?:gz|bz2|xz))?", re.ASCII
    )
    found = []
    with os.scandir(path.parent) as entries:
        for entry in entries:
            match = pattern.fullmatch(entry.name)
            if match is None or entry.name == path.name:
                continue
            with contextlib.suppress(OSError):
                state = entry.stat()
                number = match["an"] or match["bn"]
                date = match["ad"] or match["bd"] or ""
                found.append(_File(Path(entry.path), state, int(number) if number else None, date))
    return _once(_ordered(found))


def _ordered(files: Sequence[_File]) -> list[_File]:
    """Order by the names where they agree on a style (packing may touch the time of a file), else by time."""
    if all(file.number is not None for file in files):
        return sorted(files, key=lambda file: (-(file.number or 0), file.written))
    if all(file.date for file in files):
        return sorted(files, key=lambda file: (file.date, file.written))
    return sorted(files, key=lambda file: file.written)


def _once(files: Sequence[_File]) -> list[_File]:
    """Drop a packed file beside the plain one it is being made of."""
    plain = {file.path.name for file in files}
    return [file for file in files if file.path.suffix not in PACKED or file.path.stem not in plain]


def _holds(path: Path, place: Place) -> bool:
    """Return whether a file holds, before a place, what stood there; without a checksum, whether a line ends there."""
    try:
        file = opened(path)
    except (OSError, SourceError):
        return False
    if file is None:
        return False
    try:
        before = file.before(place.offset)
    except OSError:
        return False
    finally:
        file.close()
    if len(before) != min(PRINT, place.offset):
        return False
    if place.checksum is None:
        return place.offset == 0 or before[-1:] in (b"\n", b"\r")
    return zlib.crc32(before) == place.checksum


def _open(files: Sequence[_File]) -> list[Opened]:
    """Open files that were listed a moment ago, up to one that is not there any more or is another by now."""
    found: list[Opened] = []
    for file in files:
        one = opened(file.path)
        if one is None:
            break
        found.append(one)
        if one.identity != file.identity:
            found.pop().close()
            break
    return found
