"""
Compare what would be started next time with what runs: the unit, quadlet, compose or environment file of an engine.

Files are taken as they lie there, whether or not a manager has read them again: a restart that has not taken a new file
up is what this is to show. What cannot be told for certain is not told.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from budget_exporter.engines._config_reader import read_text
from budget_exporter.engines._environment_files import systemd_environment
from budget_exporter.engines._launch import server_arguments
from budget_exporter.engines._pending_compose import planned_by_compose
from budget_exporter.engines._pending_quadlet import planned_by_quadlet
from budget_exporter.engines._pending_unit import planned_by_unit, unwrapped
from budget_exporter.engines._plan import Plan, Trail, UnresolvedError
from budget_exporter.engines._settings import Settings, differing, planned_environment, settings
from budget_exporter.engines.start import Start, Watched
from budget_exporter.errors import SourceError
from budget_exporter.facts.engine import EngineSighting, Pending, ProcessKey
from budget_exporter.roots import Roots

__all__ = ["INTERVAL", "PendingSource", "source"]

INTERVAL = 10.0
_PARSED_BY = 2.0
"""Seconds after its process's start in which an engine has not yet read its file: Python imports come first."""


@dataclass(slots=True)
class _Kept:
    """What was read for one engine and need not be read again."""

    running: Settings | None = None
    start: Start | None = None
    trail: Trail | None = None
    plan: Plan | None = None
    why: str = ""


class PendingSource:
    """Look at the files of all engines; blocking, so it is run in a thread of its own."""

    name = "pending"

    def __init__(self, roots: Roots, interval: float = INTERVAL) -> None:
        self.interval = interval
        self._roots = roots
        self._kept: dict[ProcessKey, _Kept] = {}

    def look(self, engines: Sequence[Watched]) -> tuple[dict[ProcessKey, Pending], list[str]]:
        """
        Return what is pending by main process, and one sentence for each start the operator named that is unreadable.

        A start that is known from supervision only and cannot be told is no fault: many engines are started by scripts.
        """
        found: dict[ProcessKey, Pending] = {}
        faults: list[str] = []
        self._kept = {w.sighting.main: self._kept.get(w.sighting.main) or _Kept() for w in engines}
        for watched in engines:
            pending = self._one(watched, self._kept[watched.sighting.main])
            found[watched.sighting.main] = pending
            if pending.flags is None and watched.start.configured:
                faults.append(f"{watched.engine}: {watched.start.kind} {watched.start.name}: {pending.why}")
        return found, faults

    def _one(self, watched: Watched, kept: _Kept) -> Pending:
        try:
            running = self._running(watched, kept)
            plan = self._plan(watched.start, kept)
            planned = self._planned(watched, plan, running)
        except (UnresolvedError, SourceError) as error:
            return Pending(None, str(error))
        except Exception as error:  # noqa: BLE001 - what one engine's files hold must not cost the others their figures
            return Pending(None, f"{type(error).__name__} in reading how it starts")
        return Pending(differing(running, planned, watched.version))

    def _running(self, watched: Watched, kept: _Kept) -> Settings:
        """Return what runs, read once: a file that is changed later says nothing of this process any more."""
        sighting = watched.sighting
        if kept.running is None or (kept.running.environ is None and sighting.environ is not None):
            args = server_arguments(sighting.argv)
            if args is None:
                raise UnresolvedError("what runs is not known by its command line")
            read = self._reader(sighting, sighting.cwd, until=sighting.started_at + _PARSED_BY)
            kept.running = settings(args, sighting.environ, read, watched.version)
        return kept.running

    def _reader(self, sighting: EngineSighting, cwd: str | None, until: float | None) -> Callable[[str], str]:
        def read(path: str) -> str:
            text = read_text(self._roots.procfs, sighting.main.pid, cwd, path)
            if until is not None and text.changed > until:
                raise SourceError("changed after the engine's start")
            return text.text

        return read

    def _plan(self, start: Start, kept: _Kept) -> Plan:
        if kept.trail is None or kept.start != start or kept.trail.changed:
            kept.start, kept.trail, kept.plan = start, Trail(self._roots.rootfs), None
            try:
                kept.plan = _PLANS[start.kind](kept.trail, start)
            except (UnresolvedError, SourceError) as error:
                kept.why = str(error)
        if kept.plan is None:
            raise UnresolvedError(kept.why)
        return kept.plan

    def _planned(self, watched: Watched, plan: Plan, running: Settings) -> Settings:
        if plan.words is None:
            return Settings(running.flags, planned_environment(plan.environ).environ)
        args = _arguments(plan, server_arguments(watched.sighting.argv) or (), running.flags.get("model"))
        cwd = watched.sighting.cwd if plan.cwd is None else plan.cwd
        return settings(args, plan.environ, self._reader(watched.sighting, cwd, until=None), watched.version)


def _arguments(plan: Plan, running: Sequence[str], model: object) -> tuple[str, ...]:
    """
    Return the server's arguments in ``plan``; wrappers before them (``numactl``, ``uv run``) are passed over.

    Where the image's own program runs, that is the one that runs now; but a first word that is neither a flag nor the
    ``model`` that runs may as well be a script of the image.
    """
    words = plan.words or ()
    for at in range(len(words)):
        found = server_arguments(words[at:])
        if found is not None:
            return found
    if plan.image and words[:1] == ("serve",):
        return words
    if plan.image and words and (words[0].startswith("-") or words[0] == model):
        return ("serve", *words) if running[:1] == ("serve",) else words
    raise UnresolvedError("no vLLM server is named in what starts it")


def _by_unit(trail: Trail, start: Start) -> Plan:
    return planned_by_unit(trail, start.name)


def _by_quadlet(trail: Trail, start: Start) -> Plan:
    return _without_shell(planned_by_quadlet(trail, start.name), trail)


def _by_compose(trail: Trail, start: Start) -> Plan:
    return _without_shell(planned_by_compose(trail, start.name, start.service), trail)


def _by_env_file(trail: Trail, start: Start) -> Plan:
    text = trail.text(start.name)
    if text is None:
        raise UnresolvedError("the file is not there")
    return Plan(None, systemd_environment(text))


def _without_shell(plan: Plan, trail: Trail) -> Plan:
    """Return what a shell in the container starts."""
    inner = unwrapped(plan.words or (), dict(plan.environ), plan.cwd, trail)
    return plan if inner.words == plan.words else inner


_PLANS: Mapping[str, Callable[[Trail, Start], Plan]] = {
    "unit": _by_unit,
    "quadlet": _by_quadlet,
    "compose": _by_compose,
    "env_file": _by_env_file,
}


def source(roots: Roots, interval: float = INTERVAL) -> PendingSource:
    """Return the source."""
    return PendingSource(roots, interval)
