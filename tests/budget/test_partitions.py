"""A card in parts: what an engine on one partition of an MI300 was given, and what the whole card tells of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from budget_exporter import budget
from budget_exporter.budget.terms import partition
from budget_exporter.facts.boot import BootReport, Printed, RankFacts
from budget_exporter.facts.engine import Shape
from budget_exporter.facts.ledger import RankInput
from budget_exporter.facts.verdict import Measured
from budget_exporter.units import GIB
from budget_exporter.verdicts.margin import estimator_gap
from tests.budget import offload
from tests.budget.offload import gib

CARD = RankInput("0", 206_141_652_992, 200 * GIB, platform="amd")
"""An MI300X: 191.98 GiB."""


def seen(text: str) -> RankFacts:
    return RankFacts(size_at_init=gib(text), free_at_init=gib("23.50"))


@pytest.mark.parametrize(("text", "parts"), [("95.99", 2), ("48.00", 4), ("24.00", 8)])
def test_a_half_a_quarter_and_an_eighth_are_partitions(text: str, parts: int) -> None:
    rank, notes = partition(CARD, seen(text))
    assert rank == replace(CARD, size=CARD.size // parts, free_at_init=None)
    (note,) = notes
    assert f"one of {parts} partitions of a card of 191.98 GiB" in note


@pytest.mark.parametrize(
    ("rank", "facts"),
    [
        (CARD, RankFacts()),
        (CARD, seen("191.98")),
        (CARD, seen("64.00")),
        (CARD, seen("24.02")),
        (replace(CARD, platform="nvidia"), seen("24.00")),
        (replace(CARD, integrated=True), seen("24.00")),
    ],
)
def test_anything_else_is_the_whole_card(rank: RankInput, facts: RankFacts) -> None:
    assert partition(rank, facts) == (rank, [])


def test_what_the_engine_itself_printed_as_free_is_its_partitions() -> None:
    printed = replace(CARD, free_at_init=23 * GIB, free_at_init_source="log")
    assert partition(printed, seen("24.00"))[0].free_at_init == 23 * GIB


def test_the_request_is_a_share_of_the_partition() -> None:
    report = BootReport(version="0.28.0", common=seen("24.00"))
    ledger = budget.compute(Shape(utilization=0.9), [CARD], report, None)
    rank = ledger.ranks["0"]
    assert rank.size == CARD.size // 8
    assert rank.requested == -int(-(rank.size * 0.9) // 1)
    assert rank.bootable is True
    assert any("partitions" in note for note in ledger.notes)
    assert not any("the engine saw" in note and "the driver says" in note for note in ledger.notes)
    # What the whole card holds is no test of one partition's plan.
    assert estimator_gap(rank, Measured(CARD.size, 0, 0), "serving") is None


def test_expert_offload_too() -> None:
    facts = replace(offload.said(offload.PLAN_G).common, size_at_init=Printed(CARD.size // 8))
    report = replace(offload.said(offload.PLAN_G), common=facts)
    found = budget.compute(offload.SHAPE, [CARD], report, offload.constants())
    assert found.ranks["0"].size == CARD.size // 8
