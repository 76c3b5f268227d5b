"""The engine's own charges carry the names the law gives them, so that a disagreement is one subtraction."""

from __future__ import annotations

import pytest

from budget_exporter.budget import compute
from budget_exporter.facts.boot import BootReport, RankFacts
from budget_exporter.facts.engine import Shape
from budget_exporter.facts.ledger import RankInput
from budget_exporter.publish.reported_metrics import charges_of
from budget_exporter.units import GIB
from tests.budget.offload import gib

FACTS = RankFacts(weights=gib("14.99"), activation=gib("1.20"), graph_estimate=gib("0.50"), multimodal=gib("0.25"))
PARTS = {"weights", "activation", "non_torch", "cuda_graphs", "multimodal"}
CONSUMED = {"weights", "headroom", "consumed", "cuda_graphs", "multimodal"}


@pytest.mark.parametrize(
    ("version", "more", "names"),
    [("0.26.0", {"non_torch": gib("0.35")}, PARTS), ("0.28.0", {"consumed": gib("15.40")}, CONSUMED)],
)
def test_the_peak_is_activation_or_headroom_as_the_release_charges_it(
    version: str, more: dict[str, object], names: set[str]
) -> None:
    facts = RankFacts(
        **{name: getattr(FACTS, name) for name in ("weights", "activation", "graph_estimate", "multimodal")},
        **more,  # type: ignore[arg-type]  # fields of RankFacts by name
    )
    reported = charges_of(facts, charged=True)
    assert set(reported) == names
    report = BootReport(version=version, common=facts, graph_charge_applied=True)
    rank = compute(Shape(utilization=0.9), [RankInput("0", 80 * GIB)], report, None).ranks["0"]
    assert {term.name: term.bytes for term in rank.charges} == {
        term.name: reported[term.name].bytes for term in rank.charges if term.name in reported
    }
    assert {term.name for term in rank.charges} | {term.name for term in rank.within} == names
