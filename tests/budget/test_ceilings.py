from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, strategies as st

from budget_exporter.budget.ceilings import (
    Ceiling,
    data_parallel,
    decode_context_parallel,
    expert_parallel,
    host_memory,
    longest_window,
    mamba_blocks,
    windows,
)
from budget_exporter.errors import LawError
from budget_exporter.units import GIB

NAN = float("nan")


@pytest.mark.parametrize(
    ("size", "ranks", "kv_heads", "query_heads", "verdict", "most", "rule"),
    [
        (1, 2, 2, None, "allowed", 1, "it is off"),
        (2, 2, 2, None, "refused", 1, "above the model's KV heads"),
        (2, 8, 8, 64, "refused", 1, "above the model's KV heads"),
        (2, 4, 2, None, "allowed", 2, "a multiple of it"),
        (4, 8, 4, 32, "refused", 2, "// KV heads = 2"),
        (2, 8, 4, 32, "allowed", 2, "a multiple of it"),
        (2, 8, 2, 6, "refused", 4, "divide the 3 query heads"),
        (3, 8, 2, None, "refused", 4, "a multiple of it"),
        (2, 4, None, None, "unknown", None, "depends on the KV heads"),
    ],
)
def test_decode_context_parallelism(
    size: int, ranks: int, kv_heads: int | None, query_heads: int | None, verdict: str, most: int | None, rule: str
) -> None:
    found = decode_context_parallel(size, ranks, kv_heads, query_heads)
    assert (found.name, found.verdict, found.most) == ("decode_context_parallel", verdict, most)
    assert rule in found.sentence


@pytest.mark.parametrize(("size", "ranks", "verdict"), [(8, 8, "allowed"), (2, 8, "allowed"), (3, 8, "refused")])
def test_latent_attention_is_split_over_any_divisor_of_the_ranks(size: int, ranks: int, verdict: str) -> None:
    found = decode_context_parallel(size, ranks, None, mla=True)
    assert (found.verdict, found.most) == (verdict, ranks)


@pytest.mark.parametrize(
    ("enabled", "offload", "verdict"),
    [(True, True, "limited"), (True, False, "allowed"), (False, True, "allowed"), (False, False, "allowed")],
)
def test_expert_parallelism_takes_the_place_of_the_offload_s_gather(enabled: bool, offload: bool, verdict: str) -> None:
    found = expert_parallel(enabled=enabled, expert_offload=offload)
    assert found.verdict == verdict
    assert "all-to-all over PCIe" in found.rule
    assert found.numbers == (
        f"expert parallelism {'on' if enabled else 'off'}, expert offload {'on' if offload else 'off'}"
    )


@pytest.mark.parametrize(
    ("size", "weights", "ranks", "verdict", "most"),
    [
        (2, 60 * GIB, 1, "refused", 1),
        (1, 60 * GIB, 1, "allowed", 1),
        (2, 60 * GIB, 2, "allowed", None),
        (2, 32 * GIB, 1, "allowed", None),
        (2, 32 * GIB + 1, 1, "refused", 1),
        (2, None, 1, "unknown", None),
    ],
)
def test_every_replica_holds_the_whole_model(
    size: int, weights: int | None, ranks: int, verdict: str, most: int | None
) -> None:
    found = data_parallel(size, weights, 32 * GIB, ranks)
    assert (found.verdict, found.most) == (verdict, most)
    assert f"{size} replicas" in found.numbers


@pytest.mark.parametrize(
    ("seqs", "length", "pool", "verdict", "most"),
    [
        (3, 200_704, 401_408, "limited", 2),
        (2, 200_704, 401_408, "allowed", 2),
        (5, 262_144, 1_350_182, "allowed", 5),
        (1, 65_536, 65_535, "refused", 0),
        (1, 65_536, 0, "refused", 0),
        (1, 65_536, None, "unknown", None),
    ],
)
def test_full_windows_against_the_pool(
    seqs: int, length: int, pool: int | None, verdict: str, most: int | None
) -> None:
    found = windows(seqs, length, pool)
    assert (found.verdict, found.most) == (verdict, most)
    if pool:
        assert found.numbers == f"{pool} tokens hold {most} of {seqs} windows of {length}"


@pytest.mark.parametrize(
    ("seqs", "blocks", "graphs", "verdict"),
    [
        (256, 73, True, "refused"),
        (256, 73, False, "limited"),
        (73, 73, True, "allowed"),
        (1, 0, True, "refused"),
        (256, None, True, "unknown"),
    ],
)
def test_a_state_block_for_every_sequence(seqs: int, blocks: int | None, graphs: bool, verdict: str) -> None:
    found = mamba_blocks(seqs, blocks, graphs=graphs)
    assert (found.verdict, found.most) == (verdict, blocks)
    if blocks is not None:
        assert found.numbers == f"max_num_seqs {seqs}, {blocks} blocks"


def test_experts_and_table_against_host_memory() -> None:
    fits = host_memory(200 * GIB, 2, 100 * GIB, 61 * GIB)
    assert (fits.verdict, fits.most) == ("allowed", None)
    assert "100.00 GiB and 61.00 GiB of 161.00 GiB, with 200.00 GiB and 2 ranks" in fits.sentence
    assert host_memory(200 * GIB, 2, 100 * GIB, 61 * GIB + 1).verdict == "refused"
    assert host_memory(200 * GIB, 2, 161 * GIB).verdict == "allowed"


@pytest.mark.parametrize(
    ("ask", "field"),
    [
        (lambda: decode_context_parallel(0, 2, 2), "size"),
        (lambda: decode_context_parallel(2, -1, 2), "tensor_parallel_size"),
        (lambda: decode_context_parallel(2, 2, 0), "kv_heads"),
        (lambda: decode_context_parallel(2, 2, 2, 0), "query_heads"),
        (lambda: data_parallel(2, -1, GIB), "weights"),
        (lambda: data_parallel(2, 1, 0), "device"),
        (lambda: data_parallel(0, 1, GIB), "size"),
        (lambda: windows(0, 1, 1), "max_num_seqs"),
        (lambda: windows(1, 0, 1), "max_model_len"),
        (lambda: windows(1, 1, -1), "pool_tokens"),
        (lambda: mamba_blocks(0, 1), "max_num_seqs"),
        (lambda: mamba_blocks(1, -1), "blocks"),
        (lambda: host_memory(0, 1, 0), "memory"),
        (lambda: host_memory(GIB, 0, 0), "ranks"),
        (lambda: host_memory(GIB, 1, -1), "experts"),
        (lambda: host_memory(GIB, 1, 0, 1 << 60), "table"),
        (lambda: longest_window(-1, 1, 1), "free"),
        (lambda: longest_window(1, 0, 1), "windows"),
        (lambda: longest_window(1, 1, NAN), "bytes_per_token"),
        (lambda: longest_window(1, 1, 0.0), "bytes_per_token"),
    ],
)
def test_what_cannot_be_is_named(ask: Callable[[], Ceiling | int], field: str) -> None:
    with pytest.raises(LawError, match=rf"^{field} must "):
        ask()


@given(st.integers(1, 64), st.integers(1, 64), st.integers(1, 64))
def test_no_more_than_the_most_is_ever_allowed(size: int, ranks: int, heads: int) -> None:
    found = decode_context_parallel(size, ranks, heads)
    assert found.most is not None
    assert (found.verdict == "allowed") <= (size <= found.most)
