from __future__ import annotations

from hypothesis import given, strategies as st

from budget_exporter.budget.ceilings import longest_window
from budget_exporter.budget.kv_cache import concurrency, measured_price, needed, tokens
from budget_exporter.budget.ladder import next_rung

BYTES = st.integers(min_value=0, max_value=1 << 40)
PRICES = st.integers(min_value=1, max_value=1 << 20)
LENGTHS = st.integers(min_value=1, max_value=1 << 20)


def test_a_pool_that_is_not_there_holds_nothing() -> None:
    assert tokens(-1, 9190) == 0
    assert tokens(9189, 9190) == 0
    assert tokens(9190, 9190) == 1


def test_a_need_is_a_whole_number_of_bytes() -> None:
    assert needed(7891.8, 1) == 7892
    assert needed(2.0, 3, 4) == 24


@given(BYTES, PRICES)
def test_tokens_fit_the_pool_and_one_more_does_not(pool: int, price: int) -> None:
    held = tokens(pool, price)
    assert held * price <= pool < (held + 1) * price


@given(LENGTHS, PRICES)
def test_the_price_measured_from_a_pool_is_the_price_it_was_made_with(held: int, price: int) -> None:
    assert measured_price(held * price, held) == price


@given(BYTES, st.integers(min_value=1, max_value=64), PRICES)
def test_the_longest_window_fits_and_a_longer_one_does_not(free: int, windows: int, price: int) -> None:
    length = longest_window(free, windows, price)
    assert needed(price, length, windows) <= free < needed(price, length + 1, windows)


@given(LENGTHS, LENGTHS)
def test_concurrency_times_length_is_the_pool(held: int, length: int) -> None:
    assert round(concurrency(held, length) * length) == held


def test_the_ladder_ends_where_no_rung_is_left() -> None:
    assert next_rung(16_384, "oom") is None
    assert next_rung(16_385, "oom") == 1
    assert next_rung(4096, "pass", known_oom=8192) is None
    assert next_rung(4096, "pass", known_oom=8193) == 8192


def test_an_unknown_outcome_is_no_failure() -> None:
    assert next_rung(200_704, "unknown") == 200_704
    assert next_rung(200_704, "unknown", known_oom=204_800) == 200_704
