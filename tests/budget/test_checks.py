from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from budget_exporter import budget
from budget_exporter.budget.checks import LARGEST_COUNT, LARGEST_SIZE, check, flag_gib, number, switch
from budget_exporter.errors import LawError
from budget_exporter.facts.engine import Shape
from budget_exporter.facts.ledger import Constants, RankInput
from budget_exporter.units import GIB, MIB

NAN = float("nan")
CONSTANTS = Constants(architecture="a", release="*", tensor_parallel_size=2, source="s")
COUNTS = [
    "max_model_len",
    "max_num_seqs",
    "max_num_batched_tokens",
    "block_size",
    "num_gpu_blocks_override",
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "data_parallel_size",
]
MEBIBYTES = ["graph_base_mib", "graph_per_graph_mib", "graph_estimate_mib"]


def shaped(name: str, value: object) -> Shape:
    return replace(Shape(), **{name: value})  # type: ignore[arg-type]  # a field of Shape, on purpose of any value


def refused(shape: Shape, ranks: list[RankInput] | None = None, constants: Constants | None = None) -> str:
    with pytest.raises(LawError) as error:
        check(shape, ranks or [], constants)
    return str(error.value)


@pytest.mark.parametrize("name", COUNTS)
def test_a_count_is_above_0_and_not_absurd(name: str) -> None:
    assert refused(shaped(name, 0)) == f"{name} must be above 0, not 0"
    assert refused(shaped(name, -3)) == f"{name} must be above 0, not -3"
    assert refused(shaped(name, LARGEST_COUNT + 1)).startswith(f"{name} must be at most ")
    assert refused(shaped(name, NAN)) == f"{name} must be a number, not nan"
    check(shaped(name, 1), [])
    check(shaped(name, LARGEST_COUNT), [])


@pytest.mark.parametrize(
    ("name", "largest"), [("kv_cache_memory_bytes", LARGEST_SIZE), *((name, LARGEST_SIZE // MIB) for name in MEBIBYTES)]
)
def test_a_size_is_not_negative_and_not_absurd(name: str, largest: int) -> None:
    assert refused(shaped(name, -1)) == f"{name} must not be negative, not -1"
    assert refused(shaped(name, largest + 1)).startswith(f"{name} must be at most ")
    assert refused(shaped(name, NAN)) == f"{name} must be a number, not nan"
    check(shaped(name, 0), [])
    check(shaped(name, largest), [])


@pytest.mark.parametrize("value", [0.0, -0.5, 1.001, 2.0, NAN, float("inf"), float("-inf")])
def test_a_utilization_is_above_0_and_at_most_1(value: float) -> None:
    assert refused(Shape(utilization=value)).startswith("utilization must ")


def test_a_rank_s_figures_are_named_with_it() -> None:
    good = RankInput("d1.0", 32 * GIB, 31 * GIB)
    check(Shape(), [good, replace(good, free_at_init=None), replace(good, free_at_init=0)])
    assert refused(Shape(), [good, replace(good, size=0)]) == "rank d1.0: size must be above 0, not 0"
    assert refused(Shape(), [replace(good, size=10**30)]).startswith("rank d1.0: size must be at most ")
    assert refused(Shape(), [replace(good, free_at_init=-1)]) == "rank d1.0: free_at_init must not be negative, not -1"
    assert "free_at_init_rounding" in refused(Shape(), [replace(good, free_at_init_rounding=-1)])


def test_constants_are_checked_where_a_law_takes_them() -> None:
    check(Shape(), [], CONSTANTS)
    assert refused(Shape(), [], replace(CONSTANTS, kv_reserve_factor=NAN)) == (
        "constants: kv_reserve_factor must be a number, not nan"
    )
    assert refused(Shape(), [], replace(CONSTANTS, expert_bytes=-1)) == (
        "constants: expert_bytes must not be negative, not -1"
    )
    with pytest.raises(LawError, match=r"^constants: non_expert must"):
        budget.compute(Shape(expert_offload=True), [], None, replace(CONSTANTS, non_expert=10**30))


@given(st.integers() | st.floats())
def test_what_lies_within_its_range_is_let_through_and_nothing_else(value: float) -> None:
    if 0 < value <= 100:
        number("field", value, least=0, above=0, most=100)
    else:
        with pytest.raises(LawError, match=r"^field must "):
            number("field", value, least=0, above=0, most=100)


@pytest.mark.parametrize(
    ("text", "on"), [("1", True), ("0", False), (" 1 ", True), ("2", True), ("", None), (" ", None)]
)
def test_a_switch_is_read_as_vllm_reads_it(text: str, on: bool | None) -> None:
    assert switch({"NAME": text}, "NAME") is on
    assert switch({}, "NAME") is None


@pytest.mark.parametrize("text", ["yes", "1.0", "0x1", "true"])
def test_a_switch_that_is_no_number_is_named(text: str) -> None:
    with pytest.raises(LawError, match=f"^NAME must be a whole number, not {text}$"):
        switch({"NAME": text}, "NAME")


@pytest.mark.parametrize(("text", "size"), [("4", 4 * GIB), ("0.5", GIB // 2), ("0", 0), ("", None), ("None", None)])
def test_a_flag_in_gib(text: str, size: int | None) -> None:
    assert flag_gib({"flag": text}, "flag") == size
    assert flag_gib({}, "flag") is None


@pytest.mark.parametrize("text", ["-1", "nan", "inf", "1e30", "4GiB"])
def test_a_flag_in_gib_that_cannot_be_is_named(text: str) -> None:
    with pytest.raises(LawError, match=r"^--flag must "):
        flag_gib({"flag": text}, "flag")
