"""Hear from the container daemons which containers there are: podman's and docker's, rootless ones too."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from budget_exporter.engines._daemon import Daemon
from budget_exporter.engines._followed import Heard, inspect
from budget_exporter.engines._proc import Proc
from budget_exporter.errors import SourceError
from budget_exporter.facts.container import Container, ContainerRuntime
from budget_exporter.roots import Roots

__all__ = ["ContainerSource", "source"]

_SLACK = 10.0
"""Seconds by which a process may be older than the daemon says that its container is: it notes the start last."""
_DOUBT = 1.0
"""Seconds after which a process that we don't see must still run, by the daemon's word, to be hidden from us."""


def source(roots: Roots) -> ContainerSource:
    """Return the source that hears from the daemons whose sockets lie in ``roots``."""
    return ContainerSource(roots)


@dataclass(slots=True)
class _Sight:
    """Whether the processes of one daemon's containers are among those of our procfs; None while that is not known."""

    hidden: bool | None = None
    doubted: dict[tuple[str, int | None, float | None], float] = field(default_factory=dict)
    """Lives of containers whose process was not there, and when that was seen first."""


class ContainerSource:
    """
    Containers, by the daemons that run them; asynchronous.

    Each daemon is followed by itself, so that one that hangs or talks nonsense costs no other. ``resync`` is after how
    many seconds all containers are looked at again, whatever was heard; each answer has ``timeout`` seconds.
    """

    name = "containers"

    def __init__(self, roots: Roots, resync: float = 30.0, timeout: float = 5.0) -> None:
        self._roots = roots
        self._proc = Proc(roots.procfs)
        self._resync = resync
        self._timeout = timeout

    async def sockets(self) -> list[Path]:
        """Return the sockets of the daemons that there are now."""
        return await asyncio.to_thread(self._roots.sockets)

    async def watch(self, socket: Path) -> AsyncGenerator[tuple[tuple[Container, ...], list[str]], None]:
        """
        Yield the containers of one daemon at once and after each change, with one sentence for each that is not told.

        Raise SourceError where the daemon cannot be reached, or no longer; the caller tries again later.
        """
        sight = _Sight()
        async with Daemon(socket, self._timeout) as daemon:
            runtime = await daemon.runtime()
            async with daemon.events() as queue:
                heard = Heard(runtime, queue)
                known: dict[str, Container] = {}
                touched: set[str] = set()
                last: tuple[tuple[Container, ...], list[str]] | None = None
                while True:
                    if not touched:
                        touched = await _listed(daemon)
                        known = {identity: each for identity, each in known.items() if identity in touched}
                    faults = await _look(daemon, runtime, heard, known, touched)
                    heard.keep(known)
                    await self._see(sight, known.values())
                    told = tuple(replace(each, hidden=sight.hidden is True) for each in known.values()), faults
                    if told != last:
                        last = told
                        yield told
                    in_doubt = sight.hidden is None and sight.doubted
                    touched = await heard.next(_DOUBT if in_doubt else self._resync)

    async def _see(self, sight: _Sight, containers: Iterable[Container]) -> None:
        """
        Find out whether procfs shows the processes of this daemon; once that is known it stays so.

        A process that has just ended is not there either, so the daemon must say twice, some time apart, that the same
        one runs.
        """
        if sight.hidden is not None:
            return
        doubted, now = sight.doubted, asyncio.get_running_loop().time()
        sight.doubted = {}
        for each in containers:
            if each.pid is None or not each.argv:
                continue
            if await asyncio.to_thread(self._shown, each):
                sight.hidden = False
                return
            life = (each.id, each.pid, each.started_at)
            since = sight.doubted[life] = doubted.get(life, now)
            if now - since >= _DOUBT:
                sight.hidden = True

    def _shown(self, each: Container) -> bool:
        """Return whether the process our procfs has under the container's PID is the container's."""
        stat = self._proc.stat(each.pid or 0)
        if stat is None:
            return False
        if each.id in self._proc.cgroup(stat.pid):
            return True
        booted = self._proc.boot_time()
        if booted is None or each.started_at is None:
            return False
        return abs(booted + stat.start_ticks / os.sysconf("SC_CLK_TCK") - each.started_at) <= _SLACK


async def _listed(daemon: Daemon) -> set[str]:
    listed = await daemon.get("/containers/json", all="true")
    identities = {each.get("Id") for each in listed if isinstance(each, dict)} if isinstance(listed, list) else {None}
    known = {identity for identity in identities if isinstance(identity, str) and identity.isalnum()}
    if known != identities:
        raise SourceError(f"{daemon.socket}: the list of containers makes no sense")
    return known


async def _look(
    daemon: Daemon, runtime: ContainerRuntime, heard: Heard, known: dict[str, Container], touched: Iterable[str]
) -> list[str]:
    """Look at the containers ``touched`` and bring ``known`` up to date; return a sentence for each that isn't told."""
    faults: list[str] = []
    for identity in touched:
        try:
            found = await inspect(daemon, runtime, identity, heard.course(identity))
        except SourceError as error:
            faults.append(str(error))
            continue
        if found is None:
            known.pop(identity, None)
        else:
            known[identity] = found
    return faults
