"""Ceilings asked of a shape, its model and its ledger."""

from __future__ import annotations

from dataclasses import replace

from budget_exporter import budget
from budget_exporter.budget.ceilings import Ceiling
from budget_exporter.budget.ceilings_of import ceilings_of
from budget_exporter.facts.boot import BootReport, RankFacts
from budget_exporter.facts.engine import Shape
from budget_exporter.facts.ledger import RankInput
from budget_exporter.facts.model import Attention, Latent, ModelConfig, ModelFiles, State
from budget_exporter.units import GIB
from tests.budget import offload
from tests.budget.offload import gib

FULL = (Attention(4, 128, 128),)
STATE = State("gdn", channels=1024, kernel=4, elements=8 * 128 * 128, heads=8)
LLAMA = ModelConfig("LlamaForCausalLM", "llama", (FULL,) * 8, dtype="bfloat16", query_heads=32)
SHAPE = Shape(
    tensor_parallel_size=8, max_num_seqs=256, max_model_len=8192, kv_cache_memory_bytes=GIB, max_num_batched_tokens=2048
)


def asked(found: tuple[Ceiling, ...]) -> dict[str, tuple[str, int | None]]:
    return {ceiling.name: (ceiling.verdict, ceiling.most) for ceiling in found}


def test_a_shape_alone_answers_what_flags_tell() -> None:
    assert asked(ceilings_of(Shape())) == {
        "decode_context_parallel": ("allowed", 1),
        "expert_parallel": ("allowed", None),
    }
    with_dcp = Shape(tensor_parallel_size=8, given={"decode-context-parallel-size": "2"})
    assert asked(ceilings_of(with_dcp))["decode_context_parallel"] == ("unknown", None)


def test_heads_of_the_model_decide_on_context_parallelism() -> None:
    for size, verdict in (("2", "allowed"), ("4", "refused")):
        shape = replace(SHAPE, given={"decode-context-parallel-size": size})
        assert asked(ceilings_of(shape, LLAMA))["decode_context_parallel"] == (verdict, 2)
    latent = replace(LLAMA, layers=((Latent(576),),) * 8)
    shape = replace(SHAPE, given={"decode-context-parallel-size": "8"})
    assert asked(ceilings_of(shape, latent))["decode_context_parallel"] == ("allowed", 8)


def test_the_pool_is_the_ledgers() -> None:
    config = replace(LLAMA, layers=((STATE,), FULL) * 4, model_type="qwen3_5")
    ranks = [RankInput(str(rank), 80 * GIB, platform="nvidia") for rank in range(8)]
    report = BootReport(version="0.32.0", common=RankFacts(weights=gib("100.00")))
    ledger = budget.compute(SHAPE, ranks, report, None, ModelFiles(config))
    found = asked(ceilings_of(SHAPE, config, ledger))
    assert ledger.kv_pool_tokens is not None
    assert found["windows"] == ("limited", ledger.kv_pool_tokens // 8192)
    assert found["mamba_blocks"][1] == ledger.kv_blocks
    assert asked(ceilings_of(SHAPE, config))["windows"] == ("unknown", None)
    assert asked(ceilings_of(replace(SHAPE, max_model_len=None), config))["mamba_blocks"] == ("unknown", None)
    assert "windows" not in asked(ceilings_of(replace(SHAPE, max_num_seqs=None), config, ledger))


def test_every_replica_holds_all_of_the_model() -> None:
    twice = replace(SHAPE, tensor_parallel_size=1, data_parallel_size=2)
    ranks = [RankInput(f"d{replica}.0", 80 * GIB, platform="nvidia") for replica in range(2)]
    for text, verdict in (("60.00", "allowed"), ("100.00", "refused")):
        facts = RankFacts(weights=gib(text), activation=gib("1.00"), non_torch=gib("0.10"))
        ledger = budget.compute(twice, ranks, BootReport(version="0.20.0", common=facts), None)
        assert asked(ceilings_of(twice, None, ledger))["data_parallel"][0] == verdict
    unknown = budget.compute(twice, ranks, BootReport(version="0.20.0"), None)
    assert asked(ceilings_of(twice, None, unknown))["data_parallel"][0] == "unknown"


def test_offloaded_experts_need_the_hosts_memory() -> None:
    shape = replace(offload.SHAPE, given={"enable-expert-parallel": "true"})
    ranks = [RankInput(name, offload.SIZE) for name in ("0", "1")]
    plan = replace(offload.PLAN_G, host_experts=gib("29.00"))
    ledger = budget.compute(shape, ranks, offload.said(plan), offload.constants())
    assert {term.name for term in ledger.host} >= {"host_experts"}
    for memory, verdict in ((4096 * GIB, "allowed"), (32 * GIB, "refused")):
        found = asked(ceilings_of(shape, None, ledger, host=memory))
        assert found["host_memory"][0] == verdict
        assert found["expert_parallel"][0] == "limited"
    assert "host_memory" not in asked(ceilings_of(shape, None, replace(ledger, host=()), host=GIB))
    assert "host_memory" not in asked(ceilings_of(shape, None, ledger))
