"""Find vLLM servers in a procfs tree: the process that kept its command line, and everything below it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from budget_exporter.engines._config_reader import read_config
from budget_exporter.engines._pods import ENVIRON as POD_ENVIRON, PodNames
from budget_exporter.engines._proc import Proc, Stat
from budget_exporter.engines._titles import is_ray_worker, rank_of, title_of
from budget_exporter.engines.arguments import ENVIRON_ALLOWED, server_arguments, shape
from budget_exporter.engines.model_reader import ModelReader
from budget_exporter.engines.model_wanted import ENVIRON as MODEL_ENVIRON
from budget_exporter.engines.supervisor import supervised
from budget_exporter.errors import SourceError
from budget_exporter.facts.engine import EngineSighting, ProcessKey, Worker
from budget_exporter.roots import Roots

__all__ = ["ProcfsSource", "read_config", "source"]

_INTERPRETERS = ("python", "pypy", "vllm")
_DEEPEST = 64
_CUT = 15
"""Bytes after which Linux cuts a process's name: two titles may then have one name."""
_RAY_FLAGS = ("distributed-executor-backend", "data-parallel-backend")


@dataclass(frozen=True, slots=True)
class _Seen:
    """What a process's command line said when it was read; good while ``program`` stays the same."""

    program: tuple[object, ...]
    argv: tuple[str, ...] | None
    """The command line of a vLLM server, None for any other process."""
    title: str


@dataclass(frozen=True, slots=True)
class _Kept:
    """What does not change while a main process lives."""

    started_at: float
    environ: Mapping[str, str] | None
    places: Mapping[str, str] | None
    """Variables that say where models lie: they go no further than to the reader of models."""
    pod: Mapping[str, str] | None
    """Variables that say which container of a pod it is."""
    cwd: str | None
    inner_pid: int | None
    on_ray: bool
    """Whether its flags have Ray start the workers."""


def source(roots: Roots, interval: float = 1.0) -> ProcfsSource:
    """Return the finder of engines in ``roots.procfs``, to be run every ``interval`` seconds."""
    return ProcfsSource(roots, interval)


class ProcfsSource:
    """
    Engines found by their processes; blocking.

    A run reads every process's ``stat`` once; command lines only of processes that are new or have started another
    program. vLLM's workers overwrite their command line and environment with a title, so flags are read from the
    topmost process that still shows them.
    """

    name = "procfs"

    def __init__(self, roots: Roots, interval: float = 1.0) -> None:
        self.interval = interval
        self._proc = Proc(roots.procfs)
        self._seen: dict[int, _Seen] = {}
        self._kept: dict[ProcessKey, _Kept] = {}
        self._models = ModelReader(roots.procfs)
        self._pods = PodNames(roots.rootfs)
        self._ticks = os.sysconf("SC_CLK_TCK")

    def find(self) -> tuple[list[EngineSighting], list[str]]:
        """
        Return the engines running now, and one sentence for each that could be read only in part.

        Raise SourceError where the tree cannot be listed or is no procfs.
        """
        booted = self._proc.boot_time()
        if booted is None:
            raise SourceError(f"{self._proc.root}/stat: cannot be read or has no btime")
        processes = self._scan()
        children: dict[int, list[int]] = {}
        for stat in processes.values():
            children.setdefault(stat.ppid, []).append(stat.pid)
        servers = {pid for pid in processes if self._seen[pid].argv is not None}
        boot_id, faults = self._proc.boot_id(), []
        found: list[tuple[ProcessKey, _Kept, list[tuple[int, str]]]] = []
        for pid in sorted(servers):
            ancestors = _ancestors(processes, pid)
            if servers.isdisjoint(above for above, _ in ancestors[1:]):
                key = ProcessKey(pid, processes[pid].start_ticks, boot_id)
                kept, fault = self._keep(key, booted)
                found.append((key, kept, ancestors))
                faults += [fault] if fault else []
        strays = self._strays(processes, servers)
        # Nothing tells which engine a worker of a Ray cluster belongs to, unless there is only one it could be.
        on_ray = [key for key, kept, _ in found if kept.on_ray]
        sightings = []
        for key, kept, ancestors in found:
            roots = [key.pid, *strays] if on_ray == [key] else [key.pid]
            sightings.append(self._sighting(key, kept, ancestors, self._workers(roots, processes, children)))
        alive = {sighting.main for sighting in sightings}
        self._kept = {key: kept for key, kept in self._kept.items() if key in alive}
        self._models.keep(alive)
        self._pods.keep(frozenset(sighting.container_id for sighting in sightings if sighting.container_id))
        return sightings, faults

    def _scan(self) -> dict[int, Stat]:
        """Return the user processes that live now, each with its command line looked at."""
        try:
            pids = self._proc.pids()
        except OSError as error:
            raise SourceError(f"{self._proc.root}: {error.strerror}") from error
        processes = {pid: stat for pid in pids if (stat := self._proc.stat(pid)) and not stat.gone and not stat.kernel}
        self._seen = {pid: self._look(stat) for pid, stat in processes.items()}
        return processes

    def _look(self, stat: Stat) -> _Seen:
        program = (stat.start_ticks, stat.comm, stat.image)
        seen = self._seen.get(stat.pid)
        known = seen is not None and seen.program == program
        # Where addresses are hidden, a Python that starts another Python in its place looks as it did before.
        uncertain = stat.masked and stat.comm.startswith(_INTERPRETERS)
        # A worker that takes a longer title may keep the name that is cut from it.
        retitled = seen is not None and "::" in seen.title and len(stat.comm.encode()) >= _CUT
        if seen is not None and known and not uncertain and not retitled:
            return seen
        cmdline = self._proc.cmdline(stat.pid)
        if not cmdline:
            # Between fork and exec, or gone: looked at again next time.
            return seen if seen is not None and known and retitled else _Seen((), None, stat.comm)
        return _Seen(program, cmdline if server_arguments(cmdline) is not None else None, title_of(cmdline, stat.comm))

    def _keep(self, key: ProcessKey, booted: float) -> tuple[_Kept, str]:
        """Return what is kept of a main process, read again as long as its environment was out of reach."""
        kept = self._kept.get(key)
        if kept is not None and kept.environ is not None:
            return kept, ""
        found, fault = self._environ(key.pid)
        environ, places = _apart(found, ENVIRON_ALLOWED), _apart(found, MODEL_ENVIRON)
        pod = _apart(found, POD_ENVIRON)
        started = booted + key.start_ticks / self._ticks if kept is None else kept.started_at
        cwd = self._proc.cwd(key.pid)
        on_ray = self._on_ray(key.pid, environ, cwd)
        kept = _Kept(started, environ, places, pod, cwd, self._proc.inner_pid(key.pid), on_ray)
        self._kept[key] = kept
        return kept, fault

    def _on_ray(self, pid: int, environ: Mapping[str, str] | None, cwd: str | None) -> bool:
        """Return whether the flags of the server ``pid`` have Ray start its workers."""
        root = Path(self._proc.root)
        given = shape(self._seen[pid].argv or (), environ, lambda path: read_config(root, pid, cwd, path)).given
        return "ray" in (given.get(flag) for flag in _RAY_FLAGS)

    def _strays(self, processes: dict[int, Stat], servers: set[int]) -> list[int]:
        """Return vLLM's workers below no server: a Ray cluster that was there before the server has started them."""
        workers = [pid for pid, seen in self._seen.items() if is_ray_worker(seen.title)]
        return [pid for pid in workers if servers.isdisjoint(above for above, _ in _ancestors(processes, pid))]

    def _environ(self, pid: int) -> tuple[dict[str, str] | None, str]:
        where = f"{self._proc.root}/{pid}/environ of a vLLM server"
        try:
            return self._proc.environ(pid, ENVIRON_ALLOWED | MODEL_ENVIRON | POD_ENVIRON), ""
        except PermissionError:
            return None, f"{where}: permission denied, needs CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH"
        except (FileNotFoundError, ProcessLookupError):
            # It has ended since its command line was read: no fault of ours, and gone at the next run.
            return None, ""
        except ValueError as error:
            return None, f"{where}: {error}"
        except OSError as error:
            return None, f"{where}: {error.strerror}"

    def _sighting(
        self, key: ProcessKey, kept: _Kept, ancestors: list[tuple[int, str]], workers: tuple[Worker, ...]
    ) -> EngineSighting:
        by = self._pods.told(supervised(self._proc, ancestors, kept.environ), kept.pod)
        argv = self._seen[key.pid].argv or ()
        return EngineSighting(
            source=self.name,
            main=key,
            started_at=kept.started_at,
            argv=argv,
            environ=kept.environ,
            workers=workers,
            cwd=kept.cwd,
            unit=by.unit,
            container=by.container,
            container_id=by.container_id,
            supervisor=by.supervisor,
            inner_pid=kept.inner_pid,
            model_files=self._models.of(key, argv, kept.places, kept.cwd, kept.started_at),
        )

    def _workers(
        self, roots: Sequence[int], processes: dict[int, Stat], children: dict[int, list[int]]
    ) -> tuple[Worker, ...]:
        """Return the processes below the first of ``roots``, the others and what is below them, in PID order."""
        main, *others = roots
        todo, below = list(roots), set(others)
        while todo:
            found = [pid for pid in children.get(todo.pop(), ()) if pid not in below and pid != main]
            below.update(found)
            todo += found
        titles = {pid: self._seen[pid].title for pid in sorted(below) if pid in processes}
        return tuple(Worker(pid, title, rank_of(title)) for pid, title in titles.items())


def _apart(environ: Mapping[str, str] | None, names: frozenset[str]) -> dict[str, str] | None:
    return None if environ is None else {name: text for name, text in environ.items() if name in names}


def _ancestors(processes: dict[int, Stat], pid: int) -> list[tuple[int, str]]:
    """Return PID and name of a process, its parent and so on; a tree read while it changes may even hold a circle."""
    chain: list[tuple[int, str]] = []
    while (stat := processes.get(pid)) and len(chain) < _DEEPEST and (pid, stat.comm) not in chain:
        chain.append((pid, stat.comm))
        pid = stat.ppid
    return chain
