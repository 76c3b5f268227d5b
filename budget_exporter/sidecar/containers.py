"""What the container daemons say, put together with what was found in procfs: one engine found twice is one."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from budget_exporter import sources
from budget_exporter.engines import ContainerSource, arguments
from budget_exporter.errors import SourceDenied, SourceError
from budget_exporter.facts.container import Container
from budget_exporter.facts.engine import EngineSighting, ProcessKey, Shape
from budget_exporter.facts.source import SourceHealth
from budget_exporter.roots import Roots
from budget_exporter.sidecar.fleet import Running
from budget_exporter.sidecar.health import Health
from budget_exporter.sidecar.threads import Found
from budget_exporter.sidecar.watcher import again_and_again

__all__ = ["Containers", "merged"]

NAME = "containers"
LOOK = 5.0
"""Seconds between two looks for sockets."""
PATIENCE = 3.0
"""Seconds an engine in a container waits for its daemon to tell of it before it gets a name: it may have a unit."""
CLOSE = 0.3
"""Seconds the tasks have to end when the exporter stops."""
_RUNTIMES = ("podman", "docker")


@dataclass(eq=False, slots=True)
class _Daemon:
    """One daemon: its containers as last told, and whether it is heard now."""

    named: bool = False
    """Whether the operator has named its socket."""
    containers: tuple[Container, ...] = ()
    heard: bool = False
    task: asyncio.Task[None] | None = field(default=None, repr=False)


class Containers:
    """All daemons; those that are not there cost nothing and are no fault."""

    def __init__(self, roots: Roots, off: frozenset[str], wake: Callable[[], None], interval: float) -> None:
        self._named = frozenset(roots.container_sockets)
        self._source: ContainerSource | None = None if NAME in off else sources.load(NAME, roots)
        self._wake = wake
        self._health = Health(NAME, interval)
        self._daemons: dict[Path, _Daemon] = {}
        self._task: asyncio.Task[None] | None = None
        self._looked = self._source is None
        self._untold: dict[ProcessKey, float] = {}
        """Processes in containers of which no daemon has told yet, and since when they are seen."""
        self._missed = False
        """Whether an engine has no name for want of a daemon's word."""
        self._known: dict[str, Container] = {}
        """What was last told of the containers whose processes run: a daemon may go while they stay."""
        self._shapes: dict[ProcessKey, Shape] = {}

    def start(self) -> None:
        """Start looking for daemons and hearing them."""
        if self._source is not None:
            self._task = asyncio.create_task(self._look(self._source), name="containers")

    def merge(self, found: Found, now: float) -> Found:
        """
        Return what runs, with what the daemons say of it and the engines that only they know.

        A process in a container of which no daemon has told yet waits for that a while: until then it is not complete.
        """
        told = {each.id: each for daemon in self._daemons.values() for each in daemon.containers}
        running = merged(found.running, (self._known | told).values(), self._shape)
        present = {each.sighting.container_id for each in running if each.sighting.source != NAME}
        self._known = {key: each for key, each in (self._known | told).items() if key in present and not each.hidden}
        waiting = self._waiting(running, now)
        unheard = any(c.hidden for daemon in self._daemons.values() if not daemon.heard for c in daemon.containers)
        kept = [each for each in running if each.sighting.main not in waiting]
        mains = {each.sighting.main for each in kept}
        self._shapes = {main: shape for main, shape in self._shapes.items() if main in mains}
        return Found(kept, all=found.all and not waiting and not unheard)

    def _waiting(self, running: Sequence[Running], now: float) -> set[ProcessKey]:
        untold = [
            each.sighting.main
            for each in running
            if each.sighting.supervisor in _RUNTIMES and each.sighting.container_socket is None
        ]
        self._untold = {main: self._untold.get(main, now) for main in untold}
        self._missed = any(r.sighting.container is None and r.sighting.main in self._untold for r in running)
        if self._looked and not self._daemons:
            return set()
        return {main for main, since in self._untold.items() if 0 <= now - since < PATIENCE}

    def _shape(self, sighting: EngineSighting) -> Shape:
        if sighting.main not in self._shapes:
            self._shapes[sighting.main] = arguments.shape(sighting.argv, sighting.environ, _unreadable)
        return self._shapes[sighting.main]

    def health(self) -> list[SourceHealth]:
        """Return the source's health, nothing where there is no daemon."""
        return [self._health.health()] if self._health.used else []

    async def close(self) -> None:
        """End all tasks; those that do not end in time are left to the end of the process."""
        tasks = {task for task in (self._task, *(daemon.task for daemon in self._daemons.values())) if task}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=CLOSE)

    async def _look(self, source: ContainerSource) -> None:
        """See to it that each daemon that is there is heard."""
        while True:
            try:
                there = set(await source.sockets())
            except OSError:
                there = set(self._daemons)
            for socket in there - self._daemons.keys():
                daemon = self._daemons[socket] = _Daemon(named=socket in self._named)
                self._health.joined(daemon)
                follow = partial(self._follow, source, socket, daemon)
                heard = again_and_again(follow, partial(self._failed, daemon))
                daemon.task = asyncio.create_task(heard, name=f"containers {socket}")
            for socket in self._daemons.keys() - there:
                daemon = self._daemons.pop(socket)
                self._health.left(daemon)
                if daemon.task is not None:
                    daemon.task.cancel()
            if not self._looked:
                self._looked = True
                self._wake()
            await asyncio.sleep(LOOK)

    async def _follow(
        self, source: ContainerSource, socket: Path, daemon: _Daemon, connected: Callable[[], None]
    ) -> str:
        try:
            async with contextlib.aclosing(source.watch(socket)) as told:  # type: ignore[type-var]  # generators
                async for containers, faults in told:
                    connected()
                    daemon.containers, daemon.heard = containers, True
                    self._health.joined(daemon)
                    self._health.ran(daemon, "; ".join(faults))
                    self._wake()
        except SourceDenied:
            # Whoever may talk to a daemon is root on its host: that we may not is no fault while nothing is missed.
            if not daemon.named and not self._missed:
                self._health.left(daemon)
            else:
                self._health.joined(daemon)
            raise
        return "the daemon ended its answer"

    def _failed(self, daemon: _Daemon, error: str) -> None:
        daemon.heard = False
        self._health.ran(daemon, error)
        self._wake()


def merged(
    running: Sequence[Running], containers: Iterable[Container], shape: Callable[[EngineSighting], Shape]
) -> list[Running]:
    """
    Return ``running`` with the names that the daemons have for containers, and the engines of hidden containers.

    A container is a process's by its id, else by being the container's first process. ``shape`` reads the flags of an
    engine that only its daemon knows.
    """
    by_id = {each.id: each for each in containers}
    by_pid = {each.pid: each for each in by_id.values() if each.pid is not None and not each.hidden}
    result = []
    for each in running:
        sighting = each.sighting
        # A process that is known to be in one container is in no other, whatever that one's PID.
        own = by_id.get(sighting.container_id) if sighting.container_id else by_pid.get(sighting.main.pid)
        result.append(each if own is None else replace(each, sighting=_told(sighting, own)))
    hidden = [_sighting(each) for each in by_id.values() if each.hidden and each.argv]
    return result + [Running(sighting, shape(sighting)) for sighting in hidden if sighting is not None]


def _told(sighting: EngineSighting, own: Container) -> EngineSighting:
    unit = sighting.unit or _unit(own)
    return replace(
        sighting,
        unit=unit,
        container=own.name,
        supervisor="systemd" if unit is not None else own.runtime,
        container_id=own.id,
        container_socket=own.socket,
        log_driver=own.log_driver,
    )


def _unit(own: Container) -> str | None:
    """Return the unit podman was started by; a user's own unit is none that the system bus knows."""
    unit = own.labels.get("PODMAN_SYSTEMD_UNIT")
    return unit if unit and unit.endswith(".service") and "/run/user/" not in own.socket else None


def _sighting(own: Container) -> EngineSighting | None:
    """Return an engine as its daemon tells of it, None where it does not run."""
    if own.pid is None or own.started_at is None:
        return None
    unit = _unit(own)
    return EngineSighting(
        source=NAME,
        # Its PID means another process to us, or none, and no process has PID 0: whoever looks there finds nothing.
        # The container and the moment of its start make it what it is.
        main=ProcessKey(0, int(own.started_at * 1000), own.id),
        started_at=own.started_at,
        argv=own.argv,
        environ=own.environ,
        cwd=own.cwd,
        unit=unit,
        container=own.name,
        supervisor="systemd" if unit is not None else own.runtime,
        inner_pid=1 if own.own_pids else None,
        container_id=own.id,
        container_socket=own.socket,
        log_driver=own.log_driver,
    )


def _unreadable(path: str) -> str:
    raise SourceError(f"{path}: it lies in a container whose files cannot be seen from here")
