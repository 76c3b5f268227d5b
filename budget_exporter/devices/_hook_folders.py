"""Where hooks write: a folder that was configured, and those that engines were told of in their environment."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

__all__ = ["Writers", "opened", "told"]

VARIABLE = b"BUDGET_NEURON_HOOK_DIR="
_ENVIRONMENT = 1 << 20
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW


@contextlib.contextmanager
def opened(path: Path, below: str = "") -> Iterator[int | None]:
    """
    Give a descriptor of the folder ``path``, or of ``below`` in it; None where there is none.

    ``below`` is a path inside another process's root: no link in it is followed, since an absolute one would lead out
    of that root into ours. Raise OSError as the kernel does for a folder that may not be read.
    """
    descriptor: int | None = None
    try:
        # The root of a process is itself a link, which is to be followed.
        descriptor = os.open(path, _DIRECTORY & ~os.O_NOFOLLOW)
        for part in PurePosixPath(below).parts:
            if part != "/":
                deeper = os.open(part, _DIRECTORY, dir_fd=descriptor)
                os.close(descriptor)
                descriptor = deeper
        yield descriptor
    except (FileNotFoundError, NotADirectoryError, ProcessLookupError):
        yield None
    finally:
        if descriptor is not None:
            os.close(descriptor)


def told(procfs: Path, pid: int) -> str | None:
    """Return the folder that the environment of a process names; None without one or where it may not be read."""
    try:
        with (procfs / str(pid) / "environ").open("rb") as file:
            environment = file.read(_ENVIRONMENT).split(b"\0")
    except OSError:
        return None
    for entry in environment:
        if entry.startswith(VARIABLE):
            folder = os.fsdecode(entry.removeprefix(VARIABLE))
            return folder if folder.startswith("/") and ".." not in PurePosixPath(folder).parts else None
    return None


class Writers:
    """The processes that may have written: found by PID in their own namespace and by the time of their start."""

    def __init__(self, procfs: Path, pids: Iterable[int]) -> None:
        self._procfs = procfs
        self._known: dict[tuple[int, int], list[tuple[int, int | None]]] = {}
        self.started: dict[int, int] = {}
        """Start in clock ticks by PID as we see it, of those that live."""
        for pid in pids:
            ticks = _start_ticks(procfs / str(pid))
            if ticks is not None:
                self.started[pid] = ticks
                self._known.setdefault((_inner(procfs / str(pid)) or pid, ticks), []).append(
                    (pid, self._namespace(pid))
                )

    def find(self, pid: int, ticks: int, namespace: int | None) -> int | None:
        """
        Return the PID, as we see it, of the process that is ``pid`` in ``namespace``; None where it does not live.

        None too where two containers each have such a process: whose the record is cannot be told then.
        """
        possible = [
            (seen, own)
            for seen, own in self._known.get((pid, ticks), ())
            if namespace is None or own is None or own == namespace
        ]
        return possible[0][0] if len(possible) == 1 else None

    def _namespace(self, pid: int) -> int | None:
        try:
            return (self._procfs / str(pid) / "ns/pid").stat().st_ino
        except OSError:
            return None


def _start_ticks(process: Path) -> int | None:
    try:
        fields = (process / "stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
        return int(fields[19]) if fields[0] not in "ZXx" else None
    except (OSError, ValueError, IndexError):
        return None


def _inner(process: Path) -> int | None:
    """Return the PID of a process inside the innermost namespace it is in."""
    try:
        lines = (process / "status").read_text(encoding="utf-8", errors="replace").splitlines()
        return next(int(line.split()[-1]) for line in lines if line.startswith("NSpid:"))
    except (OSError, ValueError, IndexError, StopIteration):
        return None
