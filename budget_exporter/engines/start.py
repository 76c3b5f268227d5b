"""Where it is written how an engine starts: what the source of pending flags is asked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from budget_exporter.facts.engine import EngineSighting

__all__ = ["Start", "Watched"]


@dataclass(frozen=True, slots=True)
class Start:
    """Where it is written how an engine starts: a unit's name, or the path of a file on the host."""

    kind: Literal["unit", "quadlet", "compose", "env_file"]
    name: str
    service: str = ""
    configured: bool = False
    """Whether the operator named it: then what is wrong with it is a fault."""


@dataclass(frozen=True, slots=True)
class Watched:
    """A running engine, its release and where its next start is written."""

    engine: str
    sighting: EngineSighting
    version: str | None
    start: Start
