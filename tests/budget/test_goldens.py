"""
Every derived figure known of the expert-offload engine on two R9700, from the registry, without a plan block.

Figures that were observed (free at init, captures, the engine's own tokens) are inputs here, never results.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from budget_exporter.budget import ceilings, kv_cache, plan
from budget_exporter.budget.ladder import BONUS, DOWN, next_rung, scaled_pool
from budget_exporter.budget.limits import utilization_limit
from budget_exporter.facts.boot import BootReport
from budget_exporter.units import GIB, KIB, MIB, gib_text, printed_bytes, rounding_of
from tests.budget.offload import (
    POOL,
    PUBLIC_PLAN,
    REGISTRY,
    SHAPE,
    SIZE,
    WINDOW,
    arena,
    charge,
    constants,
    first,
    gib,
    ledger,
    said,
)

LADDER = [
    pytest.param(0.98, 256, 52, "0.55", "17.22", 7522, id="E"),
    pytest.param(0.982, 256, 12, "0.32", "17.52", 7653, id="F"),
    pytest.param(0.982, 0, 12, "0.07", "17.77", 7762, id="G"),
]


@pytest.mark.parametrize(("utilization", "base", "per_graph", "graphs", "gib_of_arena", "slots"), LADDER)
def test_arena_and_slots_of_the_measured_ladder(
    utilization: float, base: int, per_graph: int, graphs: str, gib_of_arena: str, slots: int
) -> None:
    found = first(replace(SHAPE, utilization=utilization, graph_base_mib=base, graph_per_graph_mib=per_graph))
    assert abs(arena(found) - printed_bytes(gib_of_arena)) <= GIB // 100
    assert found.arena_slots is not None
    assert abs(found.arena_slots - slots) <= 2
    assert gib_text(charge(found, "cuda_graphs")) == f"{graphs} GiB"
    assert sum(term.bytes for term in found.charges) + arena(found) == found.requested
    # What utilization, graphs and arena leave is the same on every rung: weights, reserve and overhead.
    fixed = found.requested - charge(found, "cuda_graphs") - printed_bytes(gib_of_arena)
    modelled = charge(found, "weights") + charge(found, "kv_reserve") + charge(found, "runtime_overhead")
    assert abs(fixed - modelled) <= GIB // 100


def test_the_device_is_31_86_gib_of_which_0_01_is_a_third_of_a_gib() -> None:
    assert gib_text(SIZE) == "31.86 GiB"
    more = first(replace(SHAPE, utilization=0.992)).requested - first().requested
    assert gib_text(more) == "0.32 GiB"


def test_a_gib_of_arena_is_437_slots() -> None:
    expert = constants().expert_bytes
    assert expert is not None
    assert round(GIB / expert) == 437


@pytest.mark.parametrize(
    ("base", "per_graph", "speculative", "mib"),
    [(256, 52, False, 568), (256, 52, True, 1192), (0, 12, False, 72), (0, 12, True, 216)],
)
def test_graph_charges(base: int, per_graph: int, speculative: bool, mib: int) -> None:
    shape = replace(SHAPE, graph_base_mib=base, graph_per_graph_mib=per_graph, speculative=speculative)
    assert charge(first(shape), "cuda_graphs") == mib * MIB


def test_the_default_graph_charge_is_the_registry_s() -> None:
    found = first(replace(SHAPE, graph_base_mib=None, graph_per_graph_mib=None))
    assert charge(found, "cuda_graphs") == (256 + 6 * 52) * MIB
    assert next(term.source for term in found.charges if term.name == "cuda_graphs") == "registry"


def test_precise_overhead_gives_the_compile_headroom_to_the_arena() -> None:
    default = first(replace(SHAPE, expert_precise_memory=False))
    precise = first()
    assert charge(precise, "runtime_overhead") == printed_bytes("5.25")
    assert charge(default, "runtime_overhead") == printed_bytes("7.60")
    assert arena(precise) - arena(default) == printed_bytes("7.60") - printed_bytes("5.25")
    assert gib_text(arena(precise) - arena(default)) == "2.35 GiB"
    assert precise.arena_slots is not None
    assert default.arena_slots is not None
    assert abs(precise.arena_slots - default.arena_slots - 1025) <= 2


@pytest.mark.parametrize(
    ("batched", "gib_more"),
    [(512, 0.0), (1024, 0.0), (2048, 0.0), (4096, 0.0), (5120, 0.22), (6144, 0.44), (12_288, 1.76)],
)
def test_batched_tokens_are_free_up_to_the_anchor(batched: int, gib_more: float) -> None:
    found = first(replace(SHAPE, max_num_batched_tokens=batched))
    assert charge(found, "runtime_overhead") - printed_bytes("5.25") == pytest.approx(gib_more * GIB, abs=8)
    assert found.kv_pool == first().kv_pool


def test_the_reserve_is_priced_for_one_request() -> None:
    assert charge(first(), "kv_reserve") == round(9190 * WINDOW * 1.08) == 1_992_027_341
    assert charge(first(replace(SHAPE, max_num_seqs=6)), "kv_reserve") == charge(first(), "kv_reserve")


def test_mamba_pages_are_the_rest_of_the_public_reserve() -> None:
    pages = printed_bytes("0.64") - round(9190 * 65_536 * 1.08)
    assert pages / GIB == pytest.approx(0.034, abs=0.005)


def test_the_limit_of_the_printed_free_memory() -> None:
    limit = utilization_limit(SIZE, printed_bytes("31.29"), rounding_of("31.29"), "log")
    assert (limit.ratio, limit.low, limit.high, limit.source) == (0.982, 0.981, 0.982, "log")
    assert utilization_limit(SIZE, printed_bytes("31.29")).ratio == 0.982
    assert utilization_limit(SIZE, printed_bytes("31.285")).ratio == 0.981
    needs = first().requested
    assert needs / GIB == pytest.approx(31.28591, abs=5e-6)
    assert (printed_bytes("31.295") - needs) / MIB == pytest.approx(9.3, abs=0.05)


def test_shape_g_is_bootable_only_within_the_rounding() -> None:
    assert first().bootable is None
    assert first(free="31.28").bootable is False
    assert first(free="31.30").bootable is True


def test_utilization_1_cannot_boot_on_either_rank() -> None:
    found = ledger(replace(SHAPE, utilization=1.0))
    assert [of_rank.bootable for of_rank in found.ranks.values()] == [False, False]
    assert any("every rank: free 31.29 < budget 31.86" in note for note in found.notes)


def test_the_boot_predictor_of_shape_g_sums_to_2_5_to_2_7_gib() -> None:
    charged = first()
    captured = first(report=said(graph_capture=gib("0.31")))
    lighter = first(report=said(graph_capture=gib("-0.06")))
    assert charged.margin is not None
    assert captured.margin is not None
    assert round(charged.margin / GIB, 1) == 2.7
    assert round(captured.margin / GIB, 1) == 2.5
    assert lighter.margin == charged.margin


def test_the_boot_predictor_is_the_sum_of_its_parts() -> None:
    found = first()
    parts = [charge(found, "weights"), POOL, charge(found, "cuda_graphs"), arena(found)]
    driver = next(term.bytes for term in found.outside if term.name == "driver_reserve")
    assert gib_text(driver) == "0.57 GiB"
    assert found.margin == SIZE - sum(parts) - printed_bytes("1.45") - driver


def test_the_public_plan_closes() -> None:
    gap = plan.residue(PUBLIC_PLAN)
    assert gap is not None
    assert abs(gap[0]) <= 3  # six figures, each rounded to whole bytes
    shape = replace(SHAPE, utilization=0.90, max_model_len=65_536, kv_cache_memory_bytes=None)
    found = first(shape, said(PUBLIC_PLAN))
    assert gib_text(found.requested) == "28.67 GiB"
    assert gib_text(arena(found)) == "14.68 GiB"
    assert sum(term.bytes for term in found.charges) + arena(found) == found.requested


def test_pool_tokens_and_concurrency() -> None:
    found = ledger(report=replace(said(), kv_tokens=401_408))
    assert found.kv_bytes_per_token == {"registry": 9190, "measured": 7888}
    assert f"{POOL / 401_408:.2f}" == "7888.48"
    assert f"{kv_cache.concurrency(401_408, WINDOW):.2f}" == "2.00"
    assert f"{kv_cache.concurrency(1_350_182, 262_144):.2f}" == "5.15"
    assert f"{kv_cache.concurrency(79_953, 65_536):.2f}" == "1.22"
    assert f"{kv_cache.concurrency(269_664, 262_144):.2f}" == "1.03"
    assert f"{kv_cache.concurrency(360_637, 262_144):.2f}" == "1.38"


STARTS = [
    pytest.param(9655, 8437, True, id="without MTP"),
    pytest.param(9655, 11_597, False, id="with MTP"),
    pytest.param(9302 * 1.08, 13_427, False, id="default KV dtype"),
    pytest.param(9302 * 1.08, 7298, True, id="fp8 KV"),
]


@pytest.mark.parametrize(("reserved", "measured", "served"), STARTS)
def test_whether_a_pool_capped_at_its_reserve_serves_one_request(reserved: float, measured: int, served: bool) -> None:
    assert kv_cache.fits_one_request(reserved, measured) is served
    for length in (32_768, 262_144):  # a shorter context mends nothing
        pool = kv_cache.needed(reserved, length)
        assert (pool >= kv_cache.needed(measured, length)) is served


def test_the_overhead_of_the_public_glm_starts() -> None:
    glm = next(entry.constants for entry in REGISTRY if entry.constants.architecture == "GLM-5.3-Flash")
    assert glm.tensor_parallel_size == 4
    assert glm.overhead_default == printed_bytes("6.25")
    assert glm.kv_reserve_factor == 1.02


def test_registry_factors() -> None:
    factors = {entry.constants.architecture: entry.constants.kv_reserve_factor for entry in REGISTRY}
    assert factors == {"Qwen3.8-Flash-Next": 1.08, "GLM-5.3-Flash": 1.02}


def test_the_ladder_steps_down_16_k_and_up_4_k() -> None:
    assert (DOWN, BONUS) == (16 * KIB, 4 * KIB)
    assert next_rung(262_144, "oom") == 245_760
    assert next_rung(200_704, "pass") == 204_800


def test_the_ladder_finds_the_measured_bf16_ceiling() -> None:
    """262144 and 245760 died in capture, 241664 passed: from there the next bonus step is a known failure."""
    length: int | None = 262_144
    tried: dict[int, bool] = {}
    while length is not None:
        tried[length] = length <= 241_664
        known = min((rung for rung, passed in tried.items() if not passed), default=None)
        length = next_rung(length, "pass" if tried[length] else "oom", known)
    assert [rung for rung, passed in tried.items() if not passed] == [262_144, 245_760]
    assert max(rung for rung, passed in tried.items() if passed) == 241_664


def test_the_pool_scales_with_the_windows() -> None:
    assert scaled_pool(POOL, 3, WINDOW, 3, WINDOW) == POOL
    assert scaled_pool(POOL, 3, 200_704, 3, 184_320) == round(POOL * 184_320 / 200_704)
    assert scaled_pool(POOL, 3, 200_704, 6, 200_704) == 2 * POOL


def test_six_windows_fit_up_to_208168_tokens() -> None:
    assert ceilings.longest_window(printed_bytes("9.18"), 6, 7891.8) == 208_168
    assert kv_cache.needed(7891.8, 208_168, 6) <= printed_bytes("9.18") < kv_cache.needed(7891.8, 208_169, 6)


def test_decode_context_parallelism_needs_more_ranks_than_kv_heads() -> None:
    refused = ceilings.decode_context_parallel(2, 2, 2)
    assert refused.verdict == "refused"
    assert refused.sentence.endswith("tensor parallel size 2, 2 KV heads, asked for 2")
    assert ceilings.decode_context_parallel(2, 4, 2).verdict == "allowed"
    assert ceilings.decode_context_parallel(1, 2, 2).verdict == "allowed"


def test_data_parallelism_needs_a_copy_of_the_model_on_each_device() -> None:
    refused = ceilings.data_parallel(2, printed_bytes("59.9"), SIZE)
    assert refused.verdict == "refused"
    assert "2 replicas of 59.90 GiB on 1 x 31.86 GiB" in refused.sentence
    assert ceilings.data_parallel(2, printed_bytes("20"), SIZE).verdict == "allowed"


def test_a_printed_free_figure_reaches_the_limit_through_the_report() -> None:
    report = BootReport(common=said(free_at_init=gib("31.29")).common)
    found = first(report=report, free=None)
    assert found.limit is not None
    assert (found.limit.ratio, found.limit.source) == (0.982, "log")
