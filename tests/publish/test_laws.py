"""What the real laws make of a shape fits the catalogue: no term has a name that its closed list lacks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from budget_exporter.budget.laws.expert_offload import ExpertOffload
from budget_exporter.budget.laws.vllm_gpu import LAWS as VLLM_GPU
from budget_exporter.facts.boot import BootReport
from budget_exporter.facts.engine import Shape
from budget_exporter.facts.ledger import Ledger, RankInput
from budget_exporter.publish import page
from budget_exporter.publish.metrics import families
from tests.publish import snapshots
from tests.publish.snapshots import AT, SIZE

LAWS = (ExpertOffload(), *VLLM_GPU)
RANKS = [RankInput("0", SIZE, snapshots.gib("31.29").bytes), RankInput("1", SIZE)]
LINKS = page.Links("/metrics", "/api", "/healthy", "/ready")


@pytest.mark.parametrize("law", LAWS, ids=lambda law: f"{law.name}-{law.since}")
@pytest.mark.parametrize("report", [snapshots.report(), snapshots.plain().engines[0].report, BootReport()])
@pytest.mark.parametrize("shape", [snapshots.offload_shape("0.982"), Shape(), Shape(num_gpu_blocks_override=9)])
def test_every_ledger_can_be_published_and_a_closed_one_sums(
    law: ExpertOffload, report: BootReport, shape: Shape
) -> None:
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
    assert b"Ledger of rank 0" in page.render(snapshot, links=LINKS, now=AT)
