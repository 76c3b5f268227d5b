"""What the real laws make of a shape fits the catalogue: no term has a name that its closed list lacks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from budget_exporter.budget.choose import LAWS
from budget_exporter.budget.laws import Law
from budget_exporter.facts.boot import BootReport, RankFacts
from budget_exporter.facts.engine import Shape
from budget_exporter.facts.ledger import Ledger, RankInput
from budget_exporter.publish import page
from budget_exporter.publish.metrics import families
from tests.publish import snapshots
from tests.publish.snapshots import AT, SIZE

RANKS = [RankInput("0", SIZE, snapshots.gib("31.29").bytes), RankInput("1", SIZE)]
EVERYTHING = BootReport(
    version="0.9.0.1",
    core="V0",
    common=RankFacts(
        weights=snapshots.gib("9.00"),
        activation=snapshots.gib("1.00"),
        non_torch=snapshots.gib("0.50"),
        consumed=snapshots.gib("9.50"),
        graph_estimate=snapshots.gib("0.25"),
        graph_capture=snapshots.gib("0.30"),
        multimodal=snapshots.gib("0.75"),
        free_after_load=snapshots.gib("20.00"),
        graph_reserve=snapshots.gib("1.80"),
        dummy_block=snapshots.gib("0.02"),
    ),
    graph_charge_applied=True,
)
"""Figures for every law at once: each takes those it knows."""
HOST = Shape(given={"kv-offloading-size": "4", "swap-space": "2"}, environ={"VLLM_USE_V1": "0"})
LINKS = page.Links("/metrics", "/api", "/healthy", "/ready")


REPORTS = [snapshots.report(), snapshots.plain().engines[0].report, BootReport(), EVERYTHING]
SHAPES = [snapshots.offload_shape("0.982"), Shape(), Shape(num_gpu_blocks_override=9), HOST]


@pytest.mark.parametrize("law", LAWS, ids=lambda law: f"{law.flavour}-{law.since}")
@pytest.mark.parametrize("report", REPORTS)
@pytest.mark.parametrize("shape", SHAPES)
def test_every_ledger_can_be_published_and_a_closed_one_sums(law: Law, report: BootReport, shape: Shape) -> None:
    ledger: Ledger = law.ledger(shape, RANKS, report, None)
    before = snapshots.healthy()
    engine = replace(before.engines[0], shape=shape, report=report, ledger=ledger)
    snapshot = replace(before, engines=(engine,))
    sums: dict[str, float] = dict.fromkeys(ledger.ranks, 0)
    requested = {}
    for sample in (sample for family in families(snapshot) for sample in family.samples):
        if sample.name == "budget_model_charge_bytes":
            sums[sample.labels["rank"]] += sample.value
        if sample.name == "budget_model_requested_bytes":
            requested[sample.labels["rank"]] = sample.value
    for rank, one in ledger.ranks.items():
        if one.pool is not None:
            assert sums[rank] + one.pool.bytes == requested[rank]
    rendered = page.render(snapshot, links=LINKS, now=AT)
    assert (b"Ledger of rank 0" in rendered) is bool(ledger.ranks)
