"""Whose memory is on a device: the ranks' own, foreign, and what no process accounts for."""

from __future__ import annotations

from dataclasses import dataclass, field

from budget_exporter.facts.device import ProcessMemory


@dataclass(frozen=True, slots=True)
class Owner:
    """The engine a process belongs to; ``rank`` where it is known, ``ended`` where that engine no longer runs."""

    engine: str
    rank: str | None = None
    ended: bool = False


@dataclass(frozen=True, slots=True)
class DeviceOwnership:
    """
    How the use of one device is divided, in bytes; None where it cannot be told.

    ``foreign`` are the processes of no known engine, largest first, ``leftover`` those of an engine that has ended.
    """

    device: str
    attributed: int | None = None
    """What the visible processes hold together."""
    foreign_bytes: int | None = None
    unattributed: int | None = None
    evicted: int | None = None
    evicted_seconds: float | None = None
    foreign: tuple[ProcessMemory, ...] | None = None
    leftover: tuple[tuple[str, ProcessMemory], ...] = ()
    """Engine and process, for each process that still holds memory after its engine ended."""


@dataclass(frozen=True, slots=True)
class RankMemory:
    """What the processes of one rank hold on the rank's device, in bytes; None where no process tells."""

    used: int | None = None
    gtt_used: int | None = None
    used_high_water: int | None = None
    """Largest ``used`` since the engine started; None where not all of that time was watched."""


@dataclass(frozen=True, slots=True)
class Peak:
    """The largest use of a rank in bytes since its engine started, and the Unix time of the newest look at it."""

    used: int
    looked: float


@dataclass(frozen=True, slots=True)
class Known:
    """A process of an engine that held memory of these devices when they were listed last; ``name`` is its own."""

    name: str
    devices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Ownership:
    """The division of all devices, and what each (engine, rank) holds."""

    devices: dict[str, DeviceOwnership] = field(default_factory=dict)
    ranks: dict[tuple[str, str], RankMemory] = field(default_factory=dict)
