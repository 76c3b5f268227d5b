from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, strategies as st

from budget_exporter.budget.gaudi_settings import capture_settings
from budget_exporter.budget.gaudi_split import gdn_factor, mamba2_factor, scaled
from budget_exporter.budget.laws.gaudi import LAWS, Gaudi
from budget_exporter.engines.arguments import ENVIRON_ALLOWED, GIVEN_ALLOWED
from budget_exporter.errors import LawError
from budget_exporter.facts.boot import BootReport, Printed, RankFacts
from budget_exporter.facts.engine import Shape
from budget_exporter.facts.ledger import Constants, Ledger, RankInput, RankLedger, Term
from budget_exporter.units import GIB, MIB, printed_bytes

LOGS: dict[str, Any] = yaml.safe_load((Path(__file__).parent / "goldens" / "gaudi.yaml").read_text())
SIZE = 98_304 * MIB
"""Gaudi 2, of which its bridge hands out 94.62 GiB."""
BLOCK = 16 * MIB
"""128 tokens of Llama-3-8B in bf16: 32 layers, 8 KV heads of 128."""
RESERVE = "VLLM_GRAPH_RESERVED_MEM"


def law(flavour: str, *version: int) -> Gaudi:
    return next(
        law
        for law in LAWS
        if law.flavour == flavour and law.since <= version and (law.until is None or version < law.until)
    )


F16, F17, F19, F21, F22 = (law("gaudi", 1, minor) for minor in (16, 17, 19, 21, 22))
P10, P14, P17, P18, P27 = (
    law("gaudi_plugin", *version) for version in ((0, 10), (0, 14, 1), (0, 17, 1), (0, 18, 1), (0, 27))
)


def price(block: int = BLOCK) -> Constants:
    return Constants("Llama", None, 1, "geometry of its config.json", kv_bytes_per_token=block // 128)


def gib(text: float | str, rounding: int = 0) -> Printed:
    return Printed(printed_bytes(str(text)), rounding)


def said(free: float | str, **facts: Any) -> BootReport:
    return BootReport(common=RankFacts(free_after_load=gib(free), **facts))


def ledger(by: Gaudi, shape: Shape, report: BootReport, constants: Constants | None = None, ranks: int = 1) -> Ledger:
    return by.ledger(shape, [RankInput(str(rank), SIZE, platform="gaudi") for rank in range(ranks)], report, constants)


def first(by: Gaudi, shape: Shape, report: BootReport, constants: Constants | None = None) -> RankLedger:
    return ledger(by, shape, report, constants).ranks["0"]


def shown(size: int) -> str:
    """Return a size in GiB with four significant digits, as Gaudi's log has it."""
    return f"{size / GIB:.4g}"


def charge(rank: RankLedger, name: str) -> Term:
    return next(term for term in rank.charges if term.name == name)


def pool(rank: RankLedger) -> Term:
    assert rank.pool is not None
    return rank.pool


def closes(rank: RankLedger) -> bool:
    return sum(term.bytes for term in rank.charges) + pool(rank).bytes == rank.requested


# The public logs


def test_the_1_17_log() -> None:
    log = LOGS["seed_log_1_17"]
    shape = Shape(
        utilization=log["utilization"],
        max_num_seqs=log["max_num_seqs"],
        max_model_len=2048,
        max_num_batched_tokens=2048,
        environ={RESERVE: str(log["graph_reserved"]), "VLLM_GRAPH_PROMPT_RATIO": str(log["prompt_ratio"])},
        given={"swap-space": "0"},
    )
    found = ledger(F17, shape, said(log["free_gib"]), price())
    rank = found.ranks["0"]
    assert shown(rank.requested) == str(log["usable"])
    assert shown(charge(rank, "graph_reserve").bytes) == str(log["graphs"])
    assert shown(pool(rank).bytes) == str(log["kv"])
    assert found.kv_pool_tokens == log["hpu_blocks"] * 128
    assert shown(log["hpu_blocks"] * BLOCK) == str(log["kv_allocated"])
    assert {term.name: shown(term.bytes) for term in rank.within} == {
        "prompt_graphs": str(log["prompt_budget"]),
        "decode_graphs": str(log["decode_budget"]),
    }
    assert found.graphs == log["prompt_buckets"] + log["decode_buckets"]
    assert "24 prompt and 48 decode buckets are warmed up" in found.notes
    assert rank.margin == printed_bytes(str(log["free_gib"])) - rank.requested
    assert found.host == ()
    assert closes(rank)


def test_the_1_17_log_needs_no_setting_but_utilization() -> None:
    log = LOGS["seed_log_1_17"]
    rank = first(F17, Shape(utilization=0.5), said(log["free_gib"]))
    assert shown(charge(rank, "graph_reserve").bytes) == str(log["graphs"])
    assert charge(rank, "graph_reserve").source == "default"
    assert [(term.name, term.source) for term in rank.within] == [
        ("prompt_graphs", "default"),
        ("decode_graphs", "default"),
    ]


def test_the_log_of_the_tuning_guide() -> None:
    log = LOGS["tuning_doc_log"]
    shape = Shape(utilization=log["utilization"], environ={RESERVE: str(log["graph_reserved"])})
    found = ledger(F17, shape, said(log["free_gib"]), price())
    rank = found.ranks["0"]
    assert [shown(rank.requested), shown(charge(rank, "graph_reserve").bytes), shown(pool(rank).bytes)] == [
        str(log["usable"]),
        str(log["graphs"]),
        str(log["kv"]),
    ]
    assert found.kv_pool_tokens == log["hpu_blocks"] * 128
    assert [(term.name, term.bytes, term.source) for term in found.host] == [("swap", log["swap_gib"] * GIB, "default")]
    assert found.host[0].note == f"{log['cpu_blocks']} blocks for each rank"
    rounded = ledger(F17, shape, said("79.22"), price())
    assert rounded.kv_pool_tokens == 4106 * 128


def test_before_1_17_the_line_prints_a_share_of_what_is_free() -> None:
    pr = LOGS["pull_request_147"]
    printed = gib(pr["graphs_printed"], 5_368_709)
    found = ledger(F16, Shape(utilization=0.5), said(pr["free_gib"], graph_reserve=printed), price())
    rank = found.ranks["0"]
    assert shown(pool(rank).bytes) == str(pr["kv"])
    assert shown(charge(rank, "graph_reserve").bytes) == "15.83"
    assert any(f"prints {pr['graphs_printed']} GiB reserved" in note for note in found.notes)
    assert not any("settings give" in note for note in found.notes)
    assert rank.within == ()
    assert closes(rank)
    wrong = ledger(F16, Shape(utilization=0.5), said(pr["free_gib"], graph_reserve=gib("15.83")), price())
    assert any("keeps 15.83 GiB back for graphs, its settings give 31.66 GiB" in note for note in wrong.notes)
    assert wrong.ranks["0"].charges == rank.charges


def test_the_plugin_s_blocks_of_pull_request_1700() -> None:
    log = LOGS["plugin_pull_request_1700"]
    found = ledger(P27, Shape(), said(log["free_gib"]), price(log["block_mib"] * MIB))
    assert found.utilization_ratio == log["utilization"]
    assert found.kv_pool_tokens == log["hpu_blocks"] * 128
    dummy = charge(found.ranks["0"], "dummy_block")
    assert (dummy.bytes, dummy.source) == (log["block_mib"] * MIB, "registry")
    assert closes(found.ranks["0"])


def test_issue_1194_with_all_defaults() -> None:
    log = LOGS["fork_issue_1194"]
    shape = Shape(max_num_seqs=log["max_num_seqs"], max_model_len=4096, max_num_batched_tokens=8192)
    found = ledger(F19, shape, said("79.22", kv_blocks=log["least_blocks"]))
    assert any(f"and {log['bucket_count']} decode buckets" in note for note in found.notes)


# The split


@pytest.mark.parametrize(
    ("by", "reserve", "utilization"),
    [
        (F16, 0.4, 0.9),
        (F17, 0.4, 0.9),
        (F19, 0.1, 0.9),
        (F22, 0.1, 0.9),
        (P10, 0.1, 0.9),
        (P18, 0.1, 0.9),
        (P27, 0.1, 0.92),
    ],
)
def test_defaults_by_release(by: Gaudi, reserve: float, utilization: float) -> None:
    found = ledger(by, Shape(), replace(said("100"), core="V1" if by.flavour == "gaudi_plugin" else "V0"), price())
    rank = found.ranks["0"]
    assert found.utilization_ratio == utilization
    assert found.utilization is not None
    assert (found.utilization.source, found.utilization.bytes) == ("default", int(100 * GIB * utilization))
    graphs = charge(rank, "graph_reserve")
    assert graphs.bytes == pytest.approx(100 * GIB * utilization * reserve, abs=2)
    assert (graphs.source, graphs.lever) == ("default", RESERVE)
    assert closes(rank)


def test_free_after_load_counts_not_the_size() -> None:
    small, large = (
        F17.ledger(Shape(utilization=0.9), [RankInput("0", size)], said("50"), None).ranks["0"].requested
        for size in (SIZE, 2 * SIZE)
    )
    assert small == large == int(50 * GIB * 0.9)


def test_eager_engines_keep_nothing_back() -> None:
    found = ledger(F22, Shape(utilization=0.9, enforce_eager=True, environ={RESERVE: "0.4"}), said("50"))
    rank = found.ranks["0"]
    assert rank.charges == ()
    assert found.graphs is None
    assert not any("graphs" in note for note in found.notes)
    assert rank.margin == 50 * GIB - rank.requested


def test_a_reserve_of_0_is_no_charge() -> None:
    rank = first(F19, Shape(utilization=0.9, environ={RESERVE: "0"}), said("50"))
    assert (rank.charges, rank.within) == ((), ())
    assert pool(rank).bytes == rank.requested


def test_what_the_engine_keeps_back_counts_where_its_settings_say_otherwise() -> None:
    found = ledger(F19, Shape(utilization=0.9), said("50", graph_reserve=gib("9", 5_368_709)))
    rank = found.ranks["0"]
    assert charge(rank, "graph_reserve") == Term("graph_reserve", 9 * GIB, "log", RESERVE, rounding=5_368_709)
    assert pool(rank).rounding == 5_368_709
    assert any("keeps 9.00 GiB back for graphs, its settings give 4.50 GiB" in note for note in found.notes)
    assert closes(rank)
    agreed = ledger(F19, Shape(utilization=0.9), said("50", graph_reserve=gib("4.5", 5_368_709)))
    assert charge(agreed.ranks["0"], "graph_reserve").source == "default"
    assert not any("settings give" in note for note in agreed.notes)


def test_the_rounding_of_a_printed_free_figure_is_handed_on() -> None:
    report = BootReport(common=RankFacts(free_after_load=gib("79.16", 5_368_709)))
    found = ledger(F17, Shape(utilization=0.5), report)
    rank = found.ranks["0"]
    assert found.utilization is not None
    assert found.utilization.rounding == round(5_368_709 * 0.5)
    assert charge(rank, "graph_reserve").rounding + pool(rank).rounding == found.utilization.rounding


def test_ranks_that_said_nothing_are_named_not_guessed() -> None:
    report = BootReport(ranks={0: RankFacts(free_after_load=gib("50"))})
    found = ledger(F19, Shape(utilization=0.9), report, price(), ranks=2)
    assert list(found.ranks) == ["0"]
    assert any(note.startswith("rank 1: free memory after loading is not known") for note in found.notes)
    assert found.kv_pool_tokens is None
    silent = ledger(F19, Shape(), BootReport(), ranks=2)
    assert (silent.ranks, silent.utilization, silent.utilization_ratio) == ({}, None, 0.9)
    assert "every rank: free memory after loading is not known, and all else is a share of it" in silent.notes


def test_the_smallest_rank_sets_the_blocks() -> None:
    report = BootReport(ranks={0: RankFacts(free_after_load=gib("50")), 1: RankFacts(free_after_load=gib("40"))})
    found = ledger(F19, Shape(utilization=0.9), report, price(), ranks=2)
    alone = ledger(F19, Shape(utilization=0.9), said("40"), price())
    assert found.kv_pool_tokens == alone.kv_pool_tokens
    assert found.utilization is not None
    assert found.utilization.bytes == found.ranks["0"].requested


def test_what_is_loaded_stands_beside_the_request() -> None:
    """The second log: 15.05 GiB of weights, 355 MiB of profile run, 94.62 of 96 GiB handed out."""
    report = said("79.22", weights=gib("15.05"), activation=Printed(355 * MIB))
    rank = first(F17, Shape(utilization=0.9), report)
    outside = {term.name: term.bytes for term in rank.outside}
    assert shown(SIZE - outside["driver_reserve"]) == "94.62"
    assert outside["weights"] + outside["activation"] + outside["driver_reserve"] == SIZE - printed_bytes("79.22")
    assert first(F17, Shape(), said("79.22")).outside == ()
    plain = first(F17, Shape(), said("79.22", weights=gib("15.05")))
    assert [term.name for term in plain.outside] == ["weights", "driver_reserve"]


def test_a_pool_below_0_is_said() -> None:
    found = ledger(P10, Shape(utilization=0.9), said("0.001"), price())
    assert pool(found.ranks["0"]).bytes < 0
    assert any("nothing is left for KV" in note for note in found.notes)
    assert found.kv_pool_tokens == 0
    assert closes(found.ranks["0"])


# V0, V1, the dummy block, swap


def test_the_dummy_block_as_printed() -> None:
    block = Printed(16 * MIB, 5243)
    rank = first(P18, Shape(utilization=0.9), said("79.16", dummy_block=block))
    assert charge(rank, "dummy_block") == Term("dummy_block", 16 * MIB, "log", "--block-size", rounding=5243)
    assert pool(rank).rounding == 5243
    assert pool(rank).bytes // BLOCK == 4102
    assert closes(rank)


def test_a_dummy_block_of_unknown_size_leaves_the_partition_open() -> None:
    found = ledger(P18, Shape(utilization=0.9), said("50"))
    rank = found.ranks["0"]
    assert (rank.pool, rank.kv_pool, rank.within) == (None, None, ())
    assert [term.name for term in rank.charges] == ["graph_reserve"]
    assert "rank 0: the size of the dummy block is not known: the partition is open" in found.notes


@pytest.mark.parametrize(
    ("environ", "facts", "core", "names", "swaps"),
    [
        ({}, {}, None, None, False),
        ({"VLLM_USE_V1": "0"}, {}, None, [], True),
        ({"VLLM_USE_V1": "1"}, {}, None, ["dummy_block"], False),
        ({}, {}, "V0", [], True),
        ({"VLLM_USE_V1": "0"}, {}, "V1", ["dummy_block"], False),
        ({"VLLM_USE_V1": "0"}, {"dummy_block": Printed(BLOCK)}, None, ["dummy_block"], False),
    ],
)
@pytest.mark.parametrize("by", [F21, F22])
def test_1_21_and_1_22_must_tell_v0_from_v1(
    by: Gaudi, environ: dict[str, str], facts: dict[str, Any], core: str | None, names: list[str] | None, swaps: bool
) -> None:
    report = replace(said("50", **facts), core=core)
    found = ledger(by, Shape(utilization=0.9, environ=environ), report, price())
    rank = found.ranks["0"]
    assert [term.name for term in rank.charges] == ["graph_reserve", *(names or [])]
    assert (rank.pool is None) is (names is None)
    assert any("tells V0 from V1" in note for note in found.notes) is (names is None)
    assert bool(found.host) is swaps


def test_older_releases_have_no_dummy_block() -> None:
    assert [term.name for term in first(F17, Shape(), said("50"), price()).charges] == ["graph_reserve"]
    assert [term.name for term in first(P10, Shape(), said("50"), price()).charges] == ["graph_reserve", "dummy_block"]


def test_swap_is_for_each_rank_and_in_whole_blocks() -> None:
    shape = Shape(given={"swap-space": "1"})
    found = ledger(F17, shape, said("50"), price(48 * MIB), ranks=2)
    assert [(term.name, term.bytes, term.source) for term in found.host] == [("swap", 2 * 21 * 48 * MIB, "flag")]
    unknown = ledger(F17, shape, said("50"), ranks=2)
    assert [term.bytes for term in unknown.host] == [2 * GIB]
    assert ledger(F17, shape, said("50"), price(), ranks=0).host == ()


# Margin and capture


@pytest.mark.parametrize(
    ("by", "environ", "captured", "margin"),
    [
        (F17, {}, None, 5.0),
        (F17, {}, "18.5", 4.5),
        (F19, {}, None, 5.0),
        (F22, {}, None, None),
        (F22, {}, "1.5", 8.0),
        (P27, {}, None, None),
        (F17, {"VLLM_SKIP_WARMUP": "true"}, None, None),
        (F19, {RESERVE: "0"}, "0.5", 4.5),
    ],
)
def test_margin(by: Gaudi, environ: dict[str, str], captured: str | None, margin: float | None) -> None:
    facts = {} if captured is None else {"graph_capture": gib(captured)}
    rank = first(by, Shape(utilization=0.9, environ=environ), said("50", **facts), price())
    if margin is None:
        assert rank.margin is None
    else:
        assert rank.margin is not None
        assert rank.margin / GIB == pytest.approx(margin, abs=1e-8)


def test_from_1_22_the_reserve_is_said_to_bound_nothing() -> None:
    bounded, unbounded = (ledger(by, Shape(), said("50")).notes for by in (F21, F22))
    assert not any("without a budget" in note for note in bounded)
    assert any("without a budget" in note for note in unbounded)
    skipped = ledger(F22, Shape(environ={"VLLM_SKIP_WARMUP": "TRUE"}), said("50"))
    assert any("VLLM_SKIP_WARMUP" in note for note in skipped.notes)
    assert skipped.graphs is None


def test_the_profile_run_takes_nothing_from_0_14_1_on() -> None:
    told = [any("profile run" in note for note in ledger(by, Shape(), said("50")).notes) for by in (P10, P14, P27, F22)]
    assert told == [False, True, True, False]


def test_the_shares_take_in_what_whole_blocks_leave() -> None:
    known, unknown = (first(F19, Shape(utilization=0.9), said("50.1"), constants) for constants in (price(), None))
    rest = pool(known).bytes % BLOCK
    assert 0 < rest < BLOCK
    assert sum(term.bytes for term in known.within) == charge(known, "graph_reserve").bytes + rest
    assert sum(term.bytes for term in unknown.within) == charge(unknown, "graph_reserve").bytes
    assert known.within[0].bytes == pytest.approx(0.3 * (charge(known, "graph_reserve").bytes + rest), abs=1)


# Graphs


def test_the_engine_s_own_number_of_graphs_counts() -> None:
    assert ledger(F17, Shape(), replace(said("50"), graphs=12)).graphs == 12


def test_the_engine_s_own_buckets_count_until_it_says_what_it_captured() -> None:
    report = replace(said("50"), prompt_buckets=24, decode_buckets=48)
    found = ledger(F17, Shape(), report)
    assert found.graphs == 72
    assert "24 prompt and 48 decode buckets are warmed up" in found.notes
    assert ledger(F17, Shape(), replace(report, graphs=63)).graphs == 63
    assert ledger(F17, Shape(enforce_eager=True), report).graphs is None
    assert ledger(F17, Shape(), replace(report, decode_buckets=None)).graphs is None


def test_graphs_are_not_counted_without_what_they_depend_on() -> None:
    found = ledger(F17, Shape(max_num_seqs=4), said("50"))
    assert found.graphs is None
    missing = "max_model_len, max_num_batched_tokens, num_blocks"
    assert f"how many graphs there will be is not known without {missing}" in found.notes


def test_graphs_outside_lazy_mode_and_from_a_file() -> None:
    shape = Shape(max_num_seqs=4, max_model_len=2048, max_num_batched_tokens=2048, environ={"PT_HPU_LAZY_MODE": "0"})
    eager = ledger(F19, shape, said("50", kv_blocks=1000))
    assert eager.graphs is None
    assert any("PT_HPU_LAZY_MODE" in note for note in eager.notes)
    filed = replace(shape, environ={"VLLM_BUCKETING_FROM_FILE": "buckets.txt"})
    found = ledger(P27, filed, said("50", kv_blocks=1000))
    assert found.graphs is None
    assert any("from a file" in note for note in found.notes)
    newer = ledger(P17, replace(shape, environ={}), said("50", kv_blocks=1000))
    assert newer.graphs is not None


def test_the_release_itself_cuts_the_buckets() -> None:
    shape = Shape(max_num_seqs=256, max_model_len=2048, max_num_batched_tokens=8192)
    report = said("50", kv_blocks=1519)
    counts = {
        text: ledger(F21, shape, replace(report, release=text)).graphs
        for text in ("1.21.0", "1.21.2", "1.22.0", "main")
    }
    assert counts["1.21.0"] == counts["1.22.0"] == counts["main"]  # the first the law holds for
    assert counts["1.21.2"] is not None
    assert counts["1.21.0"] is not None
    assert counts["1.21.2"] == counts["1.21.0"] - 4
    tagged = ledger(F21, shape, replace(report, version="0.8.5.post1+Gaudi-1.21.3"))
    assert tagged.graphs == counts["1.21.2"]
    told = ledger(F21, shape, replace(report, version="0.8.5"))
    assert told.graphs == counts["1.21.0"]


# Overrides, hybrids, wrong input


def test_a_number_of_blocks_stands_in_place_of_the_pool() -> None:
    shape = Shape(utilization=0.9, num_gpu_blocks_override=100)
    found = ledger(F19, shape, said("50"), price())
    rank = found.ranks["0"]
    assert (rank.pool, rank.margin, found.kv_pool_tokens) == (None, None, 12_800)
    assert rank.kv_pool == Term("kv_pool", 100 * BLOCK, "flag", "--num-gpu-blocks-override")
    assert first(F19, shape, said("50")).kv_pool is None
    assert any("--num-gpu-blocks-override" in note for note in found.notes)


def test_an_explicit_kv_size_is_ignored_and_that_is_said() -> None:
    found = ledger(P27, Shape(kv_cache_memory_bytes=GIB), said("50"), price())
    assert pool(found.ranks["0"]).bytes > 40 * GIB
    assert any("no notice of --kv-cache-memory-bytes" in note for note in found.notes)


def test_hybrid_factors() -> None:
    assert gdn_factor(2 * MIB, 2 * MIB, MIB) == pytest.approx(0.667, abs=5e-4)
    assert gdn_factor(4 * MIB, 2 * MIB, MIB) == 1.0
    assert gdn_factor(2 * MIB, 2 * MIB, MIB, compact=True) == 1.0
    assert mamba2_factor(3 * MIB, MIB) == 0.75
    with pytest.raises(LawError, match="recurrent must be above 0, not 0"):
        gdn_factor(2 * MIB, 2 * MIB, 0)
    with pytest.raises(LawError, match="attention_page must be above 0, not -1"):
        mamba2_factor(-1, MIB)
    with pytest.raises(LawError, match=r"hybrid_factor must be above 0 and at most 1, not 1\.2"):
        scaled(Term("kv_pool", GIB, "log"), 1.2)


def test_a_hybrid_s_pool_is_scaled_as_its_scheduler_counts_from_0_18_1_on() -> None:
    report = said("50", hybrid_factor=0.667)
    older, newer = (first(by, Shape(utilization=0.9), report, price()) for by in (P17, P18))
    assert older.kv_pool == older.pool
    assert newer.pool == older.pool
    assert newer.kv_pool is not None
    assert newer.kv_pool.bytes == int(pool(newer).bytes * 0.667)
    assert newer.kv_pool.rounding == round(pool(newer).bytes * 0.0005)
    assert closes(newer)


@pytest.mark.parametrize(
    ("by", "text", "message"),
    [
        (F19, "much", "VLLM_GRAPH_RESERVED_MEM must be a number, not 'much': the engine does not start"),
        (P14, "much", "VLLM_GRAPH_RESERVED_MEM must be a number"),
        (P17, "1.5", r"VLLM_GRAPH_RESERVED_MEM must be 0 to 1, not 1\.5"),
        (F19, "-0.1", r"VLLM_GRAPH_RESERVED_MEM must be 0 to 1, not -0\.1"),
        (F19, "nan", "VLLM_GRAPH_RESERVED_MEM must be 0 to 1, not nan"),
    ],
)
def test_a_reserve_that_cannot_be_is_named(by: Gaudi, text: str, message: str) -> None:
    with pytest.raises(LawError, match=message):
        ledger(by, Shape(environ={RESERVE: text}), said("50"))


def test_from_0_17_1_a_reserve_that_is_no_number_is_the_default_and_that_is_said() -> None:
    found = ledger(P17, Shape(environ={RESERVE: "much"}), said("50"), price())
    assert charge(found.ranks["0"], "graph_reserve").source == "default"
    assert any(note.startswith("VLLM_GRAPH_RESERVED_MEM is no number") for note in found.notes)


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        (Shape(utilization=0), "utilization must be above 0"),
        (Shape(environ={"VLLM_GRAPH_PROMPT_RATIO": "x"}), "VLLM_GRAPH_PROMPT_RATIO must be a number, not 'x'"),
        (Shape(environ={"VLLM_GRAPH_PROMPT_RATIO": "inf"}), "VLLM_GRAPH_PROMPT_RATIO must be a number, not 'inf'"),
        (Shape(environ={"VLLM_GRAPH_PROMPT_RATIO": "2"}), r"VLLM_GRAPH_PROMPT_RATIO must be 0 to 1, not 2\.0"),
        (Shape(given={"swap-space": "lots"}), "swap-space must be a number"),
        (Shape(block_size=0), "block_size must be"),
    ],
)
def test_a_setting_that_cannot_be_is_named(shape: Shape, message: str) -> None:
    with pytest.raises(LawError, match=message):
        ledger(F19, shape, said("50"), price())


@pytest.mark.parametrize(
    ("by", "shape", "why"),
    [
        (F19, Shape(given={"max-num-prefill-seqs": "few"}), "max-num-prefill-seqs must be a number, not 'few'"),
        (F19, Shape(environ={"VLLM_DECODE_BS_BUCKET_STEP": "x"}), "VLLM_DECODE_BS_BUCKET_STEP must be a whole number"),
        (P27, Shape(environ={"VLLM_BUCKETING_STRATEGY": "x"}), "VLLM_BUCKETING_STRATEGY must be exp, lin or pad"),
    ],
)
def test_a_setting_of_the_buckets_that_is_wrong_spoils_only_their_number(by: Gaudi, shape: Shape, why: str) -> None:
    sized = replace(shape, max_num_seqs=4, max_model_len=2048, max_num_batched_tokens=2048)
    found = ledger(by, sized, said("50", kv_blocks=1000), price())
    assert found.graphs is None
    assert any(why in note for note in found.notes)
    assert closes(found.ranks["0"])


def test_a_dummy_block_that_cannot_be_is_named() -> None:
    with pytest.raises(LawError, match="dummy_block must not be negative, not -1"):
        ledger(P27, Shape(), said("50", dummy_block=Printed(-1)))


def test_free_memory_that_cannot_be_is_named() -> None:
    with pytest.raises(LawError, match="free_after_load must be above 0, not 0"):
        ledger(F19, Shape(), said("0"))


def test_settings_of_the_capture() -> None:
    assert capture_settings(Shape(), 0.3) == (0.3, ("min_tokens", "max_bs"), 0.02)
    environ = {
        "VLLM_GRAPH_PROMPT_RATIO": "0.8",
        "VLLM_GRAPH_PROMPT_STRATEGY": "max_bs",
        "VLLM_GRAPH_DECODE_STRATEGY": "min_tokens",
        "VLLM_GRAPH_MEM_MARGIN": "0.1",
    }
    assert capture_settings(Shape(environ=environ), 0.3) == (0.8, ("max_bs", "min_tokens"), 0.1)


def test_a_prefill_batch_of_ones_own() -> None:
    shape = Shape(
        max_num_seqs=256, max_model_len=4096, max_num_batched_tokens=2048, given={"max-num-prefill-seqs": "1"}
    )
    found = ledger(F19, shape, said("50", kv_blocks=3969))
    assert "8 prompt and 416 decode buckets are warmed up" in found.notes


class Asked(Mapping[str, str]):
    """Settings that remember which names were asked for."""

    def __init__(self, **settings: str) -> None:
        self.settings, self.names = settings, set[str]()

    def __getitem__(self, name: str) -> str:
        self.names.add(name)
        return self.settings[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.settings)

    def __len__(self) -> int:
        return len(self.settings)


@pytest.mark.parametrize("strategy", ["exp", "lin", "pad"])
@pytest.mark.parametrize("by", LAWS)
def test_every_setting_the_law_asks_for_is_one_that_is_kept(by: Gaudi, strategy: str) -> None:
    environ, flags = Asked(VLLM_BUCKETING_STRATEGY=strategy, VLLM_USE_V1="0"), Asked()
    shape = Shape(
        max_num_seqs=4, max_model_len=2048, max_num_batched_tokens=2048, environ=environ, given=flags, utilization=0.9
    )
    ledger(by, shape, said("50", kv_blocks=1000), price())
    capture_settings(shape, 0.3)
    assert "VLLM_GRAPH_RESERVED_MEM" in environ.names
    assert "enable-prefix-caching" in flags.names
    assert environ.names <= ENVIRON_ALLOWED
    assert flags.names <= GIVEN_ALLOWED


# The table and its properties


@pytest.mark.parametrize("flavour", ["gaudi", "gaudi_plugin"])
def test_the_releases_neither_overlap_nor_leave_gaps(flavour: str) -> None:
    rows = [law for law in LAWS if law.flavour == flavour]
    assert [row.until for row in rows[:-1]] == [row.since for row in rows[1:]]
    assert rows[-1].until is None
    assert rows[-1].examined_until is not None
    assert rows[-1].examined_until > rows[-1].since
    assert {row.name for row in rows} == {flavour}


FREE = st.integers(GIB, 128 * GIB)
RATIO = st.floats(0.01, 1.0)


@given(st.sampled_from(LAWS), FREE, RATIO, st.floats(0.0, 1.0), st.integers(0, 64 * MIB))
def test_the_partition_closes_to_the_byte(by: Gaudi, free: int, utilization: float, reserve: float, dummy: int) -> None:
    report = BootReport(common=RankFacts(free_after_load=Printed(free), dummy_block=Printed(dummy)), core="V1")
    rank = first(by, Shape(utilization=utilization, environ={RESERVE: repr(reserve)}), report)
    assert closes(rank)
    kv = pool(rank).bytes
    assert kv == pytest.approx(free * utilization * (1 - reserve) - charge(rank, "dummy_block").bytes, abs=2)
    assert rank.requested == int(free * utilization)


@given(st.sampled_from(LAWS), FREE, RATIO, RATIO)
def test_margin_never_rises_with_utilization(by: Gaudi, free: int, one: float, other: float) -> None:
    report = BootReport(common=RankFacts(free_after_load=Printed(free)), core="V0")
    low, high = sorted((one, other))
    margins = [
        first(by, Shape(utilization=share, environ={RESERVE: "0"}, enforce_eager=True), report, price()).margin
        for share in (low, high)
    ]
    assert margins[0] is not None
    assert margins[1] is not None
    assert margins[1] <= margins[0]


@given(st.sampled_from(LAWS), FREE, st.floats(0.0, 1.0), st.floats(0.0, 1.0))
def test_blocks_never_rise_with_the_reserve(by: Gaudi, free: int, one: float, other: float) -> None:
    report = BootReport(common=RankFacts(free_after_load=Printed(free)), core="V1")
    low, high = sorted((one, other))
    tokens = [
        ledger(by, Shape(utilization=0.9, environ={RESERVE: repr(share)}), report, price()).kv_pool_tokens
        for share in (low, high)
    ]
    assert tokens[0] is not None
    assert tokens[1] is not None
    assert tokens[1] <= tokens[0]
