"""Findings of an engine's past: leak, crash loop, memory left behind, and the time left until the floor."""

from __future__ import annotations

import pytest

from budget_exporter.facts.boot import Cause, Failure, Phase, Printed
from budget_exporter.facts.history import BootMark, Creep, Loop, Past
from budget_exporter.facts.verdict import Floors, Measured, Policy
from budget_exporter.units import GIB, MIB
from budget_exporter.verdicts import judge
from budget_exporter.verdicts.crash_loop import crash_loop, loop, loop_said
from budget_exporter.verdicts.past import of_past

LEAK = Creep(200 * MIB / 3600, 200 * MIB, load_rises=None)


def test_without_a_past_nothing_of_it_can_be_said() -> None:
    assert of_past(None) == {}
    assert of_past(Past()) == {}


@pytest.mark.parametrize(
    ("trends", "leaks"),
    [
        ({"0": None}, False),
        ({"0": None, "1": LEAK}, True),
        ({"0": Creep(1.0, 64 * MIB, load_rises=True)}, False),
        ({"0": Creep(1.0, 64 * MIB, load_rises=False)}, True),
    ],
)
def test_use_that_creeps_while_load_does_not_is_a_leak(trends: dict[str, Creep | None], leaks: bool) -> None:
    assert of_past(Past(trends=trends)) == {"leak": leaks}


def test_all_of_a_past() -> None:
    boots = tuple(BootMark(float(i), "a", 1000 - 100 * i, {"0": (9 - i) * GIB}) for i in range(3))
    past = Past(boots=boots, crash_loop=False, trends={"0": None}, leftover=True)
    assert of_past(past) == {
        "leak": False,
        "crash_loop": False,
        "kv_changed_since_last_boot": True,
        "free_at_init_falling": True,
        "zombie_memory": True,
    }


@pytest.mark.parametrize(
    ("deaths", "phase", "since", "loops"),
    [
        ([], "serving", 0.0, False),
        ([9000.0, 9500.0], "loading", 9990.0, False),
        ([8200.0, 9000.0, 9500.0], "loading", 9990.0, True),
        ([8199.0, 9000.0, 9500.0], "loading", 9990.0, False),
        ([8200.0, 9000.0, 9300.0], "serving", 9401.0, True),
        ([8200.0, 9000.0, 9300.0], "serving", 9400.0, False),
        ([8200.0, 9000.0, 9300.0], "serving", None, True),
        ([8200.0, 9000.0, 9300.0], "stopped", 9300.0, True),
    ],
)
def test_a_crash_loop_is_three_deaths_in_half_an_hour_until_it_works(
    deaths: list[float], phase: Phase, since: float | None, loops: bool
) -> None:
    assert crash_loop(deaths, phase, since, 10_000.0) is loops


def test_the_time_until_the_floor_is_of_what_is_left_above_it() -> None:
    measured = {"0": Measured(32 * GIB, 31 * GIB, 31 * GIB), "1": Measured(32 * GIB, 32 * GIB, 32 * GIB)}
    verdict = judge(
        ledger=None,
        report=None,
        shape=None,
        phase="serving",
        measured=measured,
        policy=Policy(Floors(critical=256 * MIB, warning=768 * MIB)),
        past=Past(trends={"0": LEAK, "1": LEAK, "2": LEAK}),
    )
    reached = {rank: of.floor_reached for rank, of in verdict.ranks.items()}
    assert reached == {"0": pytest.approx(768 / 200 * 3600), "1": 0.0}
    assert verdict.findings["leak"] is True


def deaths(*told: tuple[float, Phase, Cause]) -> list[Failure]:
    return [Failure(at, phase, cause) for at, phase, cause in told]


CAPTURE: tuple[Phase, Cause] = ("capturing", "graph_capture_oom")


@pytest.mark.parametrize(
    ("died", "boots", "found"),
    [
        (deaths((9000.0, *CAPTURE), (9500.0, *CAPTURE)), [], None),
        (
            deaths((100.0, "loading", "weights_oom"), *((at, *CAPTURE) for at in (8500.0, 9000.0, 9500.0))),
            [BootMark(50.0, "a")],
            Loop(3, "capturing", 3, "graph_capture_oom", served=False),
        ),
        (
            deaths((8500.0, "serving", "runtime_oom"), (9000.0, "serving", "unknown"), (9500.0, *CAPTURE)),
            [BootMark(8600.0, "a")],
            Loop(3, "serving", 2, "unknown", served=True),
        ),
        (
            deaths((8500.0, *CAPTURE), (9000.0, "loading", "weights_oom"), (9500.0, "profiling", "profile_oom")),
            [],
            Loop(3, "profiling", 1, "profile_oom", served=False),
        ),
    ],
)
def test_a_loop_has_the_phase_it_dies_in_most(died: list[Failure], boots: list[BootMark], found: Loop | None) -> None:
    assert loop(died, [], boots, "loading", 9990.0, 10_000.0) == found


def test_restarts_of_lives_that_nobody_saw_are_a_loop_too() -> None:
    restarts = [100.0, 9000.0, 9400.0, 9800.0]
    found = loop([], restarts, [], "unknown", None, 10_000.0)
    assert found == Loop(3, "unknown", 0, "unknown", served=False)
    assert loop_said(found) == "it died 3 times in the last 30 min; it has not come to serve in between"
    one = loop(deaths((9001.0, *CAPTURE)), restarts, [], "unknown", None, 10_000.0)
    assert one == Loop(3, "capturing", 1, "graph_capture_oom", served=False)
    assert loop([], restarts[1:3], [], "unknown", None, 10_000.0) is None


def test_a_loop_is_told_in_a_sentence() -> None:
    assert loop_said(Loop(4, "profiling", 3, "profile_oom", served=True)) == (
        "it died 4 times in the last 30 min, 3 of them while profiling (profile_oom); it comes to serve in between"
    )
    past = Past(crash_loop=True, loop=Loop(3, "capturing", 3, "graph_capture_oom", served=False))
    verdict = judge(
        ledger=None, report=None, shape=None, phase="loading", measured={}, policy=Policy(Floors(1, 2)), past=past
    )
    assert verdict.said["crash_loop"] == (
        "it died 3 times in the last 30 min, all while capturing (graph_capture_oom); "
        "it has not come to serve in between"
    )
    assert verdict.sentences == ()


@pytest.mark.parametrize(
    ("tried", "free", "sizes"),
    [
        (Printed(50 * MIB), Printed(0), ": tried 0.05 GiB, 0.00 GiB were free"),
        (None, Printed(GIB), ": 1.00 GiB were free"),
        (None, None, ""),
    ],
)
def test_a_shape_that_died_of_its_first_request_is_on_a_knife_edge(
    tried: Printed | None, free: Printed | None, sizes: str
) -> None:
    past = Past(first_request=Failure(1.0, "serving", "first_request_oom", 0, tried, free))
    verdict = judge(
        ledger=None, report=None, shape=None, phase="serving", measured={}, policy=Policy(Floors(1, 2)), past=past
    )
    assert verdict.findings["knife_edge"] is True
    assert verdict.knife_edge == {}
    assert verdict.sentences == (f"with these flags it booted and died of its first request{sizes}",)
