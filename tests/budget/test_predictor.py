from __future__ import annotations

import pytest

from budget_exporter.budget.experts import all_experts, host_room, one_expert, resident_layers
from budget_exporter.budget.predictor import predict
from budget_exporter.errors import LawError
from budget_exporter.facts.ledger import Term
from budget_exporter.units import GIB, MIB, gib_text, printed_bytes
from tests.budget.offload import SIZE


def term(name: str, text: str) -> Term:
    return Term(name, printed_bytes(text), "registry")


def test_a_shape_that_was_measured_adds_up_with_its_terms() -> None:
    """Shape G: 6.34 + 2.95 + 0.07 + 17.77 + 1.45 + 0.57 of 31.86 GiB."""
    parts = {
        "weights": term("weights", "6.34"),
        "kv_pool": Term("kv_pool", 3_166_500_000, "flag"),
        "cuda_graphs": term("cuda_graphs", "0.07"),
        "arena": term("arena", "17.77"),
        "non_torch": term("non_torch", "1.45"),
        "driver_reserve": term("driver_reserve", "0.57"),
    }
    found = predict(SIZE, **parts)
    assert found.terms == tuple(parts.values())
    assert found.missing == ()
    assert found.left == SIZE - found.total
    assert gib_text(found.total) == "29.15 GiB"
    assert 2.5 * GIB <= found.left <= 2.75 * GIB


def test_a_part_that_is_missing_is_named_and_leaves_the_rest_open() -> None:
    found = predict(
        SIZE,
        weights=term("weights", "6.34"),
        kv_pool=None,
        cuda_graphs=None,
        arena=term("arena", "17.77"),
        non_torch=None,
        driver_reserve=None,
    )
    assert found.missing == ("kv_pool", "cuda_graphs", "non_torch", "driver_reserve")
    assert found.left is None
    assert found.total == printed_bytes("6.34") + printed_bytes("17.77")


def test_a_shape_that_leaves_next_to_nothing_for_graph_capture() -> None:
    """31.73 of 31.86 GiB: it died there again and again, and booted with the headroom of 2.35 GiB left in place."""
    none = Term("none", 0, "registry")
    tight = predict(
        SIZE,
        weights=term("weights", "31.73"),
        kv_pool=none,
        cuda_graphs=none,
        arena=none,
        non_torch=none,
        driver_reserve=none,
    )
    assert tight.left is not None
    assert gib_text(tight.left) == "0.13 GiB"


def test_experts_by_their_shape() -> None:
    assert one_expert(2560, 640, 8, 2) == 2_457_600 == round(2.34375 * MIB)
    everything = all_experts(48, 512, 2560, 640)
    assert everything == 48 * 512 * one_expert(2560, 640, 4.25)
    # The public notes cut 59.766 off to 59.7; the engine counts 59.9.
    assert abs(everything - printed_bytes("59.7")) < GIB // 10
    assert printed_bytes("59.7") < everything < printed_bytes("59.9")
    # Three resident layers on each of two ranks: 1.87 GiB in a public plan block.
    assert gib_text(3 * 512 * one_expert(2560, 640, 4.25, 2)) == "1.87 GiB"


@pytest.mark.parametrize(
    ("text", "layers"), [(None, (0, 1, 2)), ("", (0, 1, 2)), ("5", (5,)), ("3,1, 3", (1, 3)), ("0,47", (0, 47))]
)
def test_resident_layers(text: str | None, layers: tuple[int, ...]) -> None:
    assert resident_layers(text) == layers


@pytest.mark.parametrize("text", ["3-5", "0,,1", "-1", "1.5", "12345", "all"])
def test_what_is_no_list_of_layers_is_refused(text: str) -> None:
    with pytest.raises(LawError, match=r"^--expert-resident-layers must "):
        resident_layers(text)


def test_host_room_is_90_percent_less_7_gib_a_rank_and_5() -> None:
    assert host_room(200 * GIB, 2) == (180 - 14 - 5) * GIB
    assert host_room(188 * GIB, 4) == 188 * GIB * 90 // 100 - 33 * GIB
    assert host_room(8 * GIB, 2) < 0
