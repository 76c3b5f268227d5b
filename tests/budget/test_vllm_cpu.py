"""The law of vLLM on CPUs by version, held to the KV bytes of real starts of 0.32."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, strategies as st

from budget_exporter.budget.laws.vllm_cpu import KV_SPACE, LAWS, VllmCpu, half_of_a_node
from budget_exporter.errors import LawError
from budget_exporter.facts.boot import BootReport, Printed, RankFacts
from budget_exporter.facts.engine import Shape
from budget_exporter.facts.ledger import Ledger, Origin, RankInput, RankLedger
from budget_exporter.units import GIB, MIB, human_int, printed_bytes, rounding_of

RANK = RankInput("0", 64 * GIB, 60 * GIB)
NOTHING = Shape()


def law(*version: int) -> VllmCpu:
    return next(each for each in LAWS if each.since <= version and (each.until is None or version < each.until))


def gib(value: float) -> int:
    return round(value * GIB)


def said(consumed: int | None, rounding: int = 0, **more: Any) -> BootReport:
    figure = None if consumed is None else Printed(consumed, rounding)
    return BootReport(version="0.32.0", ranks={0: RankFacts(consumed=figure)}, **more)


def ledger(
    shape: Shape = NOTHING, consumed: int | None = GIB, rank: RankInput = RANK, version: tuple[int, ...] = (0, 32)
) -> Ledger:
    return law(*version).ledger(shape, [rank], said(consumed), None)


def only(shape: Shape = NOTHING, version: tuple[int, ...] = (0, 32)) -> RankLedger:
    return ledger(shape, version=version).ranks["0"]


# Real starts


BOOTED = [
    pytest.param("64M", None, 1, 67_108_864, "flag", id="api2"),
    pytest.param("1000000", None, 1, 1_000_000, "flag", id="auto_len"),
    pytest.param("33554432", None, 1, 33_554_432, "flag", id="cfgfile"),
    pytest.param("64M", None, 1, 67_108_864, "flag", id="cpu_eager_kvbytes"),
    pytest.param("64M", None, 2, 67_108_864, "flag", id="cpu_tp2_eager"),
    pytest.param("64M", None, 1, 67_108_864, "flag", id="debug_json"),
    pytest.param("64M", None, 1, 67_108_864, "flag", id="devmode"),
    pytest.param("64M", None, 2, 67_108_864, "flag", id="dp2"),
    pytest.param(None, "1", 1, 1_073_741_824, "env", id="env_kvspace"),
    pytest.param("64M", None, 1, 67_108_864, "flag", id="hybrid_gemma2"),
    pytest.param("64M", None, 1, 67_108_864, "flag", id="hybrid_gemma2_nohybrid"),
    pytest.param("64M", None, 1, 67_108_864, "flag", id="json_log"),
    pytest.param("1638400", None, 1, 1_638_400, "flag", id="live_kill"),
    pytest.param("64M", None, 1, 67_108_864, "flag", id="mamba_qwen3next"),
    pytest.param("64M", None, 1, 67_108_864, "flag", id="mla_dsv2"),
    pytest.param("64M", None, 2, 67_108_864, "flag", id="pp2"),
]
"""Flag, environment, workers, and what the engine set as kv_cache_memory_bytes, each a start of 0.32 on a real CPU."""


@pytest.mark.parametrize(("flag", "environ", "workers", "pool", "source"), BOOTED)
def test_the_kv_bytes_of_a_real_start(
    flag: str | None, environ: str | None, workers: int, pool: int, source: str
) -> None:
    shape = Shape(
        utilization=0.5 if environ else None,
        kv_cache_memory_bytes=None if flag is None else human_int(flag),
        environ={} if environ is None else {KV_SPACE: environ},
    )
    node = RankInput("0", gib(13.34), gib(11.86))
    found = law(0, 32).ledger(shape, [replace(node, rank=str(n)) for n in range(workers)], BootReport(), None)
    assert len(found.ranks) == workers
    for rank in found.ranks.values():
        assert rank.kv_pool is not None
        assert (rank.kv_pool.bytes, rank.kv_pool.source, rank.requested) == (pool, source, pool)
        assert rank.bootable is None
    assert found.notes == ()


def test_a_real_start_that_asked_for_too_much_at_init() -> None:
    """At 0.99 with 11.76 of 13.34 GiB available 0.32 refused; 0.33 no longer looks."""
    short = RankInput("0", gib(13.34), gib(11.76))
    refused = ledger(Shape(utilization=0.99), None, short)
    assert refused.ranks["0"].bootable is False
    assert "free 11.76 < budget 13.21 GiB" in refused.notes[0]
    assert "the partition is open" in refused.notes[1]
    assert refused.ranks["0"].limit is not None
    newer = ledger(Shape(utilization=0.99), None, short, (0, 33)).ranks["0"]
    assert (newer.bootable, newer.limit) == (None, None)
    assert newer.requested == refused.ranks["0"].requested


def test_a_real_start_that_asked_for_more_kv_than_there_is() -> None:
    """100 GiB on a node with 11.86 of 13.34 available."""
    found = ledger(Shape(kv_cache_memory_bytes=100 * GIB), None, RankInput("0", gib(13.34), gib(11.86)))
    assert found.notes == ("rank 0: available 11.86 GiB < requested for KV and all else 100.00 GiB",)
    # What the rest takes is not told, so what would be left is not known.
    assert (found.ranks["0"].pool, found.ranks["0"].margin) == (None, None)


def test_a_real_start_without_an_explicit_size() -> None:
    """2.37 GiB requested, 0.66 consumed: 1.7 GiB for KV."""
    node = RankInput("0", gib(2.37 / 0.2), gib(11))
    report = said(printed_bytes("0.66"), rounding_of("0.66"))
    rank = law(0, 32).ledger(Shape(utilization=0.2), [node], report, None).ranks["0"]
    assert rank.pool is not None
    assert abs(rank.pool.bytes - gib(1.7)) <= gib(0.015)
    assert rank.pool.rounding == rounding_of("0.66")
    assert rank.margin == gib(11) - rank.requested


# By version


@pytest.mark.parametrize(
    ("version", "environ", "flag", "pool", "source"),
    [
        ((0, 8, 5), None, None, 4 * GIB, "default"),
        ((0, 9, 2), "0", None, 4 * GIB, "default"),
        ((0, 9, 2), "10", None, 10 * GIB, "env"),
        ((0, 9, 2), "", None, 4 * GIB, "default"),
        ((0, 10), "0", None, 0, "env"),
        ((0, 12), None, 64 * MIB, 4 * GIB, "default"),
        ((0, 13), None, None, 32 * GIB, "default"),
        ((0, 19, 1), None, 64 * MIB, 32 * GIB, "default"),
        ((0, 19, 1), "2", None, 2 * GIB, "env"),
        ((0, 20), None, 64 * MIB, 64 * MIB, "flag"),
        ((0, 20), "2", 64 * MIB, 2 * GIB, "env"),
        ((0, 33), "2", 64 * MIB, 2 * GIB, "env"),
        ((0, 33), "0", 64 * MIB, 0, "env"),
    ],
)
def test_what_is_set_or_the_release_s_default(
    version: tuple[int, ...], environ: str | None, flag: int | None, pool: int, source: str
) -> None:
    shape = Shape(kv_cache_memory_bytes=flag, environ={} if environ is None else {KV_SPACE: environ})
    rank = only(shape, version)
    assert rank.kv_pool is not None
    assert (rank.kv_pool.bytes, rank.kv_pool.source) == (pool, source)
    assert rank.requested == pool + GIB
    assert rank.bootable is (None if pool else False)


def test_a_pool_of_nothing_is_said() -> None:
    found = ledger(Shape(environ={KV_SPACE: "0"}))
    assert "rank 0: VLLM_CPU_KVCACHE_SPACE 0 leaves no memory for KV: the engine refuses to start" in found.notes


def test_before_0_20_shares_count_for_nothing() -> None:
    found = ledger(Shape(utilization=0.5, kv_cache_memory_bytes=MIB), version=(0, 19, 1))
    assert (found.utilization, found.utilization_ratio) == (None, None)
    assert found.notes == (
        "on CPUs --gpu-memory-utilization counts for nothing",
        "on CPUs --kv-cache-memory-bytes counts for nothing",
    )
    assert ledger(version=(0, 8, 5)).notes == ()


def test_half_of_a_node() -> None:
    assert half_of_a_node(1001, 2) == 250
    with pytest.raises(LawError, match="nodes must be at least 1, not 0"):
        half_of_a_node(GIB, 0)


def test_a_container_s_limit_is_looked_at_from_0_24() -> None:
    note = "a container's memory limit is not looked at: the share is of the node's memory"
    assert ledger(version=(0, 23)).notes == (note,)
    assert ledger(version=(0, 24)).notes == ()


def test_the_default_utilization_is_said_to_be_one() -> None:
    found = ledger()
    assert found.utilization is not None
    assert (found.utilization.source, found.utilization_ratio) == ("default", 0.92)
    assert found.utilization.bytes == found.ranks["0"].requested
    given_ = ledger(Shape(utilization=0.5)).utilization
    assert given_ is not None
    assert given_.source == "flag"


def test_a_worker_that_consumed_its_share_does_not_start() -> None:
    found = ledger(Shape(utilization=0.1), 7 * GIB)
    rank = found.ranks["0"]
    assert rank.pool is not None
    assert rank.pool.bytes < 0
    assert rank.bootable is False
    assert any("leaves nothing of the request for KV" in note for note in found.notes)


def test_what_is_available_may_be_unknown() -> None:
    unknown = replace(RANK, free_at_init=None)
    assert ledger(rank=unknown).ranks["0"].margin is None
    explicit = ledger(Shape(kv_cache_memory_bytes=GIB), None, unknown)
    assert (explicit.ranks["0"].margin, explicit.notes) == (None, ())


def test_an_override_of_the_blocks_leaves_the_pool_unknown() -> None:
    for shape in (Shape(num_gpu_blocks_override=512), Shape(num_gpu_blocks_override=512, kv_cache_memory_bytes=GIB)):
        found = ledger(shape)
        rank = found.ranks["0"]
        assert (rank.pool, rank.kv_pool, rank.margin) == (None, None, None)
        assert any("--num-gpu-blocks-override" in note for note in found.notes)


@pytest.mark.parametrize("text", ["1.5", "-1", "4GiB", "\N{SUPERSCRIPT TWO}", "9" * 30])
@pytest.mark.parametrize("version", [(0, 8, 5), (0, 13), (0, 33)])
def test_a_space_that_is_no_whole_number_is_named(text: str, version: tuple[int, ...]) -> None:
    with pytest.raises(LawError, match="VLLM_CPU_KVCACHE_SPACE must be a whole number of GiB"):
        ledger(Shape(environ={KV_SPACE: text}), version=version)


@pytest.mark.parametrize(
    ("version", "shape", "price"),
    [
        ((0, 32), Shape(kv_cache_memory_bytes=64 * MIB), 512),
        ((0, 32), Shape(kv_cache_memory_bytes=64 * MIB, environ={KV_SPACE: "1"}), 8192),
        ((0, 32), Shape(), None),
        ((0, 8, 5), Shape(), 32768),
        ((0, 13), Shape(), None),
        ((0, 13), Shape(environ={KV_SPACE: "1"}), 8192),
    ],
)
def test_the_price_of_a_token_is_measured_where_the_pool_is_exact(
    version: tuple[int, ...], shape: Shape, price: int | None
) -> None:
    found = law(*version).ledger(shape, [RANK], said(GIB, kv_tokens=131_072), None)
    assert found.kv_bytes_per_token == ({} if price is None else {"measured": price})


# Properties


@given(st.floats(0.01, 1.0), st.integers(0, 64 * GIB), st.sampled_from(LAWS), st.sampled_from([None, MIB, 90 * GIB]))
def test_charges_and_pool_are_the_request(utilization: float, consumed: int, row: VllmCpu, flag: int | None) -> None:
    shape = Shape(utilization=utilization, kv_cache_memory_bytes=flag)
    rank = row.ledger(shape, [RANK], said(consumed), None).ranks["0"]
    assert rank.pool is not None
    assert rank.pool.bytes + sum(term.bytes for term in rank.charges) == rank.requested


@given(st.floats(0.01, 0.99), st.floats(0.001, 0.01))
def test_margin_never_rises_with_utilization(utilization: float, more: float) -> None:
    low, high = (only(Shape(utilization=share)).margin for share in (utilization, utilization + more))
    assert low is not None
    assert high is not None
    assert high <= low


def test_the_rows_share_out_all_versions() -> None:
    for before, after in pairwise(LAWS):
        assert before.until == after.since
    assert (LAWS[0].since, LAWS[-1].until, LAWS[-1].examined_until) == ((0, 8, 5), None, (0, 34))


# A container's limit


def limited(version: tuple[int, ...], limit: int | None, shape: Shape = NOTHING, source: Origin = "measured") -> Ledger:
    rank = replace(RANK, container_limit=limit, free_at_init_source=source)
    return ledger(shape, consumed=GIB, rank=rank, version=version)


@pytest.mark.parametrize(
    ("version", "limit", "size"),
    [
        ((0, 32), 16 * GIB, 16 * GIB),
        ((0, 24), 16 * GIB, 16 * GIB),
        ((0, 23), 16 * GIB, 64 * GIB),
        ((0, 32), 64 * GIB, 64 * GIB),
        ((0, 32), 65 * GIB, 64 * GIB),
        ((0, 32), None, 64 * GIB),
    ],
)
def test_a_container_s_limit_is_the_size_from_0_24_on(version: tuple[int, ...], limit: int | None, size: int) -> None:
    found = limited(version, limit, Shape(utilization=0.5))
    assert (found.ranks["0"].size, found.ranks["0"].requested) == (size, size // 2)
    stands = "16.00 GiB stands in place of the node's 64.00 GiB"
    assert any(stands in note for note in found.notes) == (size == 16 * GIB)


def test_what_is_free_on_the_node_is_not_what_is_free_in_the_container() -> None:
    assert limited((0, 32), 16 * GIB, Shape(utilization=0.5)).ranks["0"].margin is None
    printed_free = limited((0, 32), 16 * GIB, Shape(utilization=0.5), "log").ranks["0"]
    assert printed_free.margin == 52 * GIB
    assert limited((0, 32), None, Shape(utilization=0.5)).ranks["0"].margin == 28 * GIB


@pytest.mark.parametrize("version", [(0, 32), (0, 23)])
def test_more_than_the_container_may_have_is_said(version: tuple[int, ...]) -> None:
    notes = limited(version, 16 * GIB, Shape(kv_cache_memory_bytes=32 * GIB)).notes
    assert any("requests 33.00 GiB, more than the 16.00 GiB its container lets it have" in note for note in notes)
    assert not any(
        "container lets it have" in note for note in limited(version, 40 * GIB, Shape(utilization=0.5)).notes
    )
