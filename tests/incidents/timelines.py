"""The incidents: what happens on the host, and when."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from budget_exporter.demo import boot_log
from budget_exporter.demo.boot_log import Boot
from budget_exporter.demo.host import DEVICES, SIZE, Shape
from budget_exporter.demo.player import CRASHING, HEALTHY, HEALTHY_FREE, KNIFE_EDGE, KNIFE_EDGE_FREE
from budget_exporter.facts.boot import Phase
from budget_exporter.units import GIB, MIB
from tests.incidents import lines
from tests.incidents.stage import ROOM, Stage, Waits

__all__ = [
    "blind",
    "capture_oom",
    "card_lost",
    "crash_loop",
    "drift",
    "foreign",
    "healthy_boot",
    "knife_edge",
    "late_leak",
    "leak",
    "other_flags",
    "rolling_restart",
    "sleep_and_wake",
    "spill",
    "tight_boot",
    "wedged",
]

MINUTE = 60.0
HOUR = 3600.0
SHAPE_G = boot_log.SHAPE_G
BF16 = replace(
    SHAPE_G, utilization=0.98, max_model_len=262144, max_num_seqs=2, kv_bytes=7255621632, kv_tokens=524288,
    slots=None, kv_cache_dtype="auto",
)  # fmt: skip
"""bf16 2 x 262144 with the precise overhead: 13839 B a token, and 31.73 of 31.86 GiB taken before it captures."""
BF16_FLAGS = Shape("0.98", 262144, 2, BF16.kv_bytes, "auto")
ROOMY = replace(SHAPE_G, utilization=0.88, slots=None)
"""A shape that leaves more than three GiB."""
ROOMY_FLAGS = replace(HEALTHY, utilization="0.88")
ROOMY_FREE = round(3.6 * GIB)
"""What the survivor of the knife-edge tests had left."""
DRIFTING = replace(SHAPE_G, utilization=0.95, graphs=18, graph_mib=18 * 12, captured=(0.61, 0.47), slots=None)
DRIFTING_FLAGS = replace(
    HEALTHY, utilization="0.95", more=("--speculative-config", '{"method": "mtp", "num_speculative_tokens": 2}')
)
"""Speculative decoding captures three times as many graphs, and each takes more than it is charged."""


def crash_loop(stage: Stage) -> Waits:
    """Utilization 1.00: both ranks refuse before a weight is loaded; the supervisor tries again and again."""
    yield 10.0
    stage.begins()
    starting = 2.0 if stage.live else 105.0
    for _ in range(12):
        engine = stage.engine(CRASHING, replace(SHAPE_G, utilization=1.0))
        engine.start()
        yield starting
        engine.hold(256 * MIB)
        stage.say(boot_log.crash_loop(engine.pids, stage.clock()))
        yield 3.0
        engine.end()
        yield 5.0


def knife_edge(stage: Stage) -> Waits:
    """5 x 262144 fp8 passes every gate with next to nothing left, and dies of its first request."""
    yield 10.0
    for _ in range(3):
        engine = stage.engine(KNIFE_EDGE, boot_log.KNIFE_EDGE)
        yield from stage.boot(engine, boot_log.KNIFE_EDGE, KNIFE_EDGE_FREE)
        stage.begins()
        yield 20.0
        engine.hold(ROOM)
        stage.say(boot_log.first_request_oom(engine.pids, stage.clock()))
        yield 1.0
        engine.end()
        yield 5.0


def capture_oom(stage: Stage) -> Waits:
    """bf16 2 x 262144 with the precise overhead: the last to allocate, the capture, finds nothing."""
    yield 10.0
    stage.begins()
    for _ in range(8):
        engine = stage.engine(BF16_FLAGS, BF16)
        told = lines.capture_oom(engine.pids, BF16, stage.clock())
        spikes: dict[Phase, int] = {"capturing": 130 * MIB, "failing": 0}
        yield from stage.until_serving(engine, told, engine.holdings(130 * MIB), spikes)
        engine.end()
        yield 2.0


def drift(stage: Stage) -> Waits:
    """An engine that served well comes back with speculative decoding: its graphs take more than they are charged."""
    yield from serving(stage, HEALTHY, SHAPE_G, HEALTHY_FREE, 10 * MINUTE)
    stage.stop(stage.last)
    yield 10.0
    yield from serving(stage, DRIFTING_FLAGS, DRIFTING, round(1.4 * GIB), 0.0)
    stage.begins()
    yield 40 * MINUTE


def foreign(stage: Stage) -> Waits:
    """Somebody's notebook takes 3 GiB of one card, beside an engine that left 3.6."""
    yield from serving(stage, ROOMY_FLAGS, ROOMY, ROOMY_FREE, 10 * MINUTE)
    stage.begins()
    stage.foreign(DEVICES[0], 31337, 3 * GIB)
    stage.host.hold(DEVICES[0], SIZE - ROOMY_FREE + 3 * GIB)
    yield 30 * MINUTE


def leak(stage: Stage) -> Waits:
    """200 MiB an hour from its first request on, while the load stays as it is."""
    yield from leaking(stage, 0.0)


def late_leak(stage: Stage) -> Waits:
    """The same after two hours in which all was well."""
    yield from leaking(stage, 2 * HOUR)


def leaking(stage: Stage, well: float) -> Waits:
    """Serve well for a while and then leak until the card is all but full."""
    left = round(1.75 * GIB)
    yield from serving(stage, ROOMY_FLAGS, ROOMY, left, well)
    stage.begins()
    while left > 150 * MIB:
        # In steps, as an allocator takes segments, and requests on top that come and go.
        left -= 20 * MIB
        yield from stage.serve(stage.last, 6 * MINUTE, left, breath=-24 * MIB, every=2 * MINUTE)


def spill(stage: Stage) -> Waits:
    """A card gets full and the driver moves buffers of the engine to system memory: slower, not dead."""
    yield from serving(stage, HEALTHY, SHAPE_G, HEALTHY_FREE, 40 * MINUTE)
    stage.begins()
    for part in range(1, 5):
        stage.spill(stage.last, 1, free=420 * MIB, spilt=part * 300 * MIB)
        yield 3 * MINUTE
    yield 20 * MINUTE


def wedged(stage: Stage) -> Waits:
    """No card says any more what it holds: the driver is stuck, or we are."""
    yield from serving(stage, HEALTHY, SHAPE_G, HEALTHY_FREE, 20.0)
    stage.begins()
    for device in DEVICES:
        stage.wedge(device)
    yield MINUTE


def blind(stage: Stage) -> Waits:
    """Nobody can look at the processes any more, and then a card fills: that must still page."""
    yield from serving(stage, HEALTHY, SHAPE_G, HEALTHY_FREE, 20.0)
    stage.wedge_processes()
    yield 15.0
    stage.begins()
    stage.host.hold(DEVICES[1], SIZE - 64 * MIB)
    yield MINUTE


def card_lost(stage: Stage) -> Waits:
    """A reset fails and the card falls off the bus, under an engine that serves."""
    yield from serving(stage, HEALTHY, SHAPE_G, HEALTHY_FREE, 30.0)
    stage.begins()
    stage.lose(DEVICES[0])
    yield 1.5 * MINUTE


def other_flags(stage: Stage) -> Waits:
    """An operator restarts the engine with another utilization and a shorter context: nothing is wrong."""
    yield from serving(stage, HEALTHY, SHAPE_G, HEALTHY_FREE, 10 * MINUTE)
    stage.begins()
    stage.stop(stage.last)
    yield 20.0
    shorter = replace(SHAPE_G, utilization=0.95, max_model_len=131072, slots=None)
    flags = replace(HEALTHY, utilization="0.95", max_model_len=131072)
    yield from serving(stage, flags, shorter, round(1.9 * GIB), 40 * MINUTE)


def healthy_boot(stage: Stage) -> Waits:
    """Loading, profiling and capturing each take more for a moment than serving does."""
    yield 10.0
    stage.begins()
    spikes: dict[Phase, int] = {"loading": 900 * MIB, "profiling": 800 * MIB, "capturing": 820 * MIB}
    engine = stage.engine(HEALTHY, SHAPE_G)
    yield from stage.boot(engine, SHAPE_G, HEALTHY_FREE, spikes)
    yield from stage.serve(engine, 20 * MINUTE if not stage.live else 70.0, HEALTHY_FREE, breath=-96 * MIB)


def tight_boot(stage: Stage) -> Waits:
    """A boot that comes to 64 MiB for a moment, as one may that frees them again: a ticket, and no page."""
    yield 10.0
    engine = stage.engine(HEALTHY, SHAPE_G)
    yield from stage.boot(engine, SHAPE_G, HEALTHY_FREE, {"profiling": 64 * MIB, "warming_up": 64 * MIB})
    stage.begins()
    yield from stage.serve(engine, 20 * MINUTE if not stage.live else 70.0, HEALTHY_FREE)


def sleep_and_wake(stage: Stage) -> Waits:
    """An engine sleeps and wakes, twice."""
    pause = 10 * MINUTE if not stage.live else 15.0
    yield from serving(stage, HEALTHY, SHAPE_G, HEALTHY_FREE, pause)
    stage.begins()
    for _ in range(2):
        engine = stage.last
        stage.say(lines.fall_asleep(engine.pids, stage.clock(), 28.95))
        engine.hold(round(1.45 * GIB))
        yield pause
        engine.hold(ROOM - HEALTHY_FREE)
        stage.say(lines.wake_up(engine.pids, stage.clock()))
        yield pause


def rolling_restart(stage: Stage) -> Waits:
    """A deploy restarts the engine twice, as a rolling one does that is rolled back."""
    pause = 30 * MINUTE if not stage.live else 15.0
    yield from serving(stage, HEALTHY, SHAPE_G, HEALTHY_FREE, pause)
    stage.begins()
    for _ in range(2):
        stage.stop(stage.last)
        yield 8.0
        yield from serving(stage, HEALTHY, SHAPE_G, HEALTHY_FREE, pause)


def serving(stage: Stage, flags: Shape, plan: Boot, free: int, seconds: float) -> Iterator[float]:
    """Boot an engine and let it serve for a while, breathing a little."""
    yield 5.0
    stage.last = stage.engine(flags, plan)
    yield from stage.boot(stage.last, plan, free)
    yield from stage.serve(stage.last, seconds, free, breath=-48 * MIB)
