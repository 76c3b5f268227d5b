"""
Print how many short spikes of a card's use the sampler sees at 10 Hz, beside the gaps between its own samples.

A real sampler in its thread reads the synthetic tree while another thread lets the card's use rise and fall. What no
sample fell into cannot have been seen: a spike that is shorter than a gap is a matter of luck.
"""

from __future__ import annotations

import random
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from budget_exporter.demo import amdgpu_tree as tree
from budget_exporter.devices import amdgpu
from budget_exporter.facts.device import DeviceReport, DeviceWindow
from budget_exporter.roots import Roots
from budget_exporter.sidecar.devices import Board
from budget_exporter.sidecar.reports import Folded, fold
from budget_exporter.sidecar.runner import Runner
from budget_exporter.units import GIB, MIB

CARD = tree.R9700_PAIR[0].pci
COUNT = 40
IDLE = 2 * GIB
PAUSE = 0.25
"""Seconds between two spikes, and up to one interval of the sampler more: their phases differ."""


@dataclass(frozen=True, slots=True)
class Spike:
    """``seen`` in the largest use of the last minute; ``gap`` is the sampler's longest around it in seconds."""

    seen: bool
    gap: float


def spikes(folder: Path, length: float, count: int = COUNT) -> list[Spike]:
    """Return how it went with ``count`` spikes of ``length`` seconds, each higher than all before."""
    sysfs = folder / "sys"
    tree.build(sysfs)
    source = amdgpu.source(Roots(sysfs=sysfs))

    def run() -> tuple[DeviceReport, list[str]]:
        report = source.read(frozenset())
        return report, list(report.faults)

    sampler: Runner[DeviceReport, Folded] = Runner("amdgpu", source.interval, run, fold)
    tree.set_used(sysfs, CARD, IDLE)
    sampler.start()
    try:
        return _watched(sampler, sysfs, length, count)
    finally:
        sampler.stop()
        sampler.join(5)
        source.close()


def _watched(sampler: Runner[DeviceReport, Folded], sysfs: Path, length: float, count: int) -> list[Spike]:
    dice, wait = random.Random(7), threading.Event().wait  # noqa: S311 - the same phases every time are wanted
    board, last, found = Board(), None, []
    for number in range(count):
        height = IDLE + (number + 1) * MIB
        wait(PAUSE / 2 + dice.uniform(0, 0.1))
        tree.set_used(sysfs, CARD, height)
        wait(length)
        tree.set_used(sysfs, CARD, IDLE)
        wait(PAUSE / 2)
        folded = sampler.take()
        window = folded.windows[CARD] if folded is not None else None
        if folded is not None:
            board.update(folded.windows, {})
        state = next((s for s in board.states(time.time()) if s.identity.device == CARD), None)
        found.append(Spike(state is not None and state.window_max == height, _gap(last, window)))
        last = window or last
    return found


def _gap(last: DeviceWindow | None, window: DeviceWindow | None) -> float:
    """Return the longest gap in ``window``, and from the one before it to its first sample."""
    if window is None:
        return float("inf")
    return max(window.gap, 0.0 if last is None else window.began - last.newest.at)


def main() -> None:
    """Measure and print the table."""
    head = f"{COUNT} spikes of a card's use, the sampler at 10 Hz"
    print(f"{head:<56} {'seen':>8} {'gap ms':>8} {'> 110 ms':>8}")  # noqa: T201 - a report
    for length in (0.25, 0.12):
        with tempfile.TemporaryDirectory() as folder:
            found = spikes(Path(folder), length)
        seen, gaps = sum(spike.seen for spike in found), [spike.gap for spike in found]
        late = sum(gap > 0.11 for gap in gaps)
        what = f"of {length * 1e3:.0f} ms"
        print(f"{what:<56} {seen:>8} {1e3 * max(gaps):>8.0f} {late:>8}")  # noqa: T201 - a report


if __name__ == "__main__":
    main()
