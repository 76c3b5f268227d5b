"""Keep the largest use of each rank since its engine started, where nobody looked away for long."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from budget_exporter.facts.engine import Placement, ProcessKey
from budget_exporter.facts.ownership import Peak, RankMemory
from budget_exporter.sidecar.fleet import Engine
from budget_exporter.state import EngineMemory

__all__ = ["UNSEEN", "Peaks"]

UNSEEN = 60.0
"""Seconds without a look after which a use is no longer known to be the largest: an exporter restarts in less."""


class Peaks:
    """Marks by main process and rank: an engine that is renamed goes on, one that is started anew does not."""

    def __init__(self, remembered: Mapping[str, EngineMemory]) -> None:
        self._peaks: dict[tuple[ProcessKey, str], Peak | None] = {
            (memory.main, rank): peak
            for memory in remembered.values()
            if memory.main is not None
            for rank, peak in memory.peaks.items()
        }
        """None where some of the engine's life was not watched."""

    def take(
        self,
        ranks: Mapping[tuple[str, str], RankMemory],
        engines: Iterable[Engine],
        placed: Mapping[str, Iterable[Placement]],
        listed: Collection[str],
        now: float,
    ) -> dict[tuple[str, str], RankMemory]:
        """
        Return ``ranks``, by engine and rank, with the largest use of each.

        ``listed`` are the devices whose holders are known at ``now``. A rank on one of them that holds nothing has
        been looked at too, but not one of which it is only unknown what it holds.
        """
        present = {engine.main: engine for engine in engines if engine.main is not None}
        self._peaks = {key: peak for key, peak in self._peaks.items() if key[0] in present}
        result = dict(ranks)
        for main, engine in present.items():
            for placement in placed.get(engine.name, ()) if engine.running is not None else ():
                held = ranks.get((engine.name, placement.rank))
                used = 0 if held is None else held.used
                if placement.device not in listed or used is None:
                    continue
                peak = self._look((main, placement.rank), used, engine.started_at, now)
                if held is not None and peak is not None:
                    result[engine.name, placement.rank] = replace(held, used_high_water=peak.used)
        return result

    def _look(self, key: tuple[ProcessKey, str], used: int, started: float | None, now: float) -> Peak | None:
        before = self._peaks.get(key, None if started is None else Peak(0, started))
        if before is None or abs(now - before.looked) > UNSEEN:
            self._peaks[key] = None
        else:
            self._peaks[key] = Peak(max(before.used, used), now)
        return self._peaks[key]

    def of(self, main: ProcessKey | None) -> dict[str, Peak]:
        """Return the marks of one main process by rank, to be remembered."""
        return {rank: peak for (life, rank), peak in self._peaks.items() if life == main and peak is not None}
