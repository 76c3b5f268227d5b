"""One synthetic host, what happens on it, and when: the same for a replay in real time and for one on its own clock."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import groupby
from pathlib import Path

from budget_exporter.demo import amdgpu_tree, procfs_tree
from budget_exporter.demo.boot_log import Boot, Lines, boot
from budget_exporter.demo.endpoint import Pool
from budget_exporter.demo.host import FREE_AT_INIT, SIZE, Host, Shape
from budget_exporter.demo.player import Engine
from budget_exporter.facts.boot import Phase

__all__ = ["RESERVE", "ROOM", "Stage", "Waits"]

Waits = Iterator[float]
"""What happens, as a generator that acts and yields the seconds until it acts again."""
RESERVE = SIZE - FREE_AT_INIT
"""What the driver holds of each card, in bytes."""
ROOM = FREE_AT_INIT
"""What engines and others can hold of each card, in bytes."""
TAKES: dict[Phase, float] = {
    "starting": 25.0,
    "loading": 95.0,
    "profiling": 30.0,
    "allocating_kv": 10.0,
    "capturing": 15.0,
    "warming_up": 20.0,
}
"""Seconds each phase of a boot takes."""


LIVE_PACE = 30.0
"""By how much a boot is quicker in real time."""


class Stage:
    """
    A host below ``folder`` and its engines, one after the other.

    ``clock`` gives Unix seconds. Where it is ``live`` that is the real one: boots are quicker then, and an engine that
    serves answers at its endpoint.
    """

    def __init__(self, folder: Path, clock: Callable[[], float] = time.time, *, live: bool = False) -> None:
        self.clock = clock
        self.host = Host(folder, endpoint=live, clock=clock)
        self.host.build()
        self.state_at: float | None = None
        """When the state began that somebody must be told of, or would be told of wrongly."""
        self.live = live
        """Whether its clock is the real one."""
        self.last: Engine
        """The engine that serves, or did last."""
        self.left = 0
        """Bytes it leaves free on each card now."""
        self.life = (0.0, 0)
        """When it began, and what it left free then."""
        self._pace = LIVE_PACE if live else 1.0
        self._number = 0
        self._others: dict[int, int] = {}

    def begins(self) -> None:
        """Note that the state of this incident begins now; only the first time counts."""
        self.state_at = self.clock() if self.state_at is None else self.state_at

    def engine(self, shape: Shape, plan: Boot) -> Engine:
        """Return the engine's next life, which has not begun yet."""
        self._number += 1
        return Engine(self.host, self._number, shape, plan)

    def say(self, lines: Iterable[tuple[Phase, str]]) -> None:
        """Let the engine write ``lines``."""
        self.host.say([line for _, line in lines])

    def boot(self, engine: Engine, plan: Boot, free: int, spikes: dict[Phase, int] | None = None) -> Waits:
        """
        Boot ``engine`` until it serves with ``free`` bytes left on each card.

        ``spikes`` are what is left at the fullest moment of a phase, which lasts for the first half of it.
        """
        told = boot(engine.pids, plan, self.clock())
        yield from self.until_serving(engine, told, engine.holdings(free), spikes)
        self.host.serve(Pool(plan.kv_tokens, plan.max_model_len))

    def until_serving(
        self, engine: Engine, lines: Lines, holdings: Mapping[Phase, int], spikes: Mapping[Phase, int] | None = None
    ) -> Waits:
        """Play the boot that ``lines`` tell of, as far as they go; ``holdings`` are bytes of each card by phase."""
        engine.start()
        for phase, told in groupby(lines, key=lambda entry: entry[0]):
            usual = holdings.get(phase, 0)
            spike = (spikes or {}).get(phase)
            self.say(told)
            half = TAKES.get(phase, 0.0) / self._pace / 2
            engine.hold(usual if spike is None else ROOM - spike)
            yield half
            engine.hold(usual)
            yield half

    def serve(self, engine: Engine, seconds: float, free: int, breath: int = 0, every: float = 60.0) -> Waits:
        """Serve for ``seconds`` with ``free`` bytes left, every other ``every`` seconds ``breath`` bytes more."""
        passed, low = 0.0, False
        while passed < seconds:
            engine.hold(ROOM - free - (breath if low else 0))
            wait = min(every, seconds - passed)
            yield wait
            passed, low = passed + wait, not low

    def stop(self, engine: Engine) -> None:
        """Stop ``engine`` as a supervisor does that was asked to."""
        stamp = time.strftime("%m-%d %H:%M:%S", time.localtime(self.clock()))
        api = f"(APIServer pid={engine.pids.api})"
        self.host.say(
            [
                f"{api} INFO {stamp} [launcher.py:110] API server: shutdown triggered",
                f"{api} INFO:     Shutting down",
                f"{api} INFO:     Application shutdown complete.",
            ]
        )
        engine.end()

    def foreign(self, device: str, pid: int, used: int) -> None:
        """Let a process of nobody's, ``pid``, hold ``used`` bytes of ``device``."""
        amdgpu_tree.add_kfd_process(self.host.roots.sysfs, pid, {device: used})
        self._others[pid] = used

    def spill(self, engine: Engine, rank: int, *, free: int, spilt: int) -> None:
        """Let the card of ``rank`` have ``free`` bytes left and ``spilt`` bytes of the engine's be in system memory."""
        card = amdgpu_tree.R9700_PAIR[rank]
        amdgpu_tree.set_used(self.host.roots.sysfs, card.pci, SIZE - free, (card.gtt_used or 0) + spilt)
        worker, holds = engine.pids.workers[rank], ROOM - free
        procfs_tree.open_card(
            self.host.roots.procfs, worker, pci=card.pci, render_minor=card.render_minor, client=worker,
            vram=holds, gtt=spilt, evicted=spilt,
        )  # fmt: skip

    def wedge(self, device: str) -> None:
        """Let ``device`` never again say what it holds: a FIFO that nobody writes to stands in the file's place."""
        _never_answers(amdgpu_tree.card_directory(self.host.roots.sysfs, device) / "mem_info_vram_used")

    def wedge_processes(self) -> None:
        """Let every look at the host's processes hang."""
        _never_answers(self.host.roots.procfs / "stat")

    def lose(self, device: str) -> None:
        """Let the card fall off the bus."""
        amdgpu_tree.remove_card(self.host.roots.sysfs, device)


def _never_answers(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)
