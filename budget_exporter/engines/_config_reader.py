"""Read the file an engine was given, as the engine sees it: inside its own root and working directory."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from budget_exporter.errors import SourceDenied, SourceError

__all__ = ["read_config"]

_LARGEST = 1 << 20
_LINKS = 40


def read_config(procfs: Path, pid: int, cwd: str | None, path: str) -> str:
    """
    Return the text of ``path`` as process ``pid`` sees it; ``cwd`` is its working directory, None where unknown.

    Raise SourceError where the file is not there, is no plain file, is above 1 MiB or is not UTF-8, SourceDenied where
    it may not be read.
    """
    root = f"{procfs}/{pid}/root"
    try:
        if not path.startswith("/"):
            if cwd is None:
                raise SourceDenied("the working directory cannot be read (CAP_SYS_PTRACE)")
            path = f"{_without_root(cwd, str(Path(root).readlink()))}/{path}"
        return _text(_inside(root, path))
    except PermissionError as error:
        raise SourceDenied("permission denied (CAP_SYS_PTRACE, CAP_DAC_READ_SEARCH)") from error
    except OSError as error:
        raise SourceError(error.strerror or "cannot be read") from error


def _without_root(cwd: str, root: str) -> str:
    """A working directory is told as we see it; below a chroot the root's own path comes first."""
    return cwd[len(root) :] if root != "/" and cwd.startswith(f"{root}/") else cwd


def _inside(root: str, path: str) -> str:
    """Return the file ``path`` leads to without leaving ``root``: no link of theirs may be followed on our side."""
    todo, links = path.split("/")[::-1], 0
    done: list[str] = []
    while todo:
        part = todo.pop()
        if part in ("", "."):
            continue
        if part == "..":
            done = done[:-1]
            continue
        here = "/".join([root, *done, part])
        try:
            target = str(Path(here).readlink())
        except OSError:
            done.append(part)
            continue
        links += 1
        if links > _LINKS:
            raise SourceError("too many symbolic links")
        todo += target.split("/")[::-1]
        if target.startswith("/"):
            done = []
    return "/".join([root, *done])


def _text(path: str) -> str:
    # Without O_NONBLOCK a FIFO in the file's place would hold us for ever.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise SourceError("not a plain file")
        data = file.read(_LARGEST + 1)
    if len(data) > _LARGEST:
        raise SourceError("larger than 1 MiB")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise SourceError("not UTF-8") from error
