"""What outlives us, in one JSON file: marks, restart counts, last failures, boot facts."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import msgspec

from budget_exporter.facts.boot import BootReport, Cause, Failure
from budget_exporter.facts.device import HighWater
from budget_exporter.facts.engine import ProcessKey
from budget_exporter.facts.history import BootMark
from budget_exporter.facts.ownership import Known, Peak
from budget_exporter.facts.snapshot import FreeAtInit

__all__ = ["EngineMemory", "State", "load", "save"]

VERSION = 1
Count = Annotated[int, msgspec.Meta(ge=0)]
_LOG = logging.getLogger("budget_exporter.state")


@dataclass(frozen=True, slots=True)
class EngineMemory:
    """What is remembered of one engine."""

    main: ProcessKey | None = None
    started_at: float | None = None
    last_seen: float | None = None
    restarts: Count = 0
    nrestarts: int | None = None
    unit: str = ""
    """Whose counter ``nrestarts`` is."""
    failures: Mapping[Cause, Count] = field(default_factory=dict)
    last_failure: Failure | None = None
    report: BootReport | None = None
    """Boot facts of the process ``main``: the journal rotates while engines run for weeks."""
    log: str = ""
    """Which log ``cursor`` belongs to."""
    cursor: str | None = None
    free_at_init: Mapping[str, FreeAtInit] = field(default_factory=dict)
    boots: tuple[BootMark, ...] = ()
    last_deaths: tuple[Failure, ...] = ()
    """The newest deaths, oldest first."""
    peaks: Mapping[str, Peak] = field(default_factory=dict)
    """By rank, of the process ``main``."""
    processes: Mapping[int, Known] = field(default_factory=dict)
    """Those that held device memory, by PID: what one of them holds after the engine's end is not foreign."""


@dataclass(frozen=True, slots=True)
class State:
    """The whole file."""

    version: int = VERSION
    saved_at: float = 0.0
    devices: tuple[HighWater, ...] = ()
    engines: Mapping[str, EngineMemory] = field(default_factory=dict)


def load(path: Path) -> State:
    """Return the state at ``path``; a missing file is a new state, a broken one is set aside with a warning."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return State()
    except OSError as error:
        _LOG.warning("%s: cannot be read, starting anew: %s", path, error.strerror)
        return State()
    try:
        state = msgspec.json.decode(data, type=State)
        if state.version == VERSION:
            return state
        reason = f"version {state.version}, this exporter writes {VERSION}"
    except (msgspec.DecodeError, RecursionError) as error:
        reason = str(error)
    aside = path.with_name(f"{path.name}.broken-{int(time.time())}")
    try:
        path.replace(aside)
    except OSError as error:
        _LOG.warning("%s: not a state file (%s) and cannot be set aside: %s", path, reason, error.strerror)
    else:
        _LOG.warning("%s: not a state file (%s); set aside as %s, starting anew", path, reason, aside.name)
    return State()


def save(path: Path, state: State) -> None:
    """
    Write ``state`` to ``path`` so that a crash at any moment leaves the old file or the new one, never a part.

    Raise OSError where it cannot be written.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        # Nobody else's business: it holds the engines' flags as their logs print them.
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(msgspec.json.encode(state))
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except OSError:
        draft.unlink(missing_ok=True)
        raise
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
