"""
Follow a container's log below ``/var/log/pods``, where the kubelet keeps it: ``NAMESPACE_POD_UID/CONTAINER/N.log``.

N goes up by one with every restart of the container; a file is rotated as ``N.log.20260203-100029`` and packed the next
time. A pod of the same name that is made anew has another UID, and is followed on. What the kubelet has deleted
(``containerLogMaxFiles``, garbage collection) cannot be had.
"""

from __future__ import annotations

import contextlib
import fnmatch
import os
import re
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from budget_exporter.errors import SourceDenied, SourceError
from budget_exporter.evidence import LogTarget, Record
from budget_exporter.evidence.followed import BEAT, Followed
from budget_exporter.evidence.tail import Tail
from budget_exporter.roots import Roots

__all__ = ["PodTail", "PodsSource", "source"]

_PODS = "var/log/pods"
_LINKS = "var/log/containers"
_NUMBER = re.compile(r"(\d{1,9})\.log")
_LINKED = re.compile(r".*/pods/(?P<pod>[^/]+)/(?P<container>[^/]+)/\d+\.log")


def source(roots: Roots, poll: float = 0.5, limit: int = 65536) -> PodsSource:
    """
    Return the log source of the pods on the host whose root file system is ``roots.rootfs``.

    ``poll`` are the seconds between two looks at a log that has not grown, ``limit`` the bytes of a line that are kept.
    """
    return PodsSource(roots.rootfs, poll, limit)


class PodsSource:
    """Follow containers of pods; one thread each."""

    name = "pods"
    beat: float | None = BEAT

    def __init__(self, rootfs: Path, poll: float, limit: int) -> None:
        self._rootfs = rootfs
        self._poll = poll
        self._limit = limit

    async def batches(self, target: LogTarget, cursor: str | None) -> AsyncIterator[Sequence[Record]]:
        """
        Yield the lines of ``target.pod`` (``NAMESPACE/POD/CONTAINER``, shell patterns) or of ``target.container_id``.

        The newest run of the container is read from its start, what was rotated of it too, or what comes after
        ``cursor``. Lines have the time that the container runtime stamped them with.
        Raise SourceError where no such pod is on this host, or several are; SourceDenied where the logs may not be
        read.
        """
        tail = PodTail(self._rootfs, target, cursor, self._limit)
        followed = Followed(tail, f"pods:{target.engine}", self._poll, self._limit, None)
        followed.start()
        try:
            while True:
                yield await followed.next()
        finally:
            followed.stop()


@dataclass(frozen=True, slots=True)
class _Place:
    """The log of one run: a pod's directory with the container's in it, and the run's number."""

    directory: Path
    number: int

    @property
    def path(self) -> Path:
        return self.directory / f"{self.number}.log"

    def __str__(self) -> str:
        return f"{self.directory.parent.name}/{self.directory.name}/{self.number}"


class PodTail:
    """Read the log of one container of a pod, run after run; blocking. ``cursor`` is that of an earlier record."""

    def __init__(self, rootfs: Path, target: LogTarget, cursor: str | None, limit: int) -> None:
        self._rootfs = rootfs
        self._pods = rootfs / _PODS
        self._target = target
        self._limit = limit
        self._cursor = cursor
        self._place: _Place | None = None
        self._tail: Tail | None = None

    @property
    def opened(self) -> bool:
        """Return whether there is a file that is being read."""
        return self._tail is not None and self._tail.opened

    def close(self) -> None:
        """Release the file."""
        if self._tail is not None:
            self._tail.close()
        self._tail = None

    def read(self) -> list[Record]:
        """Return what is new; raise SourceError or SourceDenied as ``batches`` says."""
        try:
            if self._tail is None:
                self._open()
            records = self._tail.read() if self._tail else []
            following = self._following() if not records else None
            if following is not None and self._tail is not None:
                # What was written before the next run began is there now.
                records = self._tail.read()
                if not records:
                    self._take(following, None)
        except PermissionError as error:
            raise SourceDenied(f"{error.filename}: {error.strerror}; needs CAP_DAC_READ_SEARCH or root") from error
        except OSError as error:
            raise SourceError(f"{error.filename}: {error.strerror}") from error
        return [replace(record, cursor=f"{self._place}|{record.cursor}") for record in records]

    def _open(self) -> None:
        place, at = self._resumed()
        if place is None:
            directories = self._directories()
            if not directories:
                raise SourceError(f"no pod {self._target.pod or self._target.container_id} below {self._pods}")
            pods = {directory.parent.name.rpartition("_")[0] for directory in directories}
            if len(pods) > 1:
                raise SourceError(f"several pods are {self._target.pod}: {', '.join(sorted(pods))}")
            place = _newest(directories)
        if place is not None:
            self._take(place, at)

    def _take(self, place: _Place, at: str | None) -> None:
        self.close()
        path = place.path
        # With docker as the runtime it is a link, and absolute: it leads below the same root.
        with contextlib.suppress(OSError):
            link = os.readlink(path)  # noqa: PTH115 - the text of it is wanted
            path = self._rootfs / link.lstrip("/") if link.startswith("/") else path
        self._place = place
        self._tail = Tail(path, at, self._limit, rotated=True)

    def _resumed(self) -> tuple[_Place | None, str | None]:
        cursor, self._cursor = self._cursor, None
        where, bar, at = (cursor or "").partition("|")
        pod, container, number = (*where.split("/"), "", "", "")[:3]
        if not bar or not number.isdecimal() or {pod, container} & {"", ".", ".."}:
            return None, None
        place = _Place(self._pods / pod / container, int(number))
        if place.path.exists():
            return place, at
        later = [each for each in _numbers(place.directory) if each > place.number]
        return (_Place(place.directory, min(later)), None) if later else (None, None)

    def _following(self) -> _Place | None:
        """Return the next run, of the same pod or of one that replaced it."""
        place = self._place
        if place is None:
            return None
        later = [number for number in _numbers(place.directory) if number > place.number]
        if later:
            return _Place(place.directory, min(later))
        name = place.directory.parent.name.rpartition("_")[0]
        others = [
            directory
            for directory in self._pods.glob(f"{glob_escape(name)}_*/{glob_escape(place.directory.name)}")
            if directory != place.directory
        ]
        return _newest([each for each in others if _made(each) > _made(place.directory)])

    def _directories(self) -> list[Path]:
        """Return the directories that hold logs of the target."""
        pod, identity = self._target.pod, self._target.container_id
        if pod is None and identity is not None:
            return self._linked(identity)
        parts = (pod or "").split("/")
        if len(parts) != 3 or not all(parts):  # noqa: PLR2004 - the three of them
            raise SourceError(f"no NAMESPACE/POD/CONTAINER given for the log of {self._target.engine}: {pod!r}")
        namespace, name, container = parts
        pattern = f"{namespace}_{name}_*"
        with os.scandir(self._pods) as entries:
            pods = [Path(entry.path) for entry in entries if fnmatch.fnmatchcase(entry.name, pattern)]
        return [
            each
            for path in pods
            for each in path.iterdir()
            if fnmatch.fnmatchcase(each.name, container) and _numbers(each)
        ]

    def _linked(self, container_id: str) -> list[Path]:
        """Return the directory of a container's log by its id, which only the links for log shippers tell."""
        with os.scandir(self._rootfs / _LINKS) as entries:
            links = [entry.path for entry in entries if entry.name.endswith(f"-{container_id}.log")]
        found = [match for link in links if (match := _LINKED.fullmatch(os.readlink(link)))]  # noqa: PTH115 - its text
        return [self._pods / match["pod"] / match["container"] for match in found]


def glob_escape(name: str) -> str:
    """Return a name as a pattern that stands for itself."""
    return re.sub(r"([*?[])", r"[\1]", name)


def _numbers(directory: Path) -> list[int]:
    """Return the numbers of the runs that have a log."""
    try:
        with os.scandir(directory) as entries:
            return [int(match[1]) for entry in entries if (match := _NUMBER.fullmatch(entry.name))]
    except FileNotFoundError:
        return []


def _newest(directories: Sequence[Path]) -> _Place | None:
    """Return the latest run in the directory that was made last."""
    places = [_Place(each, max(numbers)) for each in directories if (numbers := _numbers(each))]
    return max(places, key=lambda place: _made(place.directory), default=None)


def _made(directory: Path) -> float:
    """Return about when a pod's directory was made: when the first of what is left in it was last written to."""
    with contextlib.suppress(OSError):
        return directory.parent.stat().st_mtime
    return 0.0
