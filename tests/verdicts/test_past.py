"""Findings of an engine's past: leak, crash loop, memory left behind, and the time left until the floor."""

from __future__ import annotations

import pytest

from budget_exporter.facts.boot import Phase
from budget_exporter.facts.history import BootMark, Creep, Past
from budget_exporter.facts.verdict import Floors, Measured, Policy
from budget_exporter.units import GIB, MIB
from budget_exporter.verdicts import judge
from budget_exporter.verdicts.crash_loop import crash_loop
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
