"""What both look at containers with: one inspected, events taken in as they come, the course of each life."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from urllib.parse import quote

from budget_exporter.engines._daemon import Daemon, DaemonBusyError, Event, NoSuchContainerError
from budget_exporter.engines._inspected import Course, container
from budget_exporter.errors import SourceError
from budget_exporter.facts.container import Container, ContainerRuntime

__all__ = ["Heard", "inspect"]

_SILENT = frozenset({"top", "attach", "detach", "resize", "archive-path", "extract-to-dir", "export", "health_status"})
"""Events after which a container is what it was before; so it is after ``exec_start`` and its like."""

_AGAIN = (0.1, 0.2, 0.4, 0.8)
"""Seconds after which a daemon that failed is asked again."""


class Heard:
    """The events of one daemon: which containers are to be looked at again, and what their ends were about."""

    def __init__(self, runtime: ContainerRuntime, queue: asyncio.Queue[Event | SourceError]) -> None:
        self._runtime = runtime
        self._queue = queue
        self._courses: dict[str, Course] = {}

    def course(self, identity: str) -> Course:
        """Return what was heard of the present life of a container."""
        return self._courses.get(identity, Course())

    def asked(self, identity: str) -> None:
        """Note that somebody has asked for the end of a container, as its state tells."""
        self._courses[identity] = replace(self.course(identity), asked=True)

    def keep(self, identities: Mapping[str, object]) -> None:
        """Forget all other containers."""
        self._courses = {identity: course for identity, course in self._courses.items() if identity in identities}

    async def next(self, patience: float) -> set[str]:
        """
        Return which containers something has happened to, none after ``patience`` seconds in which nothing has.

        Raise SourceError once no more is heard.
        """
        touched: set[str] = set()
        try:
            async with asyncio.timeout(patience):
                while not touched:
                    self._take(await self._queue.get(), touched)
        except TimeoutError:
            return touched
        while not self._queue.empty():
            self._take(self._queue.get_nowait(), touched)
        return touched

    def _take(self, event: Event | SourceError, touched: set[str]) -> None:
        if isinstance(event, SourceError):
            raise event
        if event.action not in _SILENT and not event.action.startswith("exec"):
            touched.add(event.id)
            self._courses[event.id] = self.course(event.id).after(event.action, self._runtime)


async def inspect(daemon: Daemon, runtime: ContainerRuntime, name: str, course: Course | None) -> Container | None:
    """Return the container of that name or id, None where there is none; raise SourceError where that isn't told."""
    for pause in (*_AGAIN, None):
        try:
            answer = await daemon.get(f"/containers/{quote(name, safe='')}/json")
        except NoSuchContainerError:
            return None
        except DaemonBusyError:
            if pause is None:
                raise
            await asyncio.sleep(pause)
        else:
            return container(answer, runtime, str(daemon.socket), course or Course())
    return None
