"""What is remembered of an engine's boots, to compare the present one with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


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
