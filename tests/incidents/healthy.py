"""What must raise nothing: boots of vLLM 0.19 that captured more than was estimated, and a week of serving."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from budget_exporter.demo import boot_log
from budget_exporter.demo.host import Shape
from budget_exporter.demo.player import HEALTHY, HEALTHY_FREE
from budget_exporter.facts.boot import Phase
from budget_exporter.units import GIB, MIB
from tests.incidents import lines
from tests.incidents.lines import Boot19
from tests.incidents.stage import ROOM, Stage, Waits

__all__ = ["BOOTS", "PLANNED", "WEEK", "boot_name", "boot_of", "week"]

MINUTE = 60.0
HOUR = 3600.0
DAY = 86400.0
WEEK = "a week of serving"
BOOTS: tuple[Boot19, ...] = (
    Boot19(0.95, 15.20, 1.31, 0.24, estimate=0.15, capture=0.22, max_model_len=8192, tokens_per_gib=8192),
    Boot19(0.95, 7.61, 0.92, 0.21, estimate=0.14, capture=0.24, max_model_len=32768, tokens_per_gib=16384),
    Boot19(0.94, 15.20, 2.75, 0.26, estimate=0.33, capture=0.43, max_model_len=4096, tokens_per_gib=8192),
    Boot19(0.94, 21.90, 1.04, 0.35, estimate=0.30, capture=0.52, max_model_len=8192, tokens_per_gib=6144),
    Boot19(0.93, 3.02, 0.61, 0.19, estimate=0.41, capture=0.62, max_model_len=2048, tokens_per_gib=29127),
    Boot19(0.93, 24.40, 1.12, 0.33, estimate=0.72, capture=0.83, max_model_len=8192, tokens_per_gib=3276),
    Boot19(0.92, 15.20, 1.31, 0.24, estimate=0.61, capture=0.87, max_model_len=2048, tokens_per_gib=18724),
    Boot19(0.92, 15.20, 1.31, 0.24, estimate=0.61, capture=0.87, max_model_len=32768, tokens_per_gib=18724),
    Boot19(0.92, 19.84, 3.40, 0.27, estimate=1.01, capture=1.15, max_model_len=8192, tokens_per_gib=2849),
    Boot19(0.91, 12.40, 5.10, 0.22, estimate=0.84, capture=0.94, max_model_len=8192, tokens_per_gib=2340),
    Boot19(0.90, 15.20, 1.31, 0.24, estimate=0.84, capture=0.91, max_model_len=2048, tokens_per_gib=8192),
    Boot19(0.90, 15.20, 1.31, 0.24, estimate=0.84, capture=0.91, max_model_len=32768, tokens_per_gib=8192),
    Boot19(0.90, 5.64, 0.88, 0.21, estimate=0.62, capture=0.82, max_model_len=8192, tokens_per_gib=13107),
    Boot19(0.90, 22.71, 0.97, 0.51, estimate=1.09, capture=1.13, max_model_len=8192, tokens_per_gib=21845),
    Boot19(0.88, 23.10, 1.22, 0.48, estimate=1.51, capture=1.54, max_model_len=8192, tokens_per_gib=13107),
    Boot19(0.86, 14.90, 1.30, 0.44, estimate=1.24, capture=1.41, max_model_len=8192, tokens_per_gib=10922),
    Boot19(0.85, 8.22, 1.10, 0.43, estimate=0.61, capture=0.71, max_model_len=8192, tokens_per_gib=37449),
    Boot19(0.85, 12.06, 2.02, 0.39, estimate=1.60, capture=1.63, max_model_len=4096, tokens_per_gib=13107),
)
"""Small and large weights, 0.78 to 3.5 GiB left; on each the graphs took more than was estimated, by up to 0.26 GiB."""


@dataclass(frozen=True, slots=True)
class Plain(Shape):
    """Flags of upstream vLLM, which knows nothing of experts in host memory."""

    def argv(self) -> list[str]:
        """Return the engine's command line."""
        return [
            "/opt/vllm/bin/python3", "/opt/vllm/bin/vllm", "serve", "/models/plain-8b", "--port", "7770",
            "--tensor-parallel-size", "2", "--gpu-memory-utilization", self.utilization,
            "--max-model-len", str(self.max_model_len),
        ]  # fmt: skip

    @staticmethod
    def environ() -> dict[str, str]:
        """Return the engine's environment."""
        return {"PATH": "/usr/bin:/bin", "HIP_VISIBLE_DEVICES": "0,1", "PODMAN_SYSTEMD_UNIT": "vllm-qwen.service"}


def boot_name(number: int) -> str:
    """Return what one of BOOTS is called."""
    return f"healthy 0.19 boot {number + 1}"


def boot_of(made: Boot19) -> Callable[[Stage], Waits]:
    """Return the play of one boot of vLLM 0.19, and of a quarter of an hour in which it serves."""

    def play(stage: Stage) -> Waits:
        yield 10.0
        engine = stage.engine(Plain(str(made.utilization), made.max_model_len, 256, None), boot_log.SHAPE_G)
        left = round(made.left * GIB)
        used = {name: round(size * GIB) for name, size in (("weights", made.weights), ("pool", made.pool))}
        holdings: dict[Phase, int] = {
            "loading": used["weights"],
            "profiling": used["weights"] + round((made.activation + made.non_torch) * GIB),
            "allocating_kv": used["weights"] + used["pool"],
            "capturing": ROOM - left,
            "warming_up": ROOM - left,
            "serving": ROOM - left,
        }
        yield from stage.until_serving(engine, lines.boot_19(engine.pids, made, stage.clock()), holdings)
        yield 15 * MINUTE

    return play


SHORTER = replace(boot_log.SHAPE_G, utilization=0.95, max_model_len=131072, slots=None)
SHORTER_FLAGS = replace(HEALTHY, utilization="0.95", max_model_len=131072)
PLANNED = ((3 * DAY + 9.9 * HOUR, 3 * DAY + 11 * HOUR),)
"""When the configuration says that the engine may be down: a driver is installed."""


def week(stage: Stage) -> Waits:
    """Seven days: deploys, restarts, nights asleep, a planned stop, caches that fill after each start."""
    yield MINUTE
    begun = stage.clock()

    def serve(until: float) -> Waits:
        yield from _serving(stage, begun + until - stage.clock())

    yield from _start(stage)
    yield from serve(1 * DAY - 2 * HOUR)
    yield from _night(stage, 7 * HOUR)
    yield from serve(1 * DAY + 10 * HOUR)
    yield from _deploy(stage, shorter=True, pause=90.0)
    yield from serve(2 * DAY + 14 * HOUR)
    yield from _deploy(stage, shorter=False, pause=4 * MINUTE)
    yield from serve(3 * DAY - 2 * HOUR)
    yield from _night(stage, 6 * HOUR)
    yield from serve(3 * DAY + 10 * HOUR)
    yield from _deploy(stage, shorter=False, pause=40 * MINUTE)
    yield from serve(4 * DAY + 16 * HOUR)
    for _ in range(2):
        # Rolled out, and an hour later rolled back.
        yield from _deploy(stage, shorter=False, pause=20.0)
        yield from _serving(stage, 1 * HOUR)
    yield from serve(7 * DAY)


def _start(stage: Stage, *, shorter: bool = False) -> Waits:
    flags, plan = (SHORTER_FLAGS, SHORTER) if shorter else (HEALTHY, boot_log.SHAPE_G)
    free = round(1.9 * GIB) if shorter else HEALTHY_FREE + 120 * MIB
    stage.last = stage.engine(flags, plan)
    stage.left = free
    stage.life = (stage.clock(), free)
    yield from stage.boot(stage.last, plan, free)


def _serving(stage: Stage, seconds: float) -> Waits:
    """
    Serve for ``seconds``.

    What the allocator keeps grows in the first hours, ever slower, as longer prompts and larger batches come for the
    first time: 120 MiB in the end. The prefix cache fills a pool that was taken at the start, so no card shows it.
    """
    passed = 0.0
    born, ready = stage.life
    while passed < seconds:
        wait = min(12 * MINUTE, seconds - passed)
        yield wait
        passed += wait
        age = stage.clock() - born
        grown = 120 * MIB * age / (age + 1 * HOUR)
        stage.left = ready - int(grown // (2 * MIB)) * 2 * MIB
        stage.last.hold(ROOM - stage.left)


def _night(stage: Stage, seconds: float) -> Waits:
    engine = stage.last
    stage.say(lines.fall_asleep(engine.pids, stage.clock(), 28.95))
    engine.hold(round(1.45 * GIB))
    yield seconds
    engine.hold(ROOM - stage.left)
    stage.say(lines.wake_up(engine.pids, stage.clock()))
    yield MINUTE


def _deploy(stage: Stage, *, shorter: bool, pause: float) -> Waits:
    stage.stop(stage.last)
    yield pause
    yield from _start(stage, shorter=shorter)
