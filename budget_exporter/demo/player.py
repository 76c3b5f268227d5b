"""Let the synthetic host live: ``python -m budget_exporter.demo.player FOLDER SCENARIO`` until standard input ends."""

from __future__ import annotations

import select
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from budget_exporter.demo import boot_log
from budget_exporter.demo.boot_log import Boot, Lines, Pids
from budget_exporter.demo.endpoint import Pool
from budget_exporter.demo.host import DEVICES, FREE_AT_INIT, SIZE, Host, Shape
from budget_exporter.facts.boot import Phase
from budget_exporter.units import GIB, MIB

__all__ = ["HEALTHY", "HEALTHY_FREE", "SCENARIOS", "Engine", "main"]

IDLE = 3.0
"""Seconds the cards are seen idle before an engine comes, so that their baseline and free at init are measured."""
LINE = 0.12
"""Seconds between two lines of a boot that takes minutes on the real host."""
FIRST_PID = 4242
PID_STEP = 100
RESERVE = SIZE - FREE_AT_INIT

HEALTHY = Shape("0.982", 200704, 3, 3166500000)
KNIFE_EDGE = Shape("0.87", 262144, 5, boot_log.KNIFE_EDGE.kv_bytes)
CRASHING = Shape("1.0", 200704, 3, 3166500000)
HEALTHY_FREE = round(0.89 * GIB)
"""What shape G had left on both cards at its fullest."""
KNIFE_EDGE_FREE = 110 * MIB
"""What a shape of that kind has left when it serves; one like it was seen at 0.13 GiB."""
REQUEST_AFTER = 150.0
"""Seconds the knife-edge engine serves before a request kills it: time enough to be paged first."""

Step = tuple[float, Callable[[], None]]
Steps = Iterator[Step]


class Engine:
    """One life of the engine: its processes, its share of the cards, its log."""

    def __init__(self, host: Host, number: int, shape: Shape, plan: Boot) -> None:
        first = FIRST_PID + PID_STEP * number
        # As demo.procfs_tree numbers them: main, resource tracker, engine core, workers.
        self.pids = Pids(first, first + 2, (first + 3, first + 4))
        self._host = host
        self._shape = shape
        self._plan = plan
        self._processes: list[int] = []

    def start(self) -> None:
        """Start the engine's processes."""
        self._processes = self._host.start(self.pids.api, self._shape)

    def end(self) -> None:
        """End them; the cards are free again."""
        self._host.serve(None)
        self._host.end(self._processes)
        self._processes = []
        self.hold(0)

    def hold(self, size: int) -> None:
        """Let the engine hold ``size`` bytes of each card, beside the driver's reserve."""
        for rank, (device, worker) in enumerate(zip(DEVICES, self.pids.workers, strict=True)):
            self._host.hold(device, RESERVE + size)
            if self._processes:
                self._host.own(rank, worker, size)

    def holdings(self, free: int) -> dict[Phase, int]:
        """Return what the engine holds of a card in each phase, in bytes; ``free`` is what it leaves in the end."""
        weights, arena, pool = round(6.34 * GIB), round(self._plan.arena), self._plan.kv_bytes
        final = SIZE - RESERVE - free
        return {
            "loading": weights,
            "profiling": weights + arena,
            "allocating_kv": min(weights + arena + pool, final),
            "capturing": min(weights + arena + pool + self._plan.graph_mib * MIB, final),
            "warming_up": min(weights + arena + pool + GIB, final),
            "serving": final,
        }

    def boot(self, free: int) -> Steps:
        """Yield the steps of a boot that comes to serve."""
        yield 0.0, self.start
        holdings, phase = self.holdings(free), "starting"
        for now, line in boot_log.boot(self.pids, self._plan):
            if now != phase and now in holdings:
                phase = now
                yield LINE, lambda size=holdings[now]: self.hold(size)  # type: ignore[misc]  # bound at once
            yield LINE, self._saying([(now, line)])
        yield 0.0, lambda: self._host.serve(Pool(self._plan.kv_tokens, self._plan.max_model_len))

    def say(self, lines: Lines) -> Steps:
        """Yield the steps that write ``lines``."""
        for entry in lines:
            yield LINE, self._saying([entry])

    def _saying(self, lines: Lines) -> Callable[[], None]:
        return lambda: self._host.say([line for _, line in lines])


def healthy(host: Host) -> Steps:
    """Shape G: boots and serves, with 0.89 GiB free at its fullest."""
    engine = Engine(host, 0, HEALTHY, boot_log.SHAPE_G)
    yield IDLE, _nothing
    yield from engine.boot(HEALTHY_FREE)
    while True:
        yield 5.0, lambda: engine.hold(SIZE - RESERVE - HEALTHY_FREE - 96 * MIB)
        yield from engine.say(boot_log.request(engine.pids))
        yield 5.0, lambda: engine.hold(SIZE - RESERVE - HEALTHY_FREE)


def knife_edge(host: Host) -> Steps:
    """5 x 262144 fp8: boots with every gate passed, serves with next to nothing free, dies on a request, restarts."""
    number = 0
    yield IDLE, _nothing
    while True:
        engine = Engine(host, number, KNIFE_EDGE, boot_log.KNIFE_EDGE)
        yield from engine.boot(KNIFE_EDGE_FREE)
        yield REQUEST_AFTER, lambda engine=engine: engine.hold(SIZE - RESERVE)  # type: ignore[misc]  # bound at once
        yield from engine.say(boot_log.first_request_oom(engine.pids))
        yield 1.0, engine.end
        yield 5.0, _nothing
        number += 1


def crash_loop(host: Host) -> Steps:
    """Utilization 1.00: both ranks refuse before a weight is loaded, and the supervisor tries again."""
    number = 0
    plan = replace(boot_log.SHAPE_G, utilization=1.0)
    yield IDLE, _nothing
    while True:
        engine = Engine(host, number, CRASHING, plan)
        yield 0.0, engine.start
        yield 1.0, lambda engine=engine: engine.hold(256 * MIB)  # type: ignore[misc]  # the contexts; bound at once
        yield from engine.say(boot_log.crash_loop(engine.pids))
        yield 0.5, engine.end
        yield 5.0, _nothing
        number += 1


SCENARIOS: dict[str, Callable[[Host], Steps]] = {
    "healthy": healthy,
    "knife-edge": knife_edge,
    "crash-loop": crash_loop,
}


def _nothing() -> None:
    """Let time pass."""


def main(argv: Sequence[str]) -> int:
    """Play the scenario ``argv[1]`` on the host in ``argv[0]`` until standard input ends."""
    host = Host(Path(argv[0]), endpoint=True)
    for wait, act in SCENARIOS[argv[1]](host):
        # Nobody writes to our input: it becomes readable when the process that serves the host is gone.
        if select.select([sys.stdin], [], [], wait)[0]:
            return 0
        act()
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
