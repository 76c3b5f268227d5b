"""What is remembered of an engine's past, to judge its present by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from budget_exporter.facts.boot import Cause, Failure, Phase


@dataclass(frozen=True, slots=True)
class BootMark:
    """One boot that came to serve: when its process started, what it was given, what it got."""

    started_at: float
    """Unix time of the main process's start."""
    shape: str
    """A digest of the budget flags and the version; boots are compared only where it is the same."""
    kv_tokens: int | None = None
    free_at_init: Mapping[str, int] = field(default_factory=dict)
    """Bytes free when the engine took its first snapshot, by rank."""
    served_at: float | None = None
    """Unix time at which it was first seen to serve."""
    lasted: bool = False
    """Whether it went on for so long that it has survived requests."""


@dataclass(frozen=True, slots=True)
class Loop:
    """How an engine dies again and again."""

    deaths: int
    phase: Phase
    """Where it dies most often."""
    in_phase: int
    """How many of the deaths were there."""
    cause: Cause
    """What it dies of there most often."""
    served: bool
    """Whether it came to serve between its deaths."""


@dataclass(frozen=True, slots=True)
class Creep:
    """A trend of one rank's use: bytes a second, and what it comes to."""

    slope: float
    rise: int
    """Bytes gained from the first quarter of the time watched to the last."""
    load_rises: bool | None
    """Whether load rose as well, None where the engine does not tell its load."""

    def seconds_to(self, room: int) -> float:
        """Return the seconds until ``room`` bytes are used up; 0 where they are already."""
        return max(room, 0) / self.slope


@dataclass(frozen=True, slots=True)
class Past:
    """What an engine's past says of it now."""

    boots: tuple[BootMark, ...] = ()
    """Boots that came to serve, oldest first, the present one last where it is among them."""
    crash_loop: bool | None = None
    """Whether the engine dies again and again without getting to work."""
    loop: Loop | None = None
    """How it does, where it does."""
    first_request: Failure | None = None
    """How a boot with the present flags died of its first request, where none with them has lasted since."""
    trends: Mapping[str, Creep | None] = field(default_factory=dict)
    """By rank, where it was watched for long enough; None is no trend."""
    leftover: bool | None = None
    """Whether processes of an earlier life hold device memory; None where nobody lists a device's processes."""
