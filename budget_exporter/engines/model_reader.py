"""Read each engine's model files once, beside the finder: a file system that hangs holds up no discovery."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from budget_exporter.engines._config_reader import read_config
from budget_exporter.engines._launch import server_arguments
from budget_exporter.engines.model_files import View, find
from budget_exporter.engines.model_wanted import wanted
from budget_exporter.errors import BudgetExporterError
from budget_exporter.facts.engine import ProcessKey
from budget_exporter.facts.model import ModelFiles

__all__ = ["ModelReader"]

AGAIN = 10.0
"""Seconds after which what could not be read is tried again: a model may still be fetched."""
WAIT = 0.1
"""Seconds a finder waits for files that answer."""
MOST_HANGING = 4
"""Threads that may hang at once: each start of an engine on a file system that hangs would take one more."""
SILENT = ModelFiles(notes=("the model's config.json: the file system does not answer",))


@dataclass(slots=True)
class _Reading:
    thread: threading.Thread
    began: float
    result: list[ModelFiles] = field(default_factory=list)
    """The one result, put there by the thread."""


class ModelReader:
    """
    The model files of all engines, kept by main process.

    A config that was read is not looked at again, as the engine does not either; one that was not is tried again every
    ten seconds. Each try has a thread of its own, which a file system that hangs keeps.
    """

    def __init__(self, procfs: Path, clock: Callable[[], float] = time.monotonic, wait: float = WAIT) -> None:
        self._procfs = procfs
        self._clock = clock
        self._wait = wait
        self._known: dict[ProcessKey, ModelFiles] = {}
        self._readings: dict[ProcessKey, _Reading] = {}
        self._hanging: list[threading.Thread] = []

    def of(
        self,
        key: ProcessKey,
        argv: Sequence[str],
        environ: Mapping[str, str] | None,
        cwd: str | None,
        started_at: float,
    ) -> ModelFiles:
        """
        Return what is known of the model of main process ``key`` by now; never raise.

        ``argv`` is its whole command line, ``environ`` the variables that say where models lie (None where they may not
        be read), ``cwd`` its working directory, ``started_at`` the Unix time of its start.
        """
        reading = self._readings.get(key)
        if reading is None or self._due(key, reading):
            self._hanging = [thread for thread in self._hanging if thread.is_alive()]
            if len(self._hanging) >= MOST_HANGING:
                return self._known.get(key, SILENT)
            view = View(self._procfs, key.pid, cwd, started_at)
            reading = self._readings[key] = self._begin(view, argv, environ)
            reading.thread.join(self._wait)
        if reading.result:
            self._known[key] = reading.result[0]
        return self._known.get(key, SILENT)

    def keep(self, alive: Iterable[ProcessKey]) -> None:
        """Forget all main processes but those ``alive``."""
        gone = self._readings.keys() - set(alive)
        for key in gone:
            self._known.pop(key, None)
            del self._readings[key]

    def _due(self, key: ProcessKey, reading: _Reading) -> bool:
        if not reading.result or self._clock() - reading.began < AGAIN:
            return False
        return bool(self._known.get(key, SILENT).notes)

    def _begin(self, view: View, argv: Sequence[str], environ: Mapping[str, str] | None) -> _Reading:
        result: list[ModelFiles] = []

        def run() -> None:
            result.append(_read(view, argv, environ))

        thread = threading.Thread(target=run, name="model files", daemon=True)
        reading = _Reading(thread, self._clock(), result)
        self._hanging.append(thread)
        thread.start()
        return reading


def _read(view: View, argv: Sequence[str], environ: Mapping[str, str] | None) -> ModelFiles:
    try:
        args = server_arguments(argv) or ()
        named = wanted(args, lambda path: read_config(view.procfs, view.pid, view.cwd, path))
        return find(view, named, environ)
    except BudgetExporterError as error:
        return ModelFiles(notes=(f"the model: {error}",))
    except Exception as error:  # noqa: BLE001 - whatever a watched engine names must cost no more than its figures
        return ModelFiles(notes=(f"the model: {type(error).__name__}: {str(error)[:160]}",))
