"""Read the file an engine was given, as the engine sees it: inside its own root and working directory."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from budget_exporter.errors import SourceDenied, SourceError

__all__ = ["FileMissingError", "Text", "inside", "is_directory", "read_below", "read_config", "read_text"]

_LARGEST = 1 << 20
_LINKS = 40


class FileMissingError(SourceError):
    """There is no such file."""


@dataclass(frozen=True, slots=True)
class Text:
    """What a file said."""

    text: str
    changed: float
    """Unix time of the last change of its content."""


def read_config(procfs: Path, pid: int, cwd: str | None, path: str) -> str:
    """Return the text of ``path``, with the arguments and errors of ``read_text``."""
    return read_text(procfs, pid, cwd, path).text


def read_text(procfs: Path, pid: int, cwd: str | None, path: str) -> Text:
    """
    Return the text of ``path`` as process ``pid`` sees it; ``cwd`` is its working directory, None where unknown.

    Raise FileMissingError where there is none, SourceError where it is no plain file, is above 1 MiB or is not UTF-8,
    SourceDenied where it may not be read.
    """
    return _read(lambda: _seen(procfs, pid, cwd, path))


def read_below(root: Path, path: str) -> Text:
    """Return the text of the absolute ``path`` as who has ``root`` for its root sees it; errors as of ``read_text``."""
    return _read(lambda: inside(str(root), path))


def _read(place: Callable[[], str]) -> Text:
    try:
        return _text(place())
    except PermissionError as error:
        raise SourceDenied("permission denied (CAP_SYS_PTRACE, CAP_DAC_READ_SEARCH)") from error
    except (FileNotFoundError, NotADirectoryError) as error:
        raise FileMissingError(error.strerror or "no such file") from error
    except OSError as error:
        raise SourceError(error.strerror or "cannot be read") from error
    except ValueError as error:
        raise SourceError("not a path") from error


def is_directory(procfs: Path, pid: int, cwd: str | None, path: str) -> bool:
    """Return whether process ``pid`` sees a directory at ``path``; False also where that cannot be told."""
    try:
        return Path(_seen(procfs, pid, cwd, path)).is_dir()
    except (OSError, SourceError, ValueError):
        return False


def _seen(procfs: Path, pid: int, cwd: str | None, path: str) -> str:
    """Return where ``path`` of process ``pid`` lies for us; raise OSError, SourceError or SourceDenied."""
    root = f"{procfs}/{pid}/root"
    if not path.startswith("/"):
        if cwd is None:
            raise SourceDenied("the working directory cannot be read (CAP_SYS_PTRACE)")
        path = f"{_without_root(cwd, str(Path(root).readlink()))}/{path}"
    return inside(root, path)


def _without_root(cwd: str, root: str) -> str:
    """A working directory is told as we see it; below a chroot the root's own path comes first."""
    return cwd[len(root) :] if root != "/" and cwd.startswith(f"{root}/") else cwd


def inside(root: str, path: str) -> str:
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


def _text(path: str) -> Text:
    # Without O_NONBLOCK a FIFO in the file's place would hold us for ever.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise SourceError("not a plain file")
        # Files of procfs and tracefs have no size, and some are streams: reading takes lines from those they are for.
        data = file.read(_LARGEST + 1) if found.st_size else b""
    if len(data) > _LARGEST:
        raise SourceError("larger than 1 MiB")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise SourceError("not UTF-8") from error
    return Text(text, found.st_mtime)
