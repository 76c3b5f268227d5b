from __future__ import annotations

import math

import pytest
from hypothesis import given, strategies as st

from budget_exporter.budget.limits import passes_init_check, requested_bytes, utilization_limit

SIZE = 34_208_743_424
MIB = 1 << 20
SIZES = st.integers(min_value=1, max_value=300_000).map(lambda mib: mib * MIB)
UTILIZATIONS = st.floats(min_value=0.001, max_value=1.0)


def test_a_request_is_rounded_up_from_0_14_and_was_cut_before() -> None:
    assert SIZE * 0.982 == 33_592_986_042.368
    assert requested_bytes(SIZE, 0.982) == 33_592_986_043
    assert requested_bytes(SIZE, 0.982, round_up=False) == 33_592_986_042
    assert requested_bytes(SIZE, 1.0) == requested_bytes(SIZE, 1.0, round_up=False) == SIZE


@pytest.mark.parametrize(
    ("free", "rounding", "passes"),
    [
        (100, 0, True),
        (99, 0, False),
        (None, 0, None),
        (None, 5, None),
        (100, 5, None),
        (104, 5, None),
        (105, 5, True),
        (95, 5, None),
        (94, 5, False),
    ],
)
def test_the_check_at_init(free: int | None, rounding: int, passes: bool | None) -> None:
    assert passes_init_check(100, free, rounding) is passes


def test_the_flag_takes_at_most_1() -> None:
    limit = utilization_limit(SIZE, 2 * SIZE)
    assert (limit.low, limit.ratio, limit.high) == (1.0, 1.0, 1.0)


def test_a_limit_may_be_nothing() -> None:
    assert utilization_limit(SIZE, 0).ratio == 0.0
    assert utilization_limit(SIZE, 10, rounding=20).low < 0


def test_a_limit_whose_product_rounds_up_beyond_free_is_the_step_below() -> None:
    size, free = 3000 * MIB, 51 * MIB
    assert 1000 * free == 17 * size
    assert math.ceil(size * 0.017) == free + 1
    assert utilization_limit(size, free).ratio == 0.016
    assert utilization_limit(size, free + 1).ratio == 0.017


@given(SIZES, st.integers(min_value=0, max_value=400_000 * MIB), st.integers(min_value=0, max_value=8 * MIB))
def test_what_is_not_above_the_low_limit_passes_and_a_step_above_the_high_one_fails(
    size: int, free: int, rounding: int
) -> None:
    limit = utilization_limit(size, free, rounding)
    assert limit.low <= limit.ratio <= limit.high
    if limit.low > 0:
        assert passes_init_check(requested_bytes(size, limit.low), free, rounding) is True
    if 0 <= limit.high < 1:
        above = requested_bytes(size, (round(limit.high * 1000) + 2) / 1000)
        assert passes_init_check(above, free, rounding) is False


@given(SIZES, UTILIZATIONS, UTILIZATIONS)
def test_a_larger_utilization_never_asks_for_less(size: int, one: float, other: float) -> None:
    low, high = sorted((one, other))
    assert requested_bytes(size, low) <= requested_bytes(size, high)
    assert 0 <= requested_bytes(size, low) - requested_bytes(size, low, round_up=False) <= 1
