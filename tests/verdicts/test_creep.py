"""Creep: a steady leak is seen and timed, steps and noise are not, and rising load is told apart."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, strategies as st

from budget_exporter.units import GIB, MIB
from budget_exporter.verdicts.creep import FEWEST, LEAST_RISE, Window, creep

FIVE_MINUTES = 300.0
BASE = 28 * GIB


def windows(*used: int, load: list[float] | None = None) -> list[Window]:
    loads: list[float] | list[None] = load or [None] * len(used)
    return [Window(i * FIVE_MINUTES, u, each) for i, (u, each) in enumerate(zip(used, loads, strict=True))]


def test_a_leak_of_200_mib_an_hour_is_timed() -> None:
    found = creep(windows(*(BASE + 200 * MIB * i // 12 for i in range(13))))
    assert found is not None
    assert found.slope * 3600 == pytest.approx(200 * MIB, rel=1e-6)
    assert found.seconds_to(400 * MIB) == pytest.approx(7200, rel=1e-6)
    assert found.seconds_to(-1) == 0
    assert found.load_rises is None


def test_a_leak_shows_through_noise_and_a_few_spikes() -> None:
    noise = random.Random(7)  # noqa: S311 - noise, no secret
    used = [BASE + 200 * MIB * i // 12 + noise.randrange(20 * MIB) for i in range(24)]
    used[5] += 3 * GIB
    used[15] += 3 * GIB
    found = creep(windows(*used))
    assert found is not None
    assert found.slope * 3600 == pytest.approx(200 * MIB, rel=0.1)


@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize("count", [FEWEST, 12, 13, 36, 72])
def test_a_few_steps_are_no_trend(steps: int, count: int) -> None:
    for first in range(1, count - steps):
        at = {first + k * max((count - first) // steps, 1) for k in range(steps)}
        level, used = 0, []
        for index in range(count):
            level += 512 * MIB * (index in at)
            used.append(BASE + level)
        assert creep(windows(*used)) is None, (steps, count, first)


def test_no_trend_in_too_few_windows_in_noise_or_in_a_small_gain() -> None:
    assert creep(windows(*(BASE + i * GIB for i in range(FEWEST - 1)))) is None
    assert creep(windows(*(BASE + (i % 3) * 100 * MIB for i in range(48)))) is None
    assert creep(windows(*(BASE + i * LEAST_RISE // 100 for i in range(48)))) is None
    assert creep(windows(*(BASE - i * 100 * MIB for i in range(48)))) is None
    assert creep([Window(1.0, BASE + i * GIB) for i in range(FEWEST)]) is None
    # It rises, but falls back to where it began: the last quarter is below the third.
    assert creep(windows(*(BASE + i * 100 * MIB for i in range(20)), *(BASE + 900 * MIB for _ in range(5)))) is None


@pytest.mark.parametrize(("hours", "like_a_leak"), [(0.25, 0.0), (1.0, 0.0), (4.0, 8.0)])
@pytest.mark.parametrize("total", [120, 400])
def test_what_fills_after_a_start_ever_more_slowly_is_no_trend(total: int, hours: float, like_a_leak: float) -> None:
    """Half of it is there after ``hours``; what takes days looks as a leak does for the first eight hours."""
    grown = [total * t / (t + hours) for t in (i / 12 for i in range(180))]
    for count in range(FEWEST, 180):
        found = creep(windows(*(BASE + int(each) * MIB for each in grown[max(0, count - 72) : count])))
        assert found is None or count / 12 < like_a_leak, count


def test_a_leak_that_begins_late_or_gets_worse_is_a_trend() -> None:
    late = [BASE + max(0, i - 36) * 17 * MIB for i in range(72)]
    found = creep(windows(*late))
    assert found is not None
    assert found.slope * 3600 == pytest.approx(12 * 17 * MIB, rel=1e-6)
    assert creep(windows(*(BASE + i * i * MIB for i in range(24)))) is not None


def test_a_leak_too_slow_for_the_newest_windows_shows_in_all_of_them() -> None:
    found = creep(windows(*(BASE + i * 3 * MIB // 2 for i in range(72))))
    assert found is not None
    assert found.slope * 3600 == pytest.approx(18 * MIB, rel=0.01)


@pytest.mark.parametrize(
    ("load", "rises"),
    [
        ([4.0] * 12, False),
        ([float(i) for i in range(12)], True),
        ([0.0] * 6 + [1.0] * 6, False),
        ([2.0, 8.0] * 6, False),
    ],
)
def test_rising_load_is_told_apart(load: list[float], rises: bool) -> None:
    found = creep(windows(*(BASE + i * 50 * MIB for i in range(12)), load=load))
    assert found is not None
    assert found.load_rises is rises


def test_load_that_is_not_known_throughout_is_not_known() -> None:
    used = [Window(i * FIVE_MINUTES, BASE + i * 50 * MIB, None if i == 3 else 1.0) for i in range(12)]
    found = creep(used)
    assert found is not None
    assert found.load_rises is None


@given(st.lists(st.integers(0, 64 * GIB), max_size=30))
def test_a_trend_always_rises(used: list[int]) -> None:
    found = creep(windows(*used))
    assert found is None or (found.slope > 0 and found.rise >= LEAST_RISE)
