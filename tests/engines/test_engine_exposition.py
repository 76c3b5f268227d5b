"""An engine's metrics: which lines count, what replicas add up to, and what is not told."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, strategies as st

from budget_exporter.engines._exposition import Scanner, facts
from budget_exporter.facts.endpoint import EndpointFacts

ROW = "vllm:cache_config_info"


def read(text: str, version: str | None = "0.32.0", *, cut: bool = False) -> EndpointFacts:
    scanner = Scanner()
    scanner.feed(text.encode())
    return facts(scanner.close(cut=cut), version=version)


def row(engine: str = "0", **labels: str) -> str:
    pairs = ",".join(f'{name}="{value}"' for name, value in {**labels, "engine": engine}.items())
    return f"{ROW}{{{pairs}}} 1.0\n"


def test_two_replicas_have_the_sum_of_blocks_on_each_row_and_tokens_of_their_own() -> None:
    rows = [
        row(e, num_gpu_blocks="2048", kv_cache_size_tokens="131072", kv_cache_memory_bytes="67108864") for e in "01"
    ]
    told = read("".join(rows))
    assert (told.replicas, told.kv_blocks, told.kv_tokens, told.kv_bytes) == (2, 2048, 131072, 67108864)


@pytest.mark.parametrize(
    ("version", "blocks"), [("0.9.1", None), ("0.9.2", 2048), ("0.10.0", 2048), (None, None), ("dev", None)]
)
def test_whether_rows_have_the_sum_depends_on_the_release(version: str | None, blocks: int | None) -> None:
    assert read(row("0", num_gpu_blocks="2048") + row("1", num_gpu_blocks="2048"), version).kv_blocks == blocks
    assert read(row("0", num_gpu_blocks="2048"), version).kv_blocks == 2048


def test_the_smallest_replica_counts_and_only_where_all_are_known() -> None:
    def both(tokens: str) -> str:
        return row("0", kv_cache_size_tokens="4096", kv_cache_max_concurrency="8.0") + row(
            "1", kv_cache_size_tokens=tokens, kv_cache_max_concurrency="2.5"
        )

    assert (read(both("2048")).kv_tokens, read(both("2048")).kv_concurrency) == (2048, 2.5)
    assert read(both("None")).kv_tokens is None


@pytest.mark.parametrize("value", ["None", "", "-1", "1e3", "1.0", "0x10", "9" * 19, "\u0661", "1 "])
def test_what_is_no_whole_number_is_absent(value: str) -> None:
    told = read(row(num_gpu_blocks=value, kv_cache_size_tokens=value, kv_cache_memory_bytes=value, block_size=value))
    assert (told.kv_blocks, told.kv_tokens, told.kv_bytes, told.block_size) == (None,) * 4


@pytest.mark.parametrize("value", ["None", "nan", "inf", "-1.0"])
def test_what_is_no_ratio_is_absent(value: str) -> None:
    assert read(row(kv_cache_max_concurrency=value)).kv_concurrency is None


@pytest.mark.parametrize(
    ("text", "usage"),
    [
        ("vllm:gpu_cache_usage_perc 0.5\n", 0.5),
        ('vllm:gpu_cache_usage_perc{model_name="m"} 0.5\nvllm:kv_cache_usage_perc{model_name="m"} 0.25\n', 0.25),
        ('vllm:kv_cache_usage_perc{engine="0"} 0.25\nvllm:kv_cache_usage_perc{engine="1"} 0.75\n', 0.75),
        ("vllm:kv_cache_usage_perc NaN\n", None),
        ("vllm:cpu_cache_usage_perc 0.5\n", None),
        ("", None),
    ],
)
def test_usage_by_either_name_of_the_fullest_replica(text: str, usage: float | None) -> None:
    assert read(text).kv_usage == usage


def test_requests_are_summed_over_replicas_but_not_over_processes_of_one_server() -> None:
    name = "vllm:num_requests_running"
    assert read(f'{name}{{engine="0"}} 2.0\n{name}{{engine="1"}} 3.0\n').running == 5
    assert read(f'{name}{{engine="0",pid="1"}} 2.0\n{name}{{engine="0",pid="2"}} 2.0\n').running == 2
    assert read(f'{name}{{engine="0",pid="1"}} 2.0\n{name}{{engine="0",pid="2"}} 0.0\n').running is None
    assert read('vllm:num_requests_waiting{engine="0"} 7.0\n').waiting == 7


@pytest.mark.parametrize(
    ("awake", "asleep"), [([], None), ([1.0], False), ([0.0], True), ([0.0, 1.0], False), ([0.0, 0.0], True)]
)
def test_it_sleeps_where_all_replicas_do(awake: list[float], asleep: bool | None) -> None:
    lines = [f'vllm:engine_sleep_state{{engine="{i}",sleep_state="awake"}} {v}\n' for i, v in enumerate(awake)]
    lines += ['vllm:engine_sleep_state{engine="0",sleep_state="discard_all"} 0.0\n']
    assert read("".join(lines)).asleep is asleep


@pytest.mark.parametrize(
    "line",
    [
        f"# {ROW} 1.0",
        f"{ROW}_created 1.0",
        f"my_{ROW} 1.0",
        f'{ROW}{{block_size="16"}}',
        f'{ROW}{{block_size="16"}} one',
        f'{ROW}{{block_size="16" 1.0',
        f'{ROW}{{block_size="16"}}1.0',
        f'{ROW}{{block_size="{"x" * 20_000}"}} 1.0',
    ],
)
def test_lines_that_say_nothing(line: str) -> None:
    assert read(line + "\n").replicas == 0
    assert read(line + "\n" + row(block_size="16")).block_size == 16


def test_labels_may_hold_anything() -> None:
    told = read(row(x=r"a\"}, block_size=\"8", model_name="{}", block_size="16") + f"{ROW}{{}} 1.0 1700000000000\n")
    assert told.block_size is None  # two rows that do not agree
    assert read(row(x=r"a\"}, block_size=\"8", block_size="16")).block_size == 16


def test_the_last_line_needs_no_end_but_of_a_cut_answer_the_last_family_is_left_out() -> None:
    text = row(block_size="16", num_gpu_blocks="9") + 'vllm:num_requests_running{engine="0"} 2.0'
    assert (read(text).running, read(text).block_size) == (2, 16)
    assert read(text, cut=True).block_size is None
    assert read(text + "\n# more", cut=True).block_size == 16
    assert read(text + "\n# more", cut=True).running is None


PARTS = st.lists(st.integers(0, 2000), max_size=8)


@given(PARTS)
def test_it_does_not_matter_where_the_pieces_are_cut(cuts: list[int]) -> None:
    text = (
        row("0", block_size="16") + "#" * 300 + "\n" + row("1", block_size="16") + "vllm:num_requests_waiting 4\n"
    ).encode()
    scanner, at = Scanner(), 0
    for cut in sorted(cuts):
        scanner.feed(text[at:cut])
        at = max(at, cut)
    scanner.feed(text[at:])
    told = facts(scanner.close())
    assert (told.replicas, told.block_size, told.waiting) == (2, 16, 4)


@given(st.lists(st.binary(max_size=300), max_size=20), st.booleans())
def test_nothing_that_may_be_answered_raises(pieces: list[bytes], cut: bool) -> None:
    scanner = Scanner()
    for piece in pieces:
        scanner.feed(piece)
        scanner.feed(b"\nvllm:kv_cache_usage_perc{")
    told = dataclasses.asdict(facts(scanner.close(cut=cut)))
    assert told["kv_tokens"] is None
