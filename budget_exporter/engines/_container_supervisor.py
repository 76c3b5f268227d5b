"""Follow one container by its name, through restarts, removal and a new one of the same name."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path

from budget_exporter.engines._daemon import Daemon
from budget_exporter.engines._followed import Heard, inspect
from budget_exporter.engines._inspected import supervision
from budget_exporter.errors import SourceDenied, SourceError
from budget_exporter.facts.container import Container, ContainerRuntime
from budget_exporter.facts.engine import Supervision
from budget_exporter.roots import Roots

__all__ = ["ContainerSupervisor"]

_SETTLE = 0.5
"""Seconds in which podman may tell that somebody asked for an end that it has told of already."""
_STOPPING = 0.9
"""
Seconds between two looks at what runs in podman.

Podman makes no event of a stop that somebody asked for; it says ``stopping`` until the process has ended, and where it
had to kill it nothing tells afterwards that somebody asked. A look costs its service 1.4 ms (4.3.1).
"""
_OTHER: dict[ContainerRuntime, ContainerRuntime] = {"podman": "docker", "docker": "podman"}
"""A socket that is called after the other runtime is not ours to be refused at."""


class ContainerSupervisor:
    """
    Containers of one runtime, by the REST socket of whichever of its daemons has them; asynchronous.

    ``resync`` is after how many seconds a container is looked at again, whatever was heard.
    """

    def __init__(self, name: ContainerRuntime, roots: Roots, resync: float = 3.0, timeout: float = 5.0) -> None:
        self.name = name
        self._runtime = name
        self._roots = roots
        self._resync = resync
        self._timeout = timeout

    async def watch(self, unit: str) -> AsyncIterator[Supervision]:
        """
        Yield what is said of the container ``unit`` now, then each change; one that does not exist is ``inactive``.

        Raise SourceError where no daemon of this runtime can be asked, or several have a container of that name.
        """
        last: Supervision | None = None
        before: Path | None = None
        while True:
            socket = await self._home(unit, before)
            before = socket or before
            if socket is None:
                now = supervision(unit, self._runtime, None)
                if now != last:
                    last = now
                    yield now
                await asyncio.sleep(self._resync)
                continue
            async with contextlib.aclosing(self._follow(socket, unit)) as changes:
                async for found in changes:
                    now = supervision(unit, self._runtime, found)
                    if now != last:
                        last = now
                        yield now

    async def _home(self, unit: str, before: Path | None) -> Path | None:
        """Return the socket of the daemon that has the container, None where none has it; ``before`` had it last."""
        homes, errors, asked = list[Path](), list[str](), False
        for socket in await asyncio.to_thread(self._roots.sockets):
            try:
                async with Daemon(socket, self._timeout) as daemon:
                    if await daemon.runtime() != self._runtime:
                        continue
                    asked = True
                    if _named(await inspect(daemon, self._runtime, unit, None), unit) is not None:
                        homes.append(socket)
            except SourceError as error:
                # Where it was before it would be again, and not where we have no business.
                elsewhere = before is not None and isinstance(error, SourceDenied)
                if not elsewhere and _OTHER[self._runtime] not in socket.name:
                    errors.append(str(error))
        if len(homes) > 1:
            raise SourceError(f"several daemons have a container {unit!r}: {', '.join(map(str, homes))}")
        if not homes and (errors or not asked):
            raise SourceError("; ".join(errors) or f"no socket of {self._runtime} is there")
        return homes[0] if homes else None

    async def _follow(self, socket: Path, unit: str) -> AsyncGenerator[Container | None, None]:
        """Yield the container, None once it is removed; end where no other of its name comes soon."""
        async with Daemon(socket, self._timeout) as daemon, daemon.events() as queue:
            heard = Heard(self._runtime, queue)
            identity = ""
            doubted: tuple[str, float | None] | None = None
            while True:
                found = _named(await inspect(daemon, self._runtime, unit, heard.course(identity)), unit)
                if found is not None and found.id != identity:
                    # Whose course it is comes with the answer only.
                    identity = found.id
                    continue
                if found is not None and found.status == "stopping":
                    heard.asked(found.id)
                end = _unexplained(found)
                if end is not None and end != doubted:
                    doubted = end
                    await heard.next(_SETTLE)
                    continue
                yield found
                if not await heard.next(self._patience(found)) and found is None:
                    return

    def _patience(self, found: Container | None) -> float:
        """Return after how many seconds without an event to look again."""
        runs = self._runtime == "podman" and found is not None and found.pid is not None
        return min(_STOPPING, self._resync) if runs else self._resync


def _unexplained(found: Container | None) -> tuple[str, float | None] | None:
    """Return which life of a container has come to an end that nobody is known to have asked for, None for none."""
    ended = found is not None and found.exit_code is not None and not found.asked
    return (found.id, found.started_at) if found is not None and ended else None


def _named(found: Container | None, unit: str) -> Container | None:
    """Return what was found by name, and not because its id begins so."""
    return found if found is not None and found.name == unit else None
