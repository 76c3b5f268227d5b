"""What is remembered of an engine: its boots, its deaths, and how its use went while it served."""

from __future__ import annotations

from dataclasses import replace

import pytest

from budget_exporter.config import Config
from budget_exporter.facts.boot import BootReport, Failure, Phase
from budget_exporter.facts.device import DeviceIdentity, HighWater, MemorySample, ProcessMemory
from budget_exporter.facts.endpoint import EndpointFacts, EndpointState
from budget_exporter.facts.engine import EngineSighting, ProcessKey, Shape
from budget_exporter.facts.ownership import DeviceOwnership, RankMemory
from budget_exporter.facts.snapshot import DeviceState, FreeAtInit
from budget_exporter.sidecar.deaths import KEPT, Deaths
from budget_exporter.sidecar.fleet import Engine, Fleet, Running
from budget_exporter.sidecar.owners import Held
from budget_exporter.sidecar.past import BOOTS_KEPT, LASTED, SPAN, Trends, mark, past_of
from budget_exporter.units import GIB, MIB
from budget_exporter.verdicts.creep import FEWEST

CARD = "0000:03:00.0"
NOBODY = Held({}, {})


def engine(pid: int = 10, started: float = 0.0) -> Engine:
    sighting = EngineSighting("procfs", ProcessKey(pid, pid), started, ("vllm", "serve", "m"), {})
    running = Running(sighting, Shape(model="m", given={"max-model-len": "512"}))
    made = Engine("qwen", None)
    made.running, made.last, made.main, made.started_at = running, running, sighting.main, started
    return made


def card(used: int, *, listed: bool = False) -> dict[str, DeviceState]:
    identity = DeviceIdentity(CARD, "amd", "card", "amdgpu", "amdgpu_vram")
    state = DeviceState(identity, MemorySample(1.0, 32 * GIB, used), HighWater(CARD, None, None, used, 1.0, 1.0, used))
    return {"0": replace(state, ownership=DeviceOwnership(CARD) if listed else None)}


def test_a_leak_of_a_rank_shows_though_a_neighbour_takes_and_gives() -> None:
    trends, it = Trends(), engine()
    it.endpoint = EndpointState("ok", facts=EndpointFacts(replicas=1, running=3))
    for second in range(0, int(SPAN * (FEWEST + 1)), 10):
        own = Held({"0": RankMemory(28 * GIB + 200 * MIB * second // 3600)}, {})
        trends.note(it, own, card(29 * GIB + (second % 7) * GIB), "serving", float(second))
    (found,) = trends.of(it, card(0), SPAN * (FEWEST + 1)).values()
    assert found is not None
    assert found.slope * 3600 == pytest.approx(200 * MIB, rel=1e-3)
    assert found.load_rises is False


@pytest.mark.parametrize(("platform", "sampler"), [("host", "node_meminfo"), ("nvidia", "meminfo")])
def test_what_all_programs_of_a_host_take_is_no_engine_s_leak(platform: str, sampler: str) -> None:
    trends, it = Trends(), engine()
    (state,) = card(0).values()
    host = replace(state.identity, platform=platform, sampler=sampler)
    on = {"0": replace(state, identity=host)}
    for second in range(0, int(SPAN * (FEWEST + 1)), 10):
        on["0"] = replace(on["0"], memory=MemorySample(1.0, 64 * GIB, second * MIB))
        trends.note(it, NOBODY, on, "serving", float(second))
    assert trends.of(it, on, SPAN * (FEWEST + 1)) == {}


def test_a_boot_is_no_trend_and_neither_is_what_was_not_watched() -> None:
    trends, it = Trends(), engine()
    for second in range(0, int(SPAN * (FEWEST + 1)), 10):
        trends.note(it, NOBODY, card(second * MIB), "loading", float(second))
    assert trends.of(it, card(0), SPAN * (FEWEST + 1)) == {}
    for window in range(FEWEST + 1):
        trends.note(it, NOBODY, card(window * GIB), "serving", window * 3 * SPAN)
    assert trends.of(it, card(0), FEWEST * 3 * SPAN) == {}


def test_another_life_of_the_engine_begins_anew_and_the_old_one_is_forgotten() -> None:
    trends, it = Trends(), engine()
    for window in range(FEWEST + 1):
        trends.note(it, NOBODY, card(28 * GIB), "serving", window * SPAN)
    now = FEWEST * SPAN
    assert trends.of(it, card(0), now) == {"0": None}
    trends.forget([it])
    assert trends.of(it, card(0), now) == {"0": None}
    assert trends.of(engine(11), card(0), now) == {}
    trends.forget([engine(11)])
    assert trends.of(it, card(0), now) == {}


def test_a_trend_outlives_a_look_that_failed_and_not_the_end_of_its_engine() -> None:
    trends, it = Trends(), engine()
    for window in range(FEWEST + 1):
        trends.note(it, NOBODY, card(28 * GIB), "serving", window * SPAN)
    it.running, it.looked = None, False
    trends.forget([it])
    assert trends.of(it, card(0), FEWEST * SPAN) == {"0": None}
    it.looked = True
    trends.forget([it])
    assert trends.of(it, card(0), FEWEST * SPAN) == {}


def test_a_trend_that_is_no_longer_watched_is_none_of_now() -> None:
    """An engine that sleeps, or whose processes nobody lists any more, is not said to leak for what it once did."""
    trends, it = Trends(), engine()
    for window in range(FEWEST + 1):
        trends.note(it, NOBODY, card((20 + window) * GIB), "serving", window * SPAN)
    last = (FEWEST - 0.5) * SPAN
    (found,) = trends.of(it, card(0), last + 2.5 * SPAN).values()
    assert found is not None
    trends.note(it, NOBODY, card(1), "sleeping", last + 3.5 * SPAN)
    assert trends.of(it, card(0), last + 3.5 * SPAN) == {}


def test_a_boot_is_remembered_once_it_serves_and_only_the_newest_few() -> None:
    it, free = engine(), {"0": FreeAtInit(31 * GIB, 0, "log")}
    shape = Shape(model="m")
    mark(it, BootReport(kv_tokens=5), shape, free, "loading")
    assert it.boots == []
    for boot in range(BOOTS_KEPT + 2):
        it.started_at = float(boot)
        mark(it, BootReport(), shape, {}, "serving")
        mark(it, BootReport(kv_tokens=boot), shape, free, "serving")
    assert [(b.started_at, b.kv_tokens, dict(b.free_at_init)) for b in it.boots] == [
        (float(boot), boot, {"0": 31 * GIB}) for boot in range(2, BOOTS_KEPT + 2)
    ]
    assert len({b.shape for b in it.boots}) == 1
    it.started_at = 99.0
    mark(it, BootReport(kv_tokens=1, version="0.19.0"), shape, free, "serving")
    mark_shapes = [b.shape for b in it.boots]
    assert mark_shapes[-1] != mark_shapes[-2]


def test_boots_and_deaths_outlive_the_exporter() -> None:
    fleet = Fleet(Config(), {})
    it = engine()
    mark(it, BootReport(kv_tokens=5), Shape(model="m"), {}, "serving")
    it.deaths.tell(Failure(7.0, "serving", "runtime_oom"), present=True)
    fleet.engines["qwen"] = it
    again = Fleet(Config(), fleet.memories({})).engines["qwen"]
    assert again.boots == it.boots
    assert again.deaths.lately == it.deaths.lately != []


def test_only_the_newest_deaths_are_kept() -> None:
    deaths = Deaths()
    for at in range(KEPT + 5):
        deaths.tell(Failure(float(at), "loading", "weights_oom"), present=False)
    assert [death.at for death in deaths.lately] == [float(at) for at in range(5, KEPT + 5)]


def test_what_a_dead_engine_left_behind_is_told_only_where_processes_are_listed() -> None:
    it, trends = engine(), Trends()
    serving: tuple[Phase, float] = ("serving", 0.0)
    assert past_of(it, trends, NOBODY, card(1), serving, 1.0).leftover is None
    assert past_of(it, trends, NOBODY, card(1, listed=True), serving, 1.0).leftover is False
    left = Held({}, {}, (ProcessMemory(9, GIB),))
    assert past_of(it, trends, left, card(1, listed=True), serving, 1.0).leftover is True


def served(it: Engine, at: float, seconds: float = 0.0, shape: Shape | None = None) -> None:
    """Let ``it`` start at a time and serve for some seconds."""
    assert it.last is not None
    it.started_at, it.report = at, BootReport(version="0.19.0")
    for now in (at + 60, at + 60 + seconds):
        it.last_seen = now
        mark(it, it.report, shape or it.last.shape, {}, "serving")


def first_request(it: Engine) -> Failure | None:
    return past_of(it, Trends(), NOBODY, {}, ("serving", it.started_at), it.last_seen or 0.0).first_request


def test_a_shape_is_known_to_have_died_of_its_first_request_until_it_has_lasted() -> None:
    it = engine()
    assert first_request(it) is None
    served(it, 0.0)
    died = Failure(120.0, "serving", "first_request_oom", 1)
    it.deaths.tell(died, present=True)
    served(it, 200.0)
    assert first_request(it) == died
    it.deaths.tell(Failure(300.0, "loading", "weights_oom"), present=False)
    served(it, 400.0, LASTED - 1)
    assert first_request(it) == died
    served(it, 400.0, LASTED)
    assert first_request(it) is None
    # Though a later boot of that shape has not lasted yet.
    served(it, 9000.0)
    assert first_request(it) is None


def test_what_another_shape_died_of_is_no_word_on_this_one() -> None:
    it = engine()
    served(it, 0.0, shape=Shape(model="m", given={"max-model-len": "1024"}))
    it.deaths.tell(Failure(120.0, "serving", "first_request_oom"), present=True)
    it.deaths.tell(Failure(-5.0, "serving", "first_request_oom"), present=False)
    served(it, 200.0)
    assert first_request(it) is None
