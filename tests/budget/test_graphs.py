from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from budget_exporter.budget.graphs import charge, count, mib_to_cover, per_graph_mib_to_cover
from budget_exporter.facts.engine import Shape
from budget_exporter.units import MIB, printed_bytes
from tests.budget.offload import constants

BARE = Shape()
FITTED = constants()


@pytest.mark.parametrize(
    ("shape", "reported", "known", "graphs"),
    [
        (BARE, None, True, 6),
        (Shape(speculative=True), None, True, 18),
        (BARE, 11, True, 11),
        (Shape(enforce_eager=True), None, True, None),
        (Shape(enforce_eager=True), 0, True, 0),
        (BARE, None, False, None),
        (BARE, 7, False, 7),
    ],
)
def test_how_many_graphs(shape: Shape, reported: int | None, known: bool, graphs: int | None) -> None:
    assert count(shape, reported, FITTED if known else None) == graphs


def test_an_explicit_total_beats_base_and_per_graph_and_does_not_follow_the_number() -> None:
    shape = Shape(graph_base_mib=256, graph_per_graph_mib=52, graph_estimate_mib=100)
    for graphs in (6, 18, None):
        term = charge(shape, graphs, None)
        assert term is not None
        assert (term.bytes, term.source, term.lever) == (100 * MIB, "env", "VLLM_CUDAGRAPH_MEM_ESTIMATE_MB")


def test_the_environment_sets_one_of_the_two_and_the_registry_the_other() -> None:
    only_base = charge(Shape(graph_base_mib=0), 6, FITTED)
    only_each = charge(Shape(graph_per_graph_mib=12), 6, FITTED)
    assert only_base is not None
    assert only_each is not None
    assert (only_base.bytes, only_base.source) == (6 * 52 * MIB, "env")
    assert (only_each.bytes, only_each.source) == ((256 + 72) * MIB, "env")
    assert charge(BARE, 6, FITTED) == replace(
        only_each, bytes=568 * MIB, source="registry", note="256 MiB + 6 graphs of 52 MiB"
    )


@pytest.mark.parametrize(
    ("shape", "graphs", "known"),
    [
        (BARE, 6, False),
        (BARE, None, True),
        (Shape(graph_base_mib=0), 6, False),
        (Shape(graph_per_graph_mib=12), 6, False),
    ],
)
def test_a_charge_with_an_unknown_part_is_no_charge(shape: Shape, graphs: int | None, known: bool) -> None:
    assert charge(shape, graphs, FITTED if known else None) is None


def test_what_covers_a_capture() -> None:
    assert mib_to_cover(printed_bytes("0.31")) == 318
    assert per_graph_mib_to_cover(printed_bytes("0.31"), 0, 6) == 53
    assert per_graph_mib_to_cover(printed_bytes("0.31"), 256, 6) == 11
    assert mib_to_cover(printed_bytes("-0.06")) == 0
    assert per_graph_mib_to_cover(printed_bytes("-0.06"), 0, 6) == 0


@given(
    st.integers(min_value=-(1 << 34), max_value=1 << 34),
    st.integers(min_value=0, max_value=4096),
    st.integers(min_value=1, max_value=200),
)
def test_the_smallest_charge_that_covers_covers_and_is_the_smallest(capture: int, base: int, graphs: int) -> None:
    def charged(each: int) -> int:
        term = charge(Shape(graph_base_mib=base, graph_per_graph_mib=each), graphs, None)
        assert term is not None
        return term.bytes

    each = per_graph_mib_to_cover(capture, base, graphs)
    assert charged(each) >= capture
    assert each == 0 or charged(each - 1) < capture
    assert mib_to_cover(capture) * MIB >= capture
