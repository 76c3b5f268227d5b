"""What would be started next time, and the files that say so: read again only when one of them changed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from budget_exporter.engines._config_reader import FileMissingError, inside, read_below
from budget_exporter.errors import SourceError

__all__ = ["Plan", "Trail", "UnresolvedError"]


class UnresolvedError(Exception):
    """What would be started cannot be told from the files; the message says why, in words without values."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The server's command line and environment of the next start; neither leaves the process."""

    words: tuple[str, ...] | None
    """Program and arguments as far as the files tell them; None where they only set the environment."""
    environ: Mapping[str, str] = field(default_factory=dict)
    cwd: str | None = None
    """Its working directory, None where that stays as it is."""
    image: bool = False
    """Whether the program may be the image's own, so that ``words`` can be its arguments only."""


Signature = tuple[int, int, int, int] | None


class Trail:
    """Read files below ``root`` and remember each one looked at, so that a change of any can be told."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._seen: dict[str, Signature] = {}

    @property
    def changed(self) -> bool:
        """Return whether anything that was looked at is other than it was, a file that was not there included."""
        return any(self._signature(path) != signature for path, signature in self._seen.items())

    def text(self, path: str) -> str | None:
        """
        Return the text of the file at ``path``, None where there is none.

        Raise SourceError where it cannot be read: no plain file, above 1 MiB, not UTF-8, not allowed.
        """
        self._look(path)
        try:
            return read_below(self.root, path).text
        except FileMissingError:
            return None
        except SourceError as error:
            raise type(error)(f"{path}: {error}") from error

    def names(self, folder: str) -> list[str]:
        """Return the sorted names in ``folder``, none where it is not there or may not be listed."""
        self._look(folder)
        try:
            return sorted(os.listdir(inside(str(self.root), folder)))  # noqa: PTH208 - names only
        except (OSError, SourceError, ValueError):
            return []

    def _look(self, path: str) -> None:
        # Taken before the reading: what changes in between is read again.
        self._seen.setdefault(path, self._signature(path))

    def _signature(self, path: str) -> Signature:
        try:
            status = os.stat(inside(str(self.root), path))  # noqa: PTH116 - a path as text
        except (OSError, SourceError, ValueError):
            return None
        # Not the time of the content: a copy that keeps it is another file all the same.
        return (status.st_dev, status.st_ino, status.st_ctime_ns, status.st_size)
