"""Boots beside each other: another pool under the same flags, and memory that shrinks from boot to boot."""

from __future__ import annotations

import pytest

from budget_exporter.facts.history import BootMark
from budget_exporter.units import MIB
from budget_exporter.verdicts.boots import free_falling, kv_changed


def pools(*boots: tuple[str, int | None]) -> list[BootMark]:
    return [BootMark(float(at), shape, tokens) for at, (shape, tokens) in enumerate(boots)]


def free(*boots: dict[str, int]) -> list[BootMark]:
    return [BootMark(float(at), "f", free_at_init=each) for at, each in enumerate(boots)]


@pytest.mark.parametrize(
    ("boots", "changed"),
    [
        ([], None),
        ([("a", 1000)], None),
        ([("b", 2000), ("a", 1000)], None),
        ([("a", 1000), ("a", None)], None),
        ([("a", None), ("a", 1000)], None),
        ([("a", 1000), ("a", 1010)], False),
        ([("a", 1000), ("a", 1011)], True),
        ([("a", 1000), ("a", 989)], True),
        ([("a", 1000), ("b", 2000), ("a", 1000)], False),
        ([("a", 1000), ("a", 500), ("a", 500)], False),
    ],
)
def test_another_pool_under_the_same_flags(boots: list[tuple[str, int | None]], changed: bool | None) -> None:
    assert kv_changed(pools(*boots)) is changed


@pytest.mark.parametrize(
    ("boots", "falling"),
    [
        ([], None),
        ([{}], None),
        ([{"0": 900 * MIB}, {"0": 800 * MIB}], None),
        ([{"0": 900 * MIB}, {"0": 800 * MIB}, {"0": 700 * MIB}], True),
        ([{"0": 900 * MIB}, {"0": 880 * MIB}, {"0": 836 * MIB}], True),
        ([{"0": 900 * MIB}, {"0": 880 * MIB}, {"0": 837 * MIB}], False),
        ([{"0": 900 * MIB}, {"0": 700 * MIB}, {"0": 700 * MIB}], False),
        ([{"0": 900 * MIB}, {}, {"0": 800 * MIB}, {"0": 700 * MIB}], True),
        ([{"0": 900 * MIB}, {"0": 800 * MIB}, {"0": 700 * MIB}, {"0": 900 * MIB}], False),
        ([{"0": 1, "1": 900 * MIB}, {"0": 1, "1": 800 * MIB}, {"0": 1, "1": 700 * MIB}], True),
    ],
)
def test_memory_that_shrinks_from_boot_to_boot(boots: list[dict[str, int]], falling: bool | None) -> None:
    assert free_falling(free(*boots)) is falling
