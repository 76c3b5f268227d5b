"""
Follow one unit's or container's entries of the systemd journal, through a ``journalctl`` child.

``-f`` alone (and ``-n 0``) loses all but the last entry of the first batch when it starts before the first matching
entry exists (systemd 252); ``-n all`` does not. ``--after-cursor`` skips an entry that was not passed where the one it
names has been deleted (``sd_journal_next_skip(j, 2)``), so ``--cursor`` is asked for and its own entry left out. Not
``--quiet``, so that it says why it ends and what it may not read; ``--all`` keeps fields longer than 4096 bytes, which
are null without.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from budget_exporter.errors import SourceDenied, SourceError
from budget_exporter.evidence import LogTarget, Record
from budget_exporter.evidence.journal_entries import Entries
from budget_exporter.roots import Roots

__all__ = ["JournalSource", "source"]

_FIELDS = "MESSAGE,_PID,_TRANSPORT,PRIORITY,CONTAINER_PARTIAL_MESSAGE"
_CHUNK = 1 << 16
_QUIET = 0.25
"""Seconds without an entry after which we say that there is nothing more for now."""
_BEAT = 2.0
"""Seconds between two looks at a child that says nothing."""
_STUCK = frozenset("TtDZX")
"""States of proc(5) in which nothing can be read: stopped, or in the kernel and not to be woken."""
_MUCH = 8192
"""Bytes from which on they are taken apart off the event loop."""
_UNSEEN = re.compile(r"not seeing messages|insufficient permissions|[Pp]ermission denied")
_PLACES = ("var/log/journal", "run/log/journal")
_ABSENT = re.compile(r"No journal files were found")
_NEEDS = "Needs the group systemd-journal or CAP_DAC_READ_SEARCH"
_FULL_ID, _SHORT_ID = re.compile(r"[0-9a-f]{64}"), re.compile(r"[0-9a-f]{12}")
_END = 1.0
"""Seconds the child gets to end by itself before it is killed."""
_ERROR_BYTES = 4096


def source(roots: Roots) -> JournalSource:
    """Return the log source of the host whose root file system is ``roots.rootfs``."""
    return JournalSource(roots.rootfs)


class JournalSource:
    """Follow journals; one child each."""

    name = "journal"
    beat: float | None = _BEAT

    def __init__(self, rootfs: Path) -> None:
        self._rootfs = rootfs

    async def batches(self, target: LogTarget, cursor: str | None) -> AsyncIterator[Sequence[Record]]:
        """
        Yield the entries of ``target.unit`` (system or user) or ``target.container`` since ``target.since``.

        With ``cursor`` go on after that entry. A child that is stopped or hangs in the kernel gives no empty batches.
        Raise SourceError where journalctl is missing, ends, or there is no journal below the root; SourceDenied where
        the journal may not be read, or not all of it and no entry is seen.
        """
        child = await asyncio.create_subprocess_exec(
            *_command(self._rootfs, target, cursor),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8", "SYSTEMD_COLORS": "0", "SYSTEMD_PAGER": ""},
        )
        complaint = _Complaint(child.stderr)
        try:
            async for batch in _Child(child, complaint, cursor, self._rootfs).batches():
                yield batch
            raise _ended(await child.wait(), await complaint.whole())
        finally:
            complaint.stop()
            await _reap(child)


def _command(rootfs: Path, target: LogTarget, cursor: str | None) -> list[str]:
    program = shutil.which("journalctl")
    if program is None:
        raise SourceError("journalctl not found: it comes with systemd; read the log from a file instead")
    command = [program, "--output=json", f"--output-fields={_FIELDS}", "--all", "--no-pager", "--follow"]
    command.append("--lines=all")
    if rootfs != Path("/"):
        places = [rootfs / place for place in _PLACES]
        if not any(place.is_dir() for place in places):
            raise SourceError(f"no journal below {rootfs}: neither {places[0]} nor {places[1]} is there")
        command.append(f"--root={rootfs}")
    if cursor:
        command.append(f"--cursor={cursor}")
    elif target.since is not None:
        command.append(f"--since=@{target.since:.6f}")
    return [*command, *_matches(target)]


def _matches(target: LogTarget) -> list[str]:
    """Return the journal matches of a target; what systemd itself says of the unit is wanted too."""
    wanted = []
    if target.unit:
        unit = target.unit if "." in target.unit else f"{target.unit}.service"
        wanted = [f"_SYSTEMD_UNIT={unit}", "+", f"_SYSTEMD_USER_UNIT={unit}", "+", "_PID=1", f"UNIT={unit}"]
    if target.container:
        wanted += [*(["+"] if wanted else []), _container(target.container)]
    if target.container_id:
        wanted += [*(["+"] if wanted else []), _container(target.container_id)]
    if not wanted:
        raise SourceError(f"neither unit nor container given for the log of {target.engine}")
    return wanted


def _container(name: str) -> str:
    """Return the match of a container by its name or, as podman and docker both write them, its whole or short id."""
    field = "ID_FULL" if _FULL_ID.fullmatch(name) else "ID" if _SHORT_ID.fullmatch(name) else "NAME"
    return f"CONTAINER_{field}={name}"


class _Complaint:
    """What a child says on stderr, read as it comes; the last of it is kept."""

    def __init__(self, stream: asyncio.StreamReader | None) -> None:
        self._stream = stream
        self._kept = b""
        self._reading = asyncio.ensure_future(self._read())

    async def _read(self) -> None:
        while self._stream is not None and (chunk := await self._stream.read(_ERROR_BYTES)):
            self._kept = (self._kept + chunk)[-_ERROR_BYTES:]

    @property
    def text(self) -> str:
        return self._kept.decode("utf-8", "replace").strip()

    async def whole(self) -> str:
        """Return what it said when it has ended."""
        await self._reading
        return self.text

    def stop(self) -> None:
        self._reading.cancel()


class _Child:
    """A journalctl that follows; what it prints becomes batches."""

    def __init__(
        self, child: asyncio.subprocess.Process, complaint: _Complaint, cursor: str | None, rootfs: Path
    ) -> None:
        self._rootfs = rootfs
        self._child = child
        self._complaint = complaint
        self._passed = cursor
        """The entry that is not to be told again: the first one that comes, if it is still there."""
        self._seen = False
        self._entries = Entries()

    async def batches(self) -> AsyncIterator[Sequence[Record]]:
        """Yield what one read brought, at most; an empty batch where the journal falls quiet, and then at each beat."""
        stream = self._child.stdout
        if stream is None:
            return
        reading = asyncio.ensure_future(stream.read(_CHUNK))
        told = False
        try:
            while True:
                done, _ = await asyncio.wait({reading}, timeout=_BEAT if told else _QUIET)
                if not done:
                    await self._check_sight()
                    if not told or not _stuck(self._child.pid):
                        yield []
                    told = True
                    continue
                chunk = reading.result()
                if not chunk:
                    return
                reading = asyncio.ensure_future(stream.read(_CHUNK))
                records = await self._records(chunk)
                if records:
                    told = False
                    yield records
        finally:
            reading.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await reading

    async def _records(self, chunk: bytes) -> list[Record]:
        feed = self._entries.feed
        records = await asyncio.to_thread(feed, chunk) if len(chunk) > _MUCH else feed(chunk)
        self._seen = self._seen or bool(records)
        if records and self._passed is not None:
            if records[0].cursor == self._passed:
                del records[0]
            self._passed = None
        return records

    async def _check_sight(self) -> None:
        """Raise where nothing was seen, perhaps for want of rights: journalctl passes over what it may not read."""
        if self._seen:
            return
        said = self._complaint.text
        if _UNSEEN.search(said):
            raise _denied(said)
        if _ABSENT.search(said):
            raise SourceError(f"journalctl: {said.splitlines()[-1]}")
        closed = await asyncio.to_thread(_closed, self._rootfs)
        if closed is not None:
            raise SourceDenied(f"{closed}: not readable, and nothing seen without it. {_NEEDS}")


def _closed(rootfs: Path) -> Path | None:
    """Return a journal file, or a directory of them, that may not be read; None where there is none."""
    for place in (rootfs / place for place in _PLACES):
        try:
            files = [place, *place.glob("*/"), *place.glob("*/*.journal")]
        except OSError:
            return place
        for file in files:
            if file.exists() and not os.access(file, os.R_OK):
                return file
    return None


def _stuck(pid: int) -> bool:
    """Return whether a child of ours is in a state in which it cannot say anything."""
    try:
        line = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return False
    return line[line.rfind(b")") + 2 :][:1].decode() in _STUCK


def _ended(code: int, complaint: str) -> SourceError:
    if _UNSEEN.search(complaint):
        return _denied(complaint)
    said = complaint.splitlines() or ["it said nothing"]
    return SourceError(f"journalctl ended with {code}: {said[-1]}")


def _denied(complaint: str) -> SourceDenied:
    said = next(line for line in complaint.splitlines() if _UNSEEN.search(line))
    return SourceDenied(f"journalctl: {said.removeprefix('Hint: ').rstrip('.')}. {_NEEDS}")


async def _reap(child: asyncio.subprocess.Process) -> None:
    if child.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            child.terminate()
        try:
            async with asyncio.timeout(_END):
                await child.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                child.kill()
            await child.wait()
