"""Read sysfs files: counters through descriptors that stay open, and small texts once."""

from __future__ import annotations

import errno
import os
import re
import stat
from pathlib import Path

from budget_exporter.errors import SourceDenied, SourceError

__all__ = [
    "CounterMissingError",
    "CounterRangeError",
    "KeptCounter",
    "parse_count",
    "read_count",
    "read_text",
    "text_or_empty",
]

# Read-only: a write to a counter can change it. O_NONBLOCK: a pipe laid where a file should be must not hang the open.
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
_COUNT_READ = 64
_TEXT_READ = 1 << 16
# Kernel counters are unsigned 64 bit; one that was decremented below zero prints close to 2**64.
_LARGEST_COUNT = (1 << 63) - 1
_COUNT = re.compile(rb"([0-9]+)\n+")
_GONE = frozenset({errno.ENODEV, errno.EIO, errno.ENOENT, errno.ESTALE, errno.ENXIO})


class CounterMissingError(SourceError):
    """The driver has no such counter: the file does not exist."""


class CounterRangeError(SourceError):
    """The counter holds more than any memory has: it was decremented below zero."""


class _RangeError(ValueError):
    pass


def parse_count(data: bytes) -> int:
    """
    Return the number of bytes a counter file holds.

    ``data`` is the whole file: decimal digits and a newline, as the kernel prints them. A number without its newline
    was cut while it was read, and its digits are not the figure. Raise ValueError that says what is wrong otherwise.
    """
    match = _COUNT.fullmatch(data)
    if match is None:
        raise ValueError(_complaint(data))
    count = int(match[1])
    if count > _LARGEST_COUNT:
        raise _RangeError(f"out of range: {_shown(data)}")
    return count


def _complaint(data: bytes) -> str:
    text = data.strip()
    if not text:
        return "empty"
    if text.isdigit() and not data.endswith(b"\n"):
        return f"cut short: {_shown(data)}"
    if re.fullmatch(rb"-[0-9]+", text):
        return f"negative: {_shown(data)}"
    return f"not a number: {_shown(data)}"


def _shown(data: bytes) -> str:
    return repr(data[:24].decode("ascii", "replace"))


def read_text(path: Path) -> str:
    """
    Return the text of a small file without blanks at its ends; invalid UTF-8 is replaced.

    Raise OSError as the kernel does, and with EINVAL for what is no regular file (a device node is never opened).
    """
    descriptor = _open_regular(path)
    try:
        return os.pread(descriptor, _TEXT_READ, 0).decode("utf-8", "replace").strip()
    finally:
        os.close(descriptor)


def text_or_empty(path: Path) -> str:
    """Return what ``read_text`` does, empty where the file is not there or may not be read."""
    try:
        return read_text(path)
    except OSError:
        return ""


def read_count(path: Path) -> int:
    """
    Return the number in a counter file that is opened for this one read; what is no number is read once more.

    Raise OSError as ``read_text`` does, and ValueError that says what is wrong with the text.
    """
    descriptor = _open_regular(path)
    try:
        try:
            return parse_count(os.pread(descriptor, _COUNT_READ, 0))
        except ValueError:
            return parse_count(os.pread(descriptor, _COUNT_READ, 0))
    finally:
        os.close(descriptor)


def _open_regular(path: Path) -> int:
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return os.open(path, _FLAGS)


class KeptCounter:
    """
    One counter file, read over and over through a descriptor that stays open.

    A descriptor on a removed file can go on answering, so ``check`` has to be called now and then.
    """

    __slots__ = ("_fd", "_path", "key")

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = -1
        self.key: tuple[int, int] | None = None
        """Device and inode of the open file, None while it is closed: another file is another card."""

    def read(self) -> int:
        """
        Return the counter in bytes; a read that is no number and a descriptor that died are tried once more.

        Raise CounterMissingError where there is no such file, SourceDenied where it may not be read, CounterRangeError
        where it was decremented below zero, and SourceError that names the file for everything else.
        """
        try:
            return parse_count(self._pread())
        except ValueError:
            pass
        except OSError as error:
            if error.errno not in _GONE:
                raise self._failure(error) from error
        try:
            return parse_count(self._pread())
        except _RangeError as error:
            raise CounterRangeError(f"{self._path.name}: {error}") from error
        except ValueError as error:
            raise SourceError(f"{self._path.name}: {error}") from error
        except OSError as error:
            raise self._failure(error) from error

    def check(self, path: Path) -> None:
        """Let go of the descriptor if ``path`` no longer leads to its file; the next read opens what is there."""
        if path != self._path:
            self.close()
            self._path = path
        if self._fd < 0:
            return
        try:
            found = path.stat()
        except OSError:
            self.close()
            return
        if (found.st_dev, found.st_ino) != self.key:
            self.close()

    def close(self) -> None:
        """Release the descriptor; a later read opens the file again."""
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1
        self.key = None

    def _pread(self) -> bytes:
        if self._fd < 0:
            self._open()
        try:
            return os.pread(self._fd, _COUNT_READ, 0)
        except OSError:
            self.close()
            raise

    def _open(self) -> None:
        self._fd = _open_regular(self._path)
        opened = os.fstat(self._fd)
        self.key = (opened.st_dev, opened.st_ino)

    def _failure(self, error: OSError) -> SourceError:
        if error.errno == errno.ENOENT:
            return CounterMissingError(f"{self._path.name}: no such file")
        if error.errno == errno.EACCES:
            return SourceDenied(f"{self._path.name}: permission denied (CAP_DAC_READ_SEARCH grants it)")
        return SourceError(f"{self._path.name}: {error.strerror}")
