"""What a model's geometry adds to a ledger, and what is said where it cannot."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from budget_exporter import budget
from budget_exporter.budget.choose import choose
from budget_exporter.budget.kv_ledger import layout_of
from budget_exporter.engines.model_config import parse
from budget_exporter.facts.boot import BootReport, RankFacts
from budget_exporter.facts.engine import Shape
from budget_exporter.facts.ledger import Ledger, RankInput
from budget_exporter.facts.model import Attention, Latent, ModelConfig, ModelFiles, State
from budget_exporter.facts.neuron import NeuronFacts
from budget_exporter.units import GIB, MIB
from tests.budget import offload
from tests.budget.offload import gib

GOLDENS = Path(__file__).parent / "goldens"
BOOTS: list[dict[str, Any]] = yaml.safe_load((GOLDENS / "boots_0_19.yaml").read_text())
CONFIGS = {row["model"]: row for row in yaml.safe_load((GOLDENS / "kv_models.yaml").read_text())}
FULL, SLIDING = (Attention(8, 128, 128),), (Attention(8, 128, 128, window=1024),)
LLAMA = ModelConfig("LlamaForCausalLM", "llama", (FULL,) * 32, dtype="bfloat16", max_model_len=131_072)
PRICE = 32 * 8 * 256 * 2
MODEL = ModelFiles(LLAMA)
SHAPE = Shape(max_model_len=8192, kv_cache_memory_bytes=4 * GIB, max_num_batched_tokens=2048)
CARD = RankInput("0", 80 * GIB, platform="nvidia")
V32 = BootReport(version="0.32.0")


def ledger(
    shape: Shape = SHAPE,
    model: ModelFiles | None = MODEL,
    report: BootReport = V32,
    ranks: tuple[RankInput, ...] = (CARD,),
) -> Ledger:
    return budget.compute(shape, ranks, report, None, model)


def about(found: Ledger) -> list[str]:
    return [note for note in found.notes if "KV" in note or "price" in note]


# -- vLLM's own workers


def test_an_explicit_pool_gives_blocks_tokens_and_requests() -> None:
    found = ledger()
    assert found.kv_bytes_per_token == {"geometry": PRICE}
    assert found.kv_blocks == 4 * GIB // (16 * PRICE)
    assert found.kv_pool_tokens == found.kv_blocks * 16
    assert found.kv_concurrency == found.kv_pool_tokens / 8192
    assert (found.kv_pool_tokens_rounding, found.kv_pool_tokens_source) == (0, "geometry")
    assert "block size 16 is assumed, the default: an attention backend may force another" in found.notes


@pytest.mark.parametrize(
    "row", [row for row in BOOTS if row["model"] in CONFIGS], ids=lambda r: f"{r['model']}-{r['tp']}"
)
def test_printed_terms_and_a_config_give_the_tokens_that_were_printed(row: dict[str, Any]) -> None:
    """The pool comes from printed figures, so the tokens lie within what their rounding leaves open."""
    known = CONFIGS[row["model"]]
    shape = Shape(
        utilization=row["utilization"],
        tensor_parallel_size=row["tp"],
        max_model_len=row["max_model_len"],
        max_num_batched_tokens=8192,
        kv_cache_dtype=known["kv_cache_dtype"],
        given={"dtype": known["dtype"]},
    )
    facts = RankFacts(weights=gib(row["weights"]), activation=gib(row["activation"]), non_torch=gib(row["non_torch"]))
    report = BootReport(version="0.19.0", common=facts, graph_charge_applied=False)
    ranks = tuple(RankInput(str(rank), gib(row["size"]).bytes, platform="nvidia") for rank in range(row["tp"]))
    found = ledger(shape, ModelFiles(parse(json.dumps(known["config"]))), report, ranks)
    assert found.kv_pool_tokens is not None
    assert found.kv_concurrency is not None
    # The size is printed too, and the request is a share of it.
    size = gib(row["size"]).rounding // found.kv_bytes_per_token["geometry"] * 8
    assert abs(found.kv_pool_tokens - row["tokens"]) <= found.kv_pool_tokens_rounding + size
    assert 0 < found.kv_pool_tokens_rounding < row["tokens"] * 0.05
    assert abs(found.kv_concurrency - float(row["concurrency"])) < float(row["concurrency"]) * 0.05


def test_boots_of_several_models_are_held_to_their_configs() -> None:
    assert len([row for row in BOOTS if row["model"] in CONFIGS]) >= 8


def test_the_smallest_rank_counts_and_every_one_must_be_known() -> None:
    shape = replace(SHAPE, kv_cache_memory_bytes=None, tensor_parallel_size=2, utilization=0.5)
    facts = {n: RankFacts(consumed=gib(text), activation=gib("1.00")) for n, text in ((0, "20.00"), (1, "30.00"))}
    report = replace(V32, ranks=facts, graph_charge_applied=False)
    two = (CARD, replace(CARD, rank="1"))
    found = ledger(shape, MODEL, report, two)
    alone = ledger(replace(shape, tensor_parallel_size=1), MODEL, replace(report, ranks={0: facts[1]}))
    assert found.kv_blocks is not None
    assert alone.kv_blocks is not None
    assert found.kv_blocks == alone.kv_blocks * 2
    assert ledger(shape, MODEL, report).kv_blocks is None
    assert ledger(shape, MODEL, replace(report, ranks={0: facts[0]}), two).kv_blocks is None
    assert ledger(shape, MODEL, report).kv_bytes_per_token == {"geometry": PRICE // 2}
    odd = (CARD, replace(CARD, rank="one"))
    assert ledger(replace(shape, kv_cache_memory_bytes=GIB), MODEL, report, odd).kv_blocks is None
    assert ledger(shape, MODEL, report, ()).kv_blocks is None


def test_pipeline_stages_have_blocks_of_their_own_size() -> None:
    config = replace(LLAMA, layers=(FULL,) * 3)
    ranks = (CARD, replace(CARD, rank="1"))
    found = ledger(replace(SHAPE, pipeline_parallel_size=2), ModelFiles(config), V32, ranks)
    assert found.kv_blocks == 4 * GIB // (16 * 4096 * 2)


def test_an_override_of_the_blocks_has_bytes_by_its_geometry() -> None:
    shape = Shape(
        num_gpu_blocks_override=100, max_model_len=1024, max_num_batched_tokens=2048, pipeline_parallel_size=2
    )
    config = replace(LLAMA, layers=(FULL,) * 3)
    ranks = (CARD, replace(CARD, rank="1"), replace(CARD, rank="x"))
    found = ledger(shape, ModelFiles(config), V32, ranks)
    pools = [rank.kv_pool for rank in found.ranks.values()]
    assert [None if pool is None else (pool.bytes, pool.source) for pool in pools] == [
        (100 * 16 * 4096 * 2, "geometry"),
        (100 * 16 * 4096, "geometry"),
        None,
    ]
    assert (found.kv_blocks, found.kv_pool_tokens) == (100, 1600)


def test_a_price_that_the_registry_states_goes_first() -> None:
    files = ModelFiles(replace(LLAMA, layers=(FULL,) * 12))
    shape = offload.SHAPE
    registry = offload.constants()
    ranks = [RankInput(name, offload.SIZE) for name in ("0", "1")]
    said = replace(offload.said(offload.PLAN_G), version="0.28.0")
    before = budget.compute(shape, ranks, said, registry)
    found = budget.compute(shape, ranks, said, registry, files)
    assert found.kv_pool_tokens == before.kv_pool_tokens is not None
    assert found.kv_pool_tokens_source is None
    assert found.kv_bytes_per_token == {**before.kv_bytes_per_token, "geometry": 12 * 4 * 256}


# -- what is not known


@pytest.mark.parametrize(
    ("shape", "model", "report", "why"),
    [
        (SHAPE, ModelFiles(notes=("the model's config.json: not there",)), V32, "config.json: not there"),
        (SHAPE, MODEL, BootReport(), "differs from version to version"),
        (replace(SHAPE, kv_cache_dtype="turbo"), MODEL, V32, "kv_cache_dtype 'turbo'"),
        (replace(SHAPE, layout_flags=("hf-overrides",)), MODEL, V32, "--hf-overrides"),
        (replace(SHAPE, given={"decode-context-parallel-size": "x"}), MODEL, V32, "decode-context-parallel-size"),
        (
            replace(SHAPE, speculative=True, speculative_method="eagle3", speculative_tokens=3),
            replace(MODEL, notes=("the draft model's config.json: not there",)),
            V32,
            "the draft model's config.json: not there",
        ),
    ],
)
def test_without_a_geometry_nothing_is_shown_and_the_notes_say_why(
    shape: Shape, model: ModelFiles, report: BootReport, why: str
) -> None:
    found = ledger(shape, model, report)
    assert "geometry" not in found.kv_bytes_per_token
    assert (found.kv_pool_tokens, found.kv_blocks, found.kv_concurrency) == (None, None, None)
    assert any(why in note for note in found.notes)


def test_nobody_has_looked_is_no_note() -> None:
    assert about(ledger(model=None)) == []


def test_flags_whose_values_are_in_the_config_are_no_reason() -> None:
    shape = replace(SHAPE, layout_flags=("hf-overrides", "hf-config-path"))
    assert ledger(shape, replace(MODEL, applied=("hf-overrides", "hf-config-path"))).kv_pool_tokens is not None


def test_the_installed_package_tells_the_version_too() -> None:
    shape = replace(SHAPE, version="0.32.0")
    found = ledger(shape, MODEL, BootReport())
    assert found.kv_pool_tokens is not None
    assert (found.version, found.assumed) == ("0.32.0", False)
    assert choose(replace(SHAPE, version="0.19.1"), BootReport()).version == "0.19.1"


def test_a_draft_takes_its_share() -> None:
    drafting = replace(SHAPE, speculative=True, speculative_method="eagle3", speculative_tokens=3)
    found = ledger(drafting, replace(MODEL, draft=replace(LLAMA, layers=(FULL,))))
    assert found.kv_bytes_per_token == {"geometry": PRICE + 4096}


def test_a_length_that_nobody_tells_leaves_the_tokens_open() -> None:
    shape = replace(SHAPE, max_model_len=None)
    found = ledger(shape)
    assert found.kv_blocks is not None
    assert found.kv_pool_tokens is None
    assert "the KV pool's tokens follow max_model_len, which neither flags nor log tell" in found.notes
    assert ledger(shape, report=replace(V32, max_model_len=8192)).kv_pool_tokens == ledger().kv_pool_tokens


def test_a_length_that_is_fitted_is_certain_below_the_models_own_limit() -> None:
    auto = replace(SHAPE, max_model_len=None, given={"max-model-len": "auto"})
    found = ledger(auto)
    assert found.kv_pool_tokens == 32_768
    assert found.kv_concurrency is not None
    assert 1 <= found.kv_concurrency < 1.001
    for model in (
        replace(MODEL, config=replace(LLAMA, max_model_len=4096)),
        ModelFiles(replace(LLAMA, max_model_len=None)),
    ):
        assert ledger(auto, model).kv_pool_tokens is None


def test_a_window_needs_the_size_of_a_batch() -> None:
    shape = replace(SHAPE, max_num_batched_tokens=None)
    windows = ModelFiles(replace(LLAMA, layers=(SLIDING, FULL) * 4))
    found = ledger(shape, windows, V32, (replace(CARD, platform=""),))
    assert found.kv_blocks is not None
    assert found.kv_pool_tokens is None
    assert any("--max-num-batched-tokens" in note for note in found.notes)
    h100, a100 = (ledger(shape, windows, V32, (replace(CARD, model=name),)) for name in ("NVIDIA H100", "NVIDIA A100"))
    assert h100.kv_pool_tokens is not None
    assert a100.kv_pool_tokens is not None
    assert a100.kv_pool_tokens > h100.kv_pool_tokens


def test_a_model_without_attention_has_no_price_of_a_token() -> None:
    state = State("mamba1", channels=8192, kernel=4, elements=8192 * 16, heads=8192)
    found = ledger(model=ModelFiles(replace(LLAMA, layers=((state,),) * 4)))
    assert found.kv_bytes_per_token == {}
    assert found.kv_blocks is not None


def test_a_release_that_nobody_has_read_is_assumed_to_be_the_last_one() -> None:
    note = "the KV cache's layout is assumed to be that of vLLM 0.32"
    assert note in ledger(report=BootReport(version="0.33.0")).notes
    assert note not in ledger().notes


def test_a_layout_needs_no_rank() -> None:
    layout, notes = layout_of(SHAPE, (), V32, MODEL, "host")
    assert layout is not None
    assert (layout.settings.platform, layout.groups[0].spec.block_size, notes) == ("host", 128, [])


# -- Gaudi, Neuron, TPU


def gaudi(shape: Shape, model: ModelFiles | None) -> Ledger:
    report = BootReport(release="1.19.0", version="0.6.4", common=RankFacts(free_after_load=gib("80.00")))
    return ledger(shape, model, report, (RankInput("0", 96 * GIB, platform="gaudi"),))


def test_gaudis_blocks_come_from_the_geometry_where_no_registry_has_a_price() -> None:
    found = gaudi(Shape(max_model_len=8192), MODEL)
    pool = found.ranks["0"].kv_pool
    assert pool is not None
    assert found.kv_bytes_per_token == {"geometry": PRICE}
    assert found.kv_pool_tokens == pool.bytes // (128 * PRICE) * 128
    halved = gaudi(Shape(max_model_len=8192, kv_cache_dtype="fp8_inc"), MODEL)
    assert halved.kv_bytes_per_token == {"geometry": PRICE // 2}
    ruled = budget.compute(
        Shape(max_model_len=8192),
        [RankInput("0", 96 * GIB, platform="gaudi")],
        BootReport(release="1.19.0", common=RankFacts(free_after_load=gib("80.00"))),
        replace(offload.constants(), kv_bytes_per_token=2 * PRICE),
        MODEL,
    )
    assert ruled.kv_bytes_per_token == {"registry": 2 * PRICE, "geometry": PRICE}
    assert ruled.kv_pool_tokens == pool.bytes // (256 * PRICE) * 128


@pytest.mark.parametrize(
    ("shape", "model", "why"),
    [
        (Shape(), ModelFiles(notes=("the model's config.json: not there",)), "config.json: not there"),
        (Shape(), ModelFiles(), "config.json is not known"),
        (Shape(), ModelFiles(replace(LLAMA, layers=((Latent(576),),) * 2)), "alike"),
        (Shape(), ModelFiles(replace(LLAMA, layers=(FULL, SLIDING))), "alike"),
        (Shape(), ModelFiles(replace(LLAMA, layers=(SLIDING, SLIDING))), "alike"),
        (Shape(), ModelFiles(replace(LLAMA, layers=((*FULL, *FULL),))), "alike"),
        (Shape(), ModelFiles(replace(LLAMA, kv_dtype="fp8")), "kv_cache_dtype auto"),
        (Shape(kv_cache_dtype="turbo"), MODEL, "'turbo'"),
        (Shape(layout_flags=("hf-overrides",)), MODEL, "--hf-overrides"),
        (Shape(speculative=True), MODEL, "drafting"),
        (Shape(pipeline_parallel_size=2), MODEL, "pipeline"),
    ],
)
def test_a_price_that_is_not_known_is_said(shape: Shape, model: ModelFiles, why: str) -> None:
    found = gaudi(shape, model)
    assert found.kv_bytes_per_token == {}
    assert any(note.startswith("the price of a token is not known: ") and why in note for note in found.notes)


def test_padded_heads_shrink_a_tpus_pool() -> None:
    report = BootReport(version="0.10.0", common=RankFacts(consumed=gib("8.00")))
    rank = (RankInput("0", 16 * GIB, platform="tpu"),)
    narrow = ModelFiles(replace(LLAMA, layers=((Attention(8, 64, 64),),) * 16))
    whole, half = (ledger(Shape(), files, report, rank).ranks["0"].kv_pool for files in (MODEL, narrow))
    assert whole is not None
    assert half is not None
    assert half.bytes == whole.bytes // 2
    assert ledger(Shape(), None, report, rank).ranks["0"].kv_pool is None
    for files in (ModelFiles(notes=("not there",)), ModelFiles(replace(LLAMA, layers=((Latent(576),),)))):
        found = ledger(Shape(), files, report, rank)
        assert found.ranks["0"].kv_pool is None
        assert any("heads of 128" in note for note in found.notes)


def neuron(shape: Shape, model: ModelFiles | None, version: str) -> Ledger:
    report = BootReport(version=version, common=RankFacts(weights=gib("4.00")))
    return ledger(shape, model, report, (RankInput("0", 24 * GIB, platform="neuron"),))


def test_neurons_blocks_need_their_size() -> None:
    bare = neuron(Shape(max_model_len=4096), MODEL, "0.24.0")
    assert bare.kv_bytes_per_token == {"geometry": PRICE}
    assert bare.kv_pool_tokens is None
    cut = neuron(Shape(max_model_len=4096, block_size=32, max_num_batched_tokens=2048), MODEL, "0.24.0")
    pool = cut.ranks["0"].kv_pool
    assert pool is not None
    assert cut.kv_pool_tokens == pool.bytes // (32 * PRICE) * 32
    assert neuron(Shape(max_model_len=4096), None, "0.24.0").kv_bytes_per_token == {}
    assert any("alike" in note for note in neuron(Shape(), ModelFiles(replace(LLAMA, layers=())), "0.24.0").notes)


def test_sequences_in_one_piece_take_what_the_model_says() -> None:
    piece = NeuronFacts(is_block_kv_layout=False)
    shape = Shape(max_model_len=2048, max_num_seqs=7, tensor_parallel_size=8, neuron=piece)
    found = neuron(shape, MODEL, "0.13.0")
    pool = found.ranks["0"].kv_pool
    assert pool is not None
    assert (pool.bytes, pool.source) == (2 * 2048 * 8 * 128 * 2 * 32 * 8, "geometry")
    halved = neuron(replace(shape, block_size=1024), MODEL, "0.13.0").ranks["0"].kv_pool
    assert halved is not None
    assert halved.bytes == pool.bytes // 2
    for other, files in (
        (shape, None),
        (replace(shape, max_num_seqs=None), MODEL),
        (replace(shape, max_model_len=None), MODEL),
        (shape, ModelFiles(replace(LLAMA, layers=((Latent(576),),)))),
    ):
        blind = neuron(other, files, "0.13.0")
        assert blind.ranks == {}
        assert any("in one piece" in note for note in blind.notes)


def test_on_cpu_blocks_are_larger() -> None:
    found = ledger(replace(SHAPE, kv_cache_memory_bytes=64 * MIB), MODEL, V32, (RankInput("0", GIB, platform="host"),))
    assert found.kv_blocks == 64 * MIB // (128 * PRICE)
