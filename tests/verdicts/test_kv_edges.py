"""The edges of the KV pool: what the engine does not start below, what programs are compiled for, what it printed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from budget_exporter import budget, verdicts
from budget_exporter.budget.choose import choose
from budget_exporter.facts.boot import BootReport, Phase, Printed, RankFacts
from budget_exporter.facts.engine import Shape
from budget_exporter.facts.ledger import Ledger, RankInput, RankLedger, Term
from budget_exporter.facts.model import Attention, ModelConfig, ModelFiles
from budget_exporter.facts.verdict import Floors, Measured, Policy, Verdict
from budget_exporter.units import GIB
from budget_exporter.verdicts.knife_edge import compile_cap, kv_minimum_bytes, kv_minimum_tokens
from budget_exporter.verdicts.margin import estimator_gap
from budget_exporter.verdicts.mismatch import of_tokens

LLAMA = ModelFiles(ModelConfig("LlamaForCausalLM", "llama", ((Attention(8, 128, 128),),) * 32, dtype="bfloat16"))
BANK = RankInput("0", 24 * GIB, platform="neuron")
CARD = RankInput("0", 80 * GIB, platform="nvidia")
BARE = Ledger("neuron", "0.24.0", assumed=False, kv_min_bytes=GIB)
POLICY = Policy(Floors(0, 0))


def rank(pool: int | None, cap: int | None = None, rounding: int = 0) -> RankLedger:
    term = None if pool is None else Term("kv_pool", pool, "log", rounding=rounding)
    return RankLedger("0", 24 * GIB, 20 * GIB, (), term, kv_pool=term, kv_cap=cap)


def judged(shape: Shape, report: BootReport, given: RankInput, phase: Phase = "allocating_kv") -> Verdict:
    ledger = budget.compute(shape, [given], report, None, LLAMA)
    return verdicts.judge(ledger=ledger, report=report, shape=shape, phase=phase, measured={}, policy=POLICY)


# -- the minimum


@pytest.mark.parametrize(
    ("pool", "rounding", "phase", "holds"),
    [
        (GIB, 0, "allocating_kv", False),
        (GIB - 1, 0, "allocating_kv", True),
        (GIB - 1, 1, "allocating_kv", False),
        (GIB - 2, 1, "unknown", True),
        (GIB - 2, 1, "serving", False),
        (-GIB, 0, "failing", True),
    ],
)
def test_a_pool_certainly_below_the_minimum_does_not_start(pool: int, rounding: int, phase: Phase, holds: bool) -> None:
    answer = kv_minimum_bytes(rank(pool, rounding=rounding), RankFacts(), BARE, phase)
    assert answer.holds is holds
    assert answer.room == pool - GIB
    assert "below 1.00 GiB the worker refuses to start" in answer.sentence


def test_without_a_pool_or_a_minimum_nothing_is_said_of_it() -> None:
    assert kv_minimum_bytes(rank(None), RankFacts(), BARE, "unknown").holds is None
    assert kv_minimum_bytes(None, RankFacts(), BARE, "unknown").holds is None
    assert kv_minimum_bytes(rank(0), RankFacts(), None, "unknown").holds is None
    assert kv_minimum_bytes(rank(0), RankFacts(), replace(BARE, kv_min_bytes=None), "unknown").holds is None


def test_the_engines_own_pool_counts_before_the_laws() -> None:
    said = RankFacts(kv_available=Printed(2 * GIB))
    assert kv_minimum_bytes(rank(0), said, BARE, "unknown").holds is False
    assert compile_cap(rank(0, cap=GIB), said).holds is True


@pytest.mark.parametrize(
    ("tokens", "open_by", "reported", "phase", "holds"),
    [
        (4095, 0, None, "allocating_kv", True),
        (4095, 1, None, "allocating_kv", False),
        (4096, 0, None, "allocating_kv", False),
        (4095, 0, 4200, "unknown", False),
        (4095, 0, None, "serving", False),
    ],
)
def test_a_pool_that_holds_no_request_does_not_start(
    tokens: int, open_by: int, reported: int | None, phase: Phase, holds: bool
) -> None:
    ledger = replace(BARE, kv_pool_tokens=tokens, kv_pool_tokens_rounding=open_by, kv_min_tokens=4096)
    assert kv_minimum_tokens(ledger, reported, phase).holds is holds


def test_tokens_that_are_not_known_say_nothing() -> None:
    assert kv_minimum_tokens(None, None, "unknown").holds is None
    assert kv_minimum_tokens(replace(BARE, kv_pool_tokens=1), None, "unknown").holds is None
    assert kv_minimum_tokens(replace(BARE, kv_min_tokens=1), None, "unknown").holds is None


# -- the cap


@pytest.mark.parametrize(("pool", "rounding", "holds"), [(GIB, 0, False), (GIB + 1, 0, True), (GIB + 1, 1, False)])
def test_a_pool_certainly_above_the_cap_does_not_compile(pool: int, rounding: int, holds: bool) -> None:
    answer = compile_cap(rank(pool, GIB, rounding), RankFacts())
    assert (answer.holds, answer.room) == (holds, GIB - pool)


def test_without_a_cap_or_a_pool_nothing_is_said() -> None:
    assert compile_cap(None, RankFacts(kv_available=Printed(1))).holds is None
    assert compile_cap(rank(1), RankFacts()).holds is None
    assert compile_cap(rank(None, GIB), RankFacts()).holds is None


# -- whole engines


def test_a_worker_whose_weights_leave_too_little() -> None:
    report = BootReport(version="0.24.0", common=RankFacts(weights=Printed(21 * GIB)))
    verdict = judged(Shape(utilization=0.9), report, BANK)
    assert verdict.knife_edge["kv_minimum"] is True
    assert verdict.knife_edge["compile_cap"] is False
    assert any(sentence.startswith("rank 0: the KV pool is 0.60 GiB") for sentence in verdict.sentences)


def test_more_blocks_than_the_cap_leaves() -> None:
    report = BootReport(version="0.24.0", common=RankFacts(weights=Printed(4 * GIB)))
    shape = Shape(utilization=0.9, block_size=32, max_model_len=4096, max_num_batched_tokens=2048)
    assert choose(shape, report, [BANK]).name == "neuron"
    block = 32 * 32 * 8 * 256 * 2
    most = int(int(24 * GIB * 0.9) * 0.3) // block
    for blocks, holds in ((most, False), (most + 1, True)):
        verdict = judged(replace(shape, num_gpu_blocks_override=blocks), report, BANK)
        assert verdict.knife_edge["compile_cap"] is holds


def test_an_explicit_pool_that_holds_no_request() -> None:
    shape = Shape(kv_cache_memory_bytes=GIB, max_model_len=65_536, max_num_batched_tokens=2048)
    report = BootReport(version="0.32.0")
    verdict = judged(shape, report, CARD)
    assert verdict.knife_edge["kv_minimum"] is True
    assert (
        "the KV pool is predicted to hold 8,192 tokens, below 65,536 the engine refuses to start" in verdict.sentences
    )
    assert judged(shape, report, CARD, "serving").knife_edge["kv_minimum"] is False


# -- what the engine printed


def test_tokens_by_geometry_are_held_to_what_was_printed() -> None:
    shape = Shape(kv_cache_memory_bytes=4 * GIB, max_model_len=8192, block_size=16, max_num_batched_tokens=2048)
    for tokens, apart in ((32_768, False), (32_767, True), (16_384, True)):
        report = BootReport(version="0.32.0", kv_tokens=tokens)
        assert judged(shape, report, CARD, "serving").findings["model_mismatch"] is apart


def test_an_assumed_block_size_leaves_open_what_it_moves() -> None:
    """100 blocks of 16 tokens and 12 of 128 are not as many tokens, and either may be the engine's."""
    shape = Shape(kv_cache_memory_bytes=100 * 16 * 131_072, max_model_len=1000, max_num_batched_tokens=2048)
    for tokens, apart in ((1587, False), (1500, False), (800, True)):
        report = BootReport(version="0.32.0", kv_tokens=tokens)
        assert judged(shape, report, CARD, "serving").findings["model_mismatch"] is apart


def test_only_a_price_of_the_geometry_is_tested() -> None:
    known = replace(BARE, kv_pool_tokens=100, kv_pool_tokens_source="geometry")
    assert of_tokens(known, 101) is True
    assert of_tokens(replace(known, kv_pool_tokens_rounding=1), 101) is False
    assert of_tokens(replace(known, kv_pool_tokens_source=None), 101) is None
    assert of_tokens(replace(known, kv_pool_tokens=None), 101) is None
    assert of_tokens(known, None) is None
    assert of_tokens(None, 101) is None


def test_blocks_that_replace_the_utilization_leave_no_gap_to_tell() -> None:
    shape = Shape(num_gpu_blocks_override=100, max_model_len=1024, max_num_batched_tokens=2048)
    ledger = budget.compute(shape, [CARD], BootReport(version="0.32.0"), None, LLAMA)
    assert ledger.ranks["0"].kv_pool is not None
    assert estimator_gap(ledger.ranks["0"], Measured(80 * GIB, GIB, GIB), "serving") is None
