"""The laws of TPUs by version, held to printed figures of public starts."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, strategies as st

from budget_exporter.budget import tpu_kv
from budget_exporter.budget.laws.tpu import LAWS, Tpu
from budget_exporter.errors import LawError
from budget_exporter.facts.boot import BootReport, Chips, Printed, RankFacts
from budget_exporter.facts.engine import Shape
from budget_exporter.facts.ledger import Constants, Ledger, RankInput, RankLedger
from budget_exporter.units import GIB, MIB, printed_bytes, rounding_of

LIMIT = 33_285_996_544
"""31 GiB."""
SHAPE = Shape(utilization=0.9)


def gib(value: float) -> int:
    return round(value * GIB)


def law(*version: int) -> Tpu:
    return next(each for each in LAWS if each.since <= version and (each.until is None or version < each.until))


def said(consumed: int | None, rounding: int = 0, **more: Any) -> BootReport:
    figure = None if consumed is None else Printed(consumed, rounding)
    return BootReport(common=RankFacts(consumed=figure), **more)


def ledger(
    consumed: int | None = gib(3.74),
    version: tuple[int, ...] = (0, 32),
    shape: Shape = SHAPE,
    chips: int = 4,
    said_of_all: Chips | None = None,
    **more: Any,
) -> Ledger:
    ranks = [RankInput(str(n), gib(31.25)) for n in range(chips)]
    return law(*version).ledger(shape, ranks, said(consumed, chips=said_of_all, **more), None)


def only(
    consumed: int | None = gib(3.74), version: tuple[int, ...] = (0, 32), shape: Shape = SHAPE, **more: Any
) -> RankLedger:
    return ledger(consumed, version, shape, 1, **more).ranks["0"]


# The formulas


def test_tpu_inference_reproduces_public_starts() -> None:
    """8 devices, 757.97 GiB and 64.9 GiB in all, at 0.97: 670.33 GiB; 647.4 of 757.97 at 0.8: 41.02 GiB short."""
    pool = tpu_kv.tpu_inference([gib(757.97 / 8)] * 8, [gib(64.9 / 8)] * 8, 0.97)
    assert pool / GIB == pytest.approx(670.33, abs=0.005)
    assert tpu_kv.tpu_inference([gib(757.97)], [gib(647.4)], 0.8) / GIB == pytest.approx(-41.02, abs=0.005)


def test_tpu_commons_took_a_share_of_what_was_free() -> None:
    """Four chips of 31.25 GiB with 3.74 used, at 0.9: 99.04 GiB, and 28.49 in use on each chip afterwards."""
    pool = tpu_kv.tpu_inference_before([gib(31.25)] * 4, [gib(3.74)] * 4, 0.9)
    assert pool / GIB == pytest.approx(99.04, abs=0.005)
    assert 3.74 + pool / 4 / GIB == pytest.approx(28.49, abs=0.02)


def test_an_offload_connector_stages_pages_of_every_layer() -> None:
    """The line of a public start: 4294967296 bytes for 128 pages."""
    assert tpu_kv.staging(128, 32, MIB) == 4_294_967_296


def test_torch_xla_pads_heads_and_never_goes_below_nothing() -> None:
    whole = int(int(100 * GIB * 0.9) - 10 * GIB * 1.02)
    assert tpu_kv.torch_xla(100 * GIB, 10 * GIB, 0.9) == whole
    assert tpu_kv.torch_xla(100 * GIB, 10 * GIB, 0.9, 64) == whole // 2
    assert tpu_kv.torch_xla(100 * GIB, 10 * GIB, 0.9, 192) == whole * 192 // 256
    assert tpu_kv.torch_xla(100 * GIB, 95 * GIB, 0.9) == 0
    with pytest.raises(LawError, match="head_size must be above 0, not 0"):
        tpu_kv.torch_xla(GIB, 0, 0.9, 0)


def test_v0_floors_blocks_to_a_multiple_of_eight() -> None:
    assert tpu_kv.v0_blocks(16 * GIB, 10 * GIB, 0.9, 100 * MIB) == 40
    assert tpu_kv.v0_blocks(16 * GIB, 20 * GIB, 0.9, 100 * MIB) == 0
    with pytest.raises(LawError, match="block_bytes must be above 0, not 0"):
        tpu_kv.v0_blocks(GIB, 0, 0.9, 0)


# tpu-inference


def test_the_ledger_closes_and_names_the_pool_of_all_chips() -> None:
    found = ledger()
    for rank in found.ranks.values():
        assert rank.pool is not None
        assert rank.kv_pool == rank.pool
        assert rank.pool.bytes + sum(term.bytes for term in rank.charges) == rank.requested
        assert rank.bootable is True
    assert found.notes == ("the engine adds up all local chips: 97.54 GiB of KV pool",)
    assert found.law == "tpu_inference"
    assert found.utilization is not None
    assert found.utilization.source == "flag"


def test_what_all_chips_hold_together_is_only_that_of_a_chip_where_it_is_alone() -> None:
    used = Printed(gib(14.96), 5)
    chips = Chips(requested=Printed(gib(112.5)), used=used)
    alone = ledger(None, chips=1, said_of_all=chips).ranks["0"]
    assert [(term.name, term.bytes, term.rounding) for term in alone.charges] == [("consumed", used.bytes, 5)]
    several = ledger(None, chips=4, said_of_all=chips)
    assert all(rank.pool is None for rank in several.ranks.values())
    note = "the engine says of all local chips together: 14.96 GiB in use of 112.50 GiB requested"
    assert note in several.notes
    assert note not in ledger(gib(3.74), chips=4, said_of_all=chips).notes
    for part in (None, Chips(used=used), Chips(requested=used)):
        assert not any("all local chips together" in each for each in ledger(None, chips=4, said_of_all=part).notes)


@pytest.mark.parametrize(("version", "share"), [((0, 12), 0.9), ((0, 19), 0.9), ((0, 20), 0.92), ((0, 32), 0.92)])
def test_the_default_utilization_is_vllm_s_of_the_release(version: tuple[int, ...], share: float) -> None:
    found = ledger(version=version, shape=Shape())
    assert found.utilization is not None
    assert (found.utilization.source, found.utilization_ratio) == ("default", share)


def test_chips_that_hold_too_much_together_do_not_start() -> None:
    found = ledger(gib(30))
    assert found.notes[0].endswith("of KV pool: the engine refuses to start")
    assert {rank.bootable for rank in found.ranks.values()} == {False}


def test_one_full_chip_among_others_is_no_reason_to_refuse() -> None:
    facts = {n: RankFacts(consumed=Printed(gib(30 if n == 0 else 3))) for n in range(4)}
    ranks = [RankInput(str(n), gib(31.25)) for n in range(4)]
    found = law(0, 32).ledger(SHAPE, ranks, BootReport(ranks=facts), None)
    assert {rank.bootable for rank in found.ranks.values()} == {True}
    pool = found.ranks["0"].pool
    assert pool is not None
    assert pool.bytes < 0


def test_a_sum_within_its_rounding_is_open() -> None:
    edge = int(gib(31.25) * 0.9)
    assert {rank.bootable for rank in ledger(edge, rounding=0).ranks.values()} == {False}
    near = Printed(edge - 1, rounding_of("3.74"))
    report = BootReport(common=RankFacts(consumed=near))
    assert law(0, 32).ledger(SHAPE, [RankInput("0", gib(31.25))], report, None).ranks["0"].bootable is None


def test_a_chip_that_says_nothing_stays_open() -> None:
    found = ledger(None)
    assert found.ranks["0"].pool is None
    assert found.notes == ("every rank: what the chip held after loading is not known: the partition is open",)
    assert ledger(chips=0).notes == ()


def test_an_offload_connector_leaves_the_pool_open_from_0_20() -> None:
    shape = replace(SHAPE, layout_flags=("kv-transfer-config",))
    assert ledger(version=(0, 19), shape=shape).ranks["0"].pool is not None
    found = ledger(version=(0, 20), shape=shape)
    assert found.ranks["0"].pool is None
    assert "TPU_OFFLOAD_NUM_STAGING_BLOCKS" in found.notes[0]


def test_flags_that_count_for_nothing_or_in_place_of_the_pool_are_said() -> None:
    found = ledger(shape=replace(SHAPE, kv_cache_memory_bytes=GIB, num_gpu_blocks_override=64))
    rank = found.ranks["0"]
    assert rank.pool is not None
    assert rank.kv_pool is None
    assert any("--num-gpu-blocks-override" in note for note in found.notes)
    assert "the TPU worker takes no notice of --kv-cache-memory-bytes" in found.notes


# torch_xla and V0


def test_torch_xla_s_v1_has_two_per_cent_of_headroom() -> None:
    rank = only(gib(10), (0, 8, 5), core="V1")
    assert [term.name for term in rank.charges] == ["consumed", "headroom"]
    assert rank.kv_pool is not None
    assert rank.kv_pool == rank.pool
    assert rank.kv_pool.bytes == tpu_kv.torch_xla(gib(31.25), gib(10), 0.9)
    assert only(gib(28), (0, 8, 5), core="V1").bootable is False
    rounding = rounding_of("10.00")
    coarse = only(printed_bytes("10.00"), (0, 8, 5), core="V1", rounding=rounding).pool
    assert coarse is not None
    assert coarse.rounding == pytest.approx(1.02 * rounding, abs=1)


@pytest.mark.parametrize("version", [(0, 9, 2), (0, 10), (0, 11, 0)])
def test_where_heads_are_padded_the_kv_pool_needs_the_head_s_size(version: tuple[int, ...]) -> None:
    found = ledger(gib(10), version, chips=1, core="V1")
    rank = found.ranks["0"]
    assert rank.pool is not None
    assert rank.kv_pool is None
    assert any("for heads of 128, less in proportion where padded" in note for note in found.notes)
    assert "with tpu-commons in its place KV is a share of what is free after loading" in found.notes


def test_environment_or_log_tell_v0_from_v1() -> None:
    unknown = ledger(version=(0, 9, 2), chips=1)
    assert unknown.ranks["0"].pool is None
    assert "rank 0: neither log nor environment tells V0 from V1: the partition is open" in unknown.notes
    for asked, names in (("0", ["consumed"]), ("1", ["consumed", "headroom"])):
        rank = only(version=(0, 9, 1), shape=replace(SHAPE, environ={"VLLM_USE_V1": asked}))
        assert [term.name for term in rank.charges] == names
    logged = only(version=(0, 9, 1), shape=replace(SHAPE, environ={"VLLM_USE_V1": "1"}), core="V0")
    assert len(logged.charges) == 1


def test_v0_has_blocks_by_eight_and_swaps() -> None:
    constants = Constants("LlamaForCausalLM", None, 1, "test", kv_bytes_per_token=131_072)
    ranks = [RankInput("0", gib(31.25))]
    report = said(gib(10), core="V0")
    found = law(0, 8, 5).ledger(SHAPE, ranks, report, constants)
    block = 16 * 131_072
    pool = found.ranks["0"].kv_pool
    assert pool is not None
    assert pool.bytes == tpu_kv.v0_blocks(gib(31.25), gib(10), 0.9, block) * block
    assert pool.bytes % (8 * block) == 0
    assert [term.name for term in found.host] == ["swap"]
    wider = law(0, 8, 5).ledger(replace(SHAPE, block_size=32), ranks, report, constants).ranks["0"].kv_pool
    assert wider is not None
    assert wider.bytes % (8 * 2 * block) == 0
    without = law(0, 8, 5).ledger(SHAPE, ranks, report, None)
    assert without.ranks["0"].kv_pool is None
    assert "rank 0: the KV pool has a multiple of 8 blocks, whose size is not known" in without.notes


# Properties


@given(st.floats(0.01, 1.0), st.integers(0, 64 * GIB), st.sampled_from(LAWS), st.sampled_from(["V0", "V1"]))
def test_charges_and_pool_are_the_request(utilization: float, consumed: int, row: Tpu, core: str) -> None:
    found = row.ledger(Shape(utilization=utilization), [RankInput("0", LIMIT)], said(consumed, core=core), None)
    rank = found.ranks["0"]
    assert rank.pool is not None
    assert rank.pool.bytes + sum(term.bytes for term in rank.charges) == rank.requested


@given(st.floats(0.01, 1.0), st.integers(0, 64 * GIB))
def test_torch_xla_s_pool_is_the_formula_s_where_there_is_one(utilization: float, consumed: int) -> None:
    found = law(0, 8, 5).ledger(
        Shape(utilization=utilization), [RankInput("0", LIMIT)], said(consumed, core="V1"), None
    )
    pool = found.ranks["0"].pool
    assert pool is not None
    assert max(pool.bytes, 0) == tpu_kv.torch_xla(LIMIT, consumed, utilization)


@given(st.floats(0.01, 0.99), st.floats(0.001, 0.01))
def test_margin_never_rises_with_utilization(utilization: float, more: float) -> None:
    low, high = (only(GIB, shape=Shape(utilization=share)).margin for share in (utilization, utilization + more))
    assert low is not None
    assert high is not None
    assert high <= low


def test_the_rows_share_out_all_versions() -> None:
    for before, after in pairwise(LAWS):
        assert before.until == after.since
    assert (LAWS[0].since, LAWS[-1].until, LAWS[-1].examined_until) == ((0, 8, 5), None, (0, 33))
