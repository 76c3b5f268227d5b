"""The laws of TPUs and CPUs, held to printed figures and to real starts on CPU."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from budget_exporter.budget.laws import tpu, vllm_cpu
from budget_exporter.errors import LawError
from budget_exporter.facts.boot import BootReport, Printed, RankFacts
from budget_exporter.facts.engine import Shape
from budget_exporter.facts.ledger import Ledger, RankInput
from budget_exporter.units import GIB, MIB

RANK = RankInput("0", 64 * GIB, 60 * GIB)


def gib(value: float) -> int:
    return round(value * GIB)


def said(consumed: int | None) -> BootReport:
    figure = None if consumed is None else Printed(consumed)
    return BootReport(version="0.32.0", ranks={0: RankFacts(consumed=figure)})


def cpu(shape: Shape, consumed: int | None = GIB, rank: RankInput = RANK, row: int = 0) -> Ledger:
    return vllm_cpu.LAWS[row].ledger(shape, [rank], said(consumed), None)


def test_tpu_inference_reproduces_public_starts() -> None:
    """Issue 1285: 8 devices, 757.97 GiB and 64.9 GiB in all, at 0.97: 670.33 GiB; issue 763: 41.02 GiB short at 0.8."""
    assert tpu.tpu_inference([gib(757.97 / 8)] * 8, [gib(64.9 / 8)] * 8, 0.97) / GIB == pytest.approx(670.33, abs=0.005)
    assert tpu.tpu_inference([gib(757.97)], [gib(647.4)], 0.8) / GIB == pytest.approx(-41.02, abs=0.005)


def test_tpu_inference_before_its_change_took_a_share_of_what_was_free() -> None:
    """Issue 145: four chips of 31.25 GiB with 3.74 used, at 0.9: 99.04 GiB."""
    pool = tpu.tpu_inference_before([gib(31.25)] * 4, [gib(3.74)] * 4, 0.9)
    assert pool / GIB == pytest.approx(99.04, abs=0.005)


def test_torch_xla_pads_heads_and_never_goes_below_nothing() -> None:
    assert tpu.torch_xla(100 * GIB, 10 * GIB, 0.9) == int(int(100 * GIB * 0.9) - 10 * GIB * 1.02)
    assert tpu.torch_xla(100 * GIB, 10 * GIB, 0.9, 64) == tpu.torch_xla(100 * GIB, 10 * GIB, 0.9) // 2
    assert tpu.torch_xla(100 * GIB, 95 * GIB, 0.9) == 0
    with pytest.raises(LawError, match="head_size"):
        tpu.torch_xla(GIB, 0, 0.9, 0)


def test_v0_floors_blocks_to_a_multiple_of_eight() -> None:
    assert tpu.v0_blocks(16 * GIB, 10 * GIB, 0.9, 100 * MIB) == 40
    assert tpu.v0_blocks(16 * GIB, 20 * GIB, 0.9, 100 * MIB) == 0
    with pytest.raises(LawError, match="block_bytes"):
        tpu.v0_blocks(GIB, 0, 0.9, 0)


def tpu_ledger(consumed: int | None, utilization: float | None = 0.9) -> Ledger:
    ranks = [RankInput(str(n), gib(31.25)) for n in range(4)]
    report = BootReport(common=RankFacts(consumed=None if consumed is None else Printed(consumed)))
    return tpu.LAWS[0].ledger(Shape(utilization=utilization), ranks, report, None)


def test_the_tpu_ledger_closes_and_names_the_pool_of_all_chips() -> None:
    ledger = tpu_ledger(gib(3.74))
    for rank in ledger.ranks.values():
        assert rank.pool is not None
        assert rank.pool.bytes + sum(term.bytes for term in rank.charges) == rank.requested
    assert ledger.notes == ("the engine adds up all local chips: 97.54 GiB of KV pool",)
    assert ledger.utilization is not None
    assert ledger.utilization.source == "flag"


def test_a_tpu_that_holds_too_much_does_not_start_and_one_that_says_nothing_stays_open() -> None:
    assert tpu_ledger(gib(30)).notes[0].endswith("of KV pool: the engine refuses to start")
    ledger = tpu_ledger(None, None)
    assert ledger.ranks["0"].pool is None
    assert ledger.notes == ("every rank: what the chip held after loading is not known: the partition is open",)
    assert ledger.utilization is not None
    assert (ledger.utilization.source, ledger.utilization_ratio) == ("default", 0.92)


def test_no_ranks_is_no_ledger_of_ranks() -> None:
    assert tpu.LAWS[0].ledger(Shape(), [], BootReport(), None).notes == ()


@pytest.mark.parametrize(
    ("flag", "space", "pool", "source"),
    [
        (64 * MIB, "", 64 * MIB, "flag"),
        (32 * MIB, "", 32 * MIB, "flag"),
        (128 * 1024, "0", 128 * 1024, "flag"),
        (None, "1", GIB, "env"),
        (64 * MIB, "2", 2 * GIB, "env"),
    ],
)
def test_an_explicit_cpu_pool_is_what_the_engine_sets(flag: int | None, space: str, pool: int, source: str) -> None:
    """As real CPU starts of 0.32 had it: 64M, 32M and 128K by flag, 1 GiB by environment, which beats the flag."""
    shape = Shape(kv_cache_memory_bytes=flag, environ={"VLLM_CPU_KVCACHE_SPACE": space})
    rank = cpu(shape).ranks["0"]
    assert rank.kv_pool is not None
    assert (rank.kv_pool.bytes, rank.kv_pool.source) == (pool, source)
    assert rank.requested == pool + GIB
    assert rank.margin == 60 * GIB - rank.requested


@pytest.mark.parametrize("text", ["1.5", "-1", "4GiB", "\N{SUPERSCRIPT TWO}", "9" * 30])
def test_a_cpu_space_that_is_no_whole_number_is_named(text: str) -> None:
    with pytest.raises(LawError, match="VLLM_CPU_KVCACHE_SPACE must be a whole number of GiB"):
        cpu(Shape(environ={"VLLM_CPU_KVCACHE_SPACE": text}))


def test_an_explicit_cpu_pool_above_what_is_available_is_said() -> None:
    """A real start of 0.32: 100 GiB asked of a node with 11.86 available of 13.34."""
    ledger = cpu(Shape(kv_cache_memory_bytes=100 * GIB), None, RankInput("0", gib(13.34), gib(11.86)))
    assert ledger.notes == ("rank 0: available 11.86 GiB < requested for KV and all else 100.00 GiB",)
    assert ledger.ranks["0"].bootable is None
    assert cpu(Shape(kv_cache_memory_bytes=GIB), None, RankInput("0", GIB)).ranks["0"].margin is None


def test_without_an_explicit_pool_the_cpu_law_is_the_request_less_what_was_consumed() -> None:
    """2.37 GiB requested and 0.66 consumed leave the 1.7 that the engine set."""
    rank = cpu(Shape(utilization=0.2), gib(0.66), RankInput("0", gib(2.37 / 0.2), gib(11))).ranks["0"]
    assert rank.pool is not None
    assert rank.pool.bytes == pytest.approx(gib(1.7), abs=gib(0.015))
    assert rank.margin == gib(11) - rank.requested


def test_the_check_at_init_is_gone_from_033() -> None:
    """A real start of 0.32 at 0.99: 11.76 of 13.34 GiB free, 13.2 asked: refused."""
    short = RankInput("0", gib(13.34), gib(11.76))
    refused = cpu(Shape(utilization=0.99), None, short)
    assert refused.ranks["0"].bootable is False
    assert "free 11.76 < budget 13.21 GiB" in refused.notes[0]
    assert "the partition is open" in refused.notes[1]
    assert cpu(Shape(utilization=0.99), None, short, row=1).ranks["0"].bootable is None
    unknown = cpu(Shape(), None, replace(short, free_at_init=None))
    assert unknown.ranks["0"].margin is None
    assert unknown.utilization_ratio == 0.92


def test_the_price_of_a_token_is_measured_where_the_pool_is_explicit() -> None:
    report = BootReport(kv_tokens=131072)
    ledger = vllm_cpu.LAWS[0].ledger(Shape(kv_cache_memory_bytes=64 * MIB), [RANK], report, None)
    assert ledger.kv_bytes_per_token == {"measured": 512}


@given(st.floats(0.01, 1.0), st.integers(0, 64 * GIB))
def test_charges_and_pool_are_the_request(utilization: float, consumed: int) -> None:
    for ledger in (cpu(Shape(utilization=utilization), consumed), tpu_ledger(consumed, utilization)):
        for rank in ledger.ranks.values():
            assert rank.pool is not None
            assert rank.pool.bytes + sum(term.bytes for term in rank.charges) == rank.requested


@given(st.floats(0.01, 0.99), st.floats(0.001, 0.01))
def test_margin_never_rises_with_utilization(utilization: float, more: float) -> None:
    pairs = [
        (cpu(Shape(utilization=utilization)), cpu(Shape(utilization=utilization + more))),
        (tpu_ledger(GIB, utilization), tpu_ledger(GIB, utilization + more)),
    ]
    for low, high in ((a.ranks["0"].margin, b.ranks["0"].margin) for a, b in pairs):
        assert low is not None
        assert high is not None
        assert high <= low
