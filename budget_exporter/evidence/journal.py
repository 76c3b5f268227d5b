"""
Follow one unit's or container's entries of the systemd journal, through a ``journalctl`` child.

``-f`` alone (and ``-n 0``) loses all but the last entry of the first batch when it starts before the first matching
entry exists (systemd 252); ``-n all`` does not. Not ``--quiet``, so that it says why it ends; ``--all`` keeps fields
longer than 4096 bytes, which are null without.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from budget_exporter.errors import SourceDenied, SourceError
from budget_exporter.evidence import LogTarget, Record
from budget_exporter.evidence.journal_entries import Entries
from budget_exporter.roots import Roots

__all__ = ["JournalSource", "source"]

_FIELDS = "MESSAGE,_PID,_TRANSPORT,PRIORITY"
_CHUNK = 1 << 16
_QUIET = 0.25
"""Seconds without an entry after which we say that there is nothing more for now."""
_END = 1.0
"""Seconds the child gets to end by itself before it is killed."""
_ERROR_BYTES = 4096


def source(roots: Roots) -> JournalSource:
    """Return the log source of the host whose root file system is ``roots.rootfs``."""
    return JournalSource(roots.rootfs)


class JournalSource:
    """Follow journals; one child each."""

    name = "journal"
    beat: float | None = None
    """journalctl says nothing while there is nothing to say."""

    def __init__(self, rootfs: Path) -> None:
        self._rootfs = rootfs

    async def batches(self, target: LogTarget, cursor: str | None) -> AsyncIterator[Sequence[Record]]:
        """
        Yield the entries of ``target.unit`` (system or user) or ``target.container`` since ``target.since``.

        With ``cursor`` go on after that entry. Raise SourceError where journalctl is missing, ends, or there is no
        journal below the root; SourceDenied where the journal may not be read.
        """
        child = await asyncio.create_subprocess_exec(
            *_command(self._rootfs, target, cursor),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8", "SYSTEMD_COLORS": "0", "SYSTEMD_PAGER": ""},
        )
        complaint = asyncio.ensure_future(_drain(child.stderr))
        try:
            async for batch in _batches(child.stdout):
                yield batch
            raise _ended(await child.wait(), await complaint)
        finally:
            complaint.cancel()
            await _reap(child)


def _command(rootfs: Path, target: LogTarget, cursor: str | None) -> list[str]:
    program = shutil.which("journalctl")
    if program is None:
        raise SourceError("journalctl not found: it comes with systemd; read the log from a file instead")
    command = [program, "--output=json", f"--output-fields={_FIELDS}", "--all", "--no-pager", "--follow"]
    command.append("--lines=all")
    if rootfs != Path("/"):
        places = [rootfs / "var/log/journal", rootfs / "run/log/journal"]
        if not any(place.is_dir() for place in places):
            raise SourceError(f"no journal below {rootfs}: neither {places[0]} nor {places[1]} is there")
        command.append(f"--root={rootfs}")
    if cursor:
        command.append(f"--after-cursor={cursor}")
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
        wanted += [*(["+"] if wanted else []), f"CONTAINER_NAME={target.container}"]
    if not wanted:
        raise SourceError(f"neither unit nor container given for the log of {target.engine}")
    return wanted


async def _batches(stream: asyncio.StreamReader | None) -> AsyncIterator[Sequence[Record]]:
    """Yield what one read brought, at most; an empty batch once whenever the journal falls quiet."""
    if stream is None:
        return
    entries = Entries()
    reading = asyncio.ensure_future(stream.read(_CHUNK))
    told = False
    try:
        while True:
            done, _ = await asyncio.wait({reading}, timeout=None if told else _QUIET)
            if not done:
                told = True
                yield []
                continue
            chunk = reading.result()
            if not chunk:
                return
            reading = asyncio.ensure_future(stream.read(_CHUNK))
            records = entries.feed(chunk)
            if records:
                told = False
                yield records
    finally:
        reading.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await reading


async def _drain(stream: asyncio.StreamReader | None) -> str:
    """Read the child's complaints to their end and return the last of them."""
    kept = b""
    while stream is not None and (chunk := await stream.read(_ERROR_BYTES)):
        kept = (kept + chunk)[-_ERROR_BYTES:]
    return kept.decode("utf-8", "replace").strip()


def _ended(code: int, complaint: str) -> SourceError:
    said = complaint.splitlines() or ["it said nothing"]
    denied = [line for line in said if "ermission" in line]
    if denied:
        return SourceDenied(f"journalctl: {denied[0]} Needs the group systemd-journal or CAP_DAC_READ_SEARCH")
    return SourceError(f"journalctl ended with {code}: {said[-1]}")


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
