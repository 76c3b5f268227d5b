"""Write and rewrite the files of a synthetic tree the way a kernel's would change: in place."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["link", "rewrite", "write"]


def write(path: Path, text: str | bytes) -> None:
    """
    Create ``path`` with its folders; a ``text`` without a newline gets one, as sysfs prints.

    The mode is 0644 where sysfs has 0444, so that an ordinary user can run the demo and change its figures.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    data = text if isinstance(text, bytes) else _line(text)
    path.write_bytes(data)
    path.chmod(0o644)


def rewrite(path: Path, text: str) -> None:
    """
    Change what an existing file says and keep its inode, so that a descriptor held on it sees the change.

    No reader finds it empty: the old end is overwritten with newlines in the same write and then cut off. Unlike a
    kernel's counter it is not atomic: a read in the same microsecond may find old and new bytes in one line.
    """
    data = _line(text)
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        surplus = os.fstat(descriptor).st_size - len(data)
        os.pwrite(descriptor, data + b"\n" * max(0, surplus), 0)
        os.ftruncate(descriptor, len(data))
    finally:
        os.close(descriptor)


def link(path: Path, target: Path) -> None:
    """Make ``path`` a relative symlink to ``target``, so that the tree can be bound anywhere."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.symlink_to(os.path.relpath(target, path.parent))


def _line(text: str) -> bytes:
    return (text if text.endswith("\n") else text + "\n").encode()
