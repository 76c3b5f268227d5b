from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, strategies as st

from budget_exporter.budget import buckets, capture
from budget_exporter.budget.buckets import Bucket, Release, Sizes
from budget_exporter.errors import LawError
from budget_exporter.units import GIB, MIB, printed_bytes

LOGS: dict[str, Any] = yaml.safe_load((Path(__file__).parent / "goldens" / "gaudi.yaml").read_text())
LOG = LOGS["seed_log_1_17"]
F16, F17, F21, F22 = (Release("gaudi", version) for version in ((1, 16), (1, 17), (1, 21, 3), (1, 22)))
PLUGIN = Release("gaudi_plugin", (0, 10))
SIZES = Sizes(max_num_seqs=4)
TOKENS = 9984
"""Tokens of the 15 prompt buckets that were captured."""
SEQUENCES = 112
"""Sequences of the 48 decode buckets."""
COSTS = (
    capture.proportional(LOG["prompt_gib"] * GIB / TOKENS, prompt=True),
    capture.proportional(LOG["decode_mib"] * MIB / SEQUENCES, prompt=False),
)


def shown(size: float) -> str:
    """Return a size in GiB with four significant digits, as Gaudi's log has it."""
    return f"{size / GIB:.4g}"


def found(release: Release = F17) -> tuple[tuple[Bucket, ...], tuple[Bucket, ...]]:
    prompt, decode = buckets.prompt(release, SIZES).found, buckets.decode(release, SIZES).found
    assert prompt is not None
    assert decode is not None
    return prompt, decode


def available() -> float:
    free = printed_bytes(str(LOG["free_gib"]))
    left = capture.budget(F17, free - LOG["hpu_blocks"] * 16 * MIB, free * (1 - LOG["utilization"]))
    assert left is not None
    return left


def test_the_budget_of_the_1_17_log() -> None:
    free = printed_bytes(str(LOG["free_gib"]))
    assert shown(free - LOG["hpu_blocks"] * 16 * MIB) == str(LOG["free_after_kv"])
    assert shown(available()) == str(LOG["capture_budget"])
    assert [shown(part) for part in capture.split(available(), LOG["prompt_ratio"])] == [
        str(LOG["prompt_budget"]),
        str(LOG["decode_budget"]),
    ]
    assert [shown(part) for part in capture.split(available(), 0.3)] == [
        str(LOG["prompt_budget_at_label"]),
        str(LOG["decode_budget_at_label"]),
    ]


def test_what_the_1_17_log_captured() -> None:
    made = capture.forecast(F17, found(), available(), COSTS, ratio=LOG["prompt_ratio"])
    assert len(made.first[0].buckets) == LOG["prompt_pass1"]
    assert made.first[0].buckets[-1] == (1, 896)
    assert shown(made.first[0].used) == "7.914"
    assert len(made.prompt.buckets) == LOG["prompt_captured"]
    assert made.prompt.buckets[11:] == ((4, 256), (2, 512), (1, 1024), (2, 640))
    assert not made.prompt.complete
    assert (len(made.decode.buckets), made.decode.complete) == (LOG["decode_captured"], True)
    assert shown(made.prompt.used) == str(LOG["prompt_gib"])
    assert shown(made.used) == str(LOG["warmup_gib"])
    assert made.graphs == 63
    assert sum(batch * length for batch, length in made.prompt.buckets) == TOKENS
    assert sum(batch for batch, _ in made.decode.buckets) == SEQUENCES


def test_at_the_ratio_of_the_label_the_first_pass_takes_8_prompts() -> None:
    made = capture.forecast(F17, found(), available(), COSTS, ratio=0.3)
    assert len(made.first[0].buckets) == 8


def test_before_1_17_there_is_one_pass_and_the_margin_is_a_share() -> None:
    pr = LOGS["pull_request_147"]
    left = capture.budget(F16, printed_bytes(str(pr["free_now"])), 0)
    assert left is not None
    assert shown(left) == str(pr["capture_budget"])
    assert shown(capture.split(left, 0.5)[0]) == "27.16"
    assert capture.budget(F16, 100.0, 30.0, 0.1) == 90.0
    made = capture.forecast(F16, found(F16), available(), COSTS, ratio=0.5)
    assert made.prompt == made.first[0]
    with pytest.raises(LawError, match="VLLM_GRAPH_MEM_MARGIN must be 0 to 1, not 2"):
        capture.budget(F16, 100.0, 0, 2)


@pytest.mark.parametrize("release", [F22, PLUGIN])
def test_from_1_22_all_is_captured_the_last_first(release: Release) -> None:
    assert capture.budget(release, 100.0, 10.0) is None
    pairs: tuple[list[Bucket], list[Bucket]] = ([(1, 128, 0), (2, 256, 0)], [(1, 1, 4)])
    made = capture.forecast(release, pairs, None, (lambda b: b[1], lambda _: 7))
    assert made.prompt.buckets == ((2, 256, 0), (1, 128, 0))
    assert (made.prompt.used, made.decode.used, made.graphs) == (384, 7, 3)
    assert made.prompt.complete


def test_the_second_pass_serves_the_decode_where_the_prompt_is_done() -> None:
    prompts: list[Bucket] = [(1, 128)]
    decodes: list[Bucket] = [(4, 128), (2, 128), (1, 128)]
    costs = (lambda _: 1.0, lambda b: 10.0 * b[0])
    made = capture.forecast(F21, (prompts, decodes), 100.0, costs, ratio=0.55)
    assert made.first[1].buckets == ((4, 128),)
    assert made.decode.buckets == ((4, 128), (2, 128), (1, 128))
    assert made.decode.complete
    assert made.used == 71.0


def test_no_second_pass_where_neither_is_done() -> None:
    prompts: list[Bucket] = [(1, 128), (1, 256)]
    decodes: list[Bucket] = [(2, 128), (1, 128)]
    costs = (lambda b: 1.0 * b[1], lambda b: 60.0 * b[0])
    made = capture.forecast(F21, (prompts, decodes), 300.0, costs, ratio=0.5)
    assert (made.prompt, made.decode) == made.first
    assert not made.prompt.complete
    assert not made.decode.complete


def test_a_bucket_that_does_not_fit_is_skipped_not_the_end() -> None:
    ordered: list[Bucket] = [(1, 100), (1, 900), (1, 50)]
    made = capture.capture(ordered, 200.0, lambda b: float(b[1]), prompt=True)
    assert made.buckets == ((1, 100), (1, 50))
    assert (made.used, made.complete) == (150.0, False)


def test_the_first_graph_is_captured_into_any_budget_above_0() -> None:
    """Nothing is expected of the first, so that it may take more than there is."""
    made = capture.capture([(4, 1024), (4, 2048)], 1.0, lambda _: 500.0, prompt=True)
    assert made.buckets == ((4, 1024),)
    assert capture.capture([(4, 1024)], 0.0, lambda _: 500.0, prompt=True).buckets == ()


def test_orders() -> None:
    pairs = [(1, 256), (2, 128), (1, 128), (4, 128), (4, 256)]
    assert capture.in_order(pairs, "min_tokens") == [(1, 128), (2, 128), (1, 256), (4, 128), (4, 256)]
    assert capture.in_order(pairs, "max_bs") == [(4, 128), (4, 256), (2, 128), (1, 128), (1, 256)]
    with pytest.raises(LawError, match="must be min_tokens or max_bs, not 'random'"):
        capture.in_order(pairs, "random")


def test_what_cannot_be_is_named() -> None:
    with pytest.raises(LawError, match=r"VLLM_GRAPH_PROMPT_RATIO must be 0 to 1, not 1\.5"):
        capture.split(10.0, 1.5)
    with pytest.raises(LawError, match="a number of at least 0, not nan"):
        capture.proportional(float("nan"), prompt=True)
    with pytest.raises(LawError, match="a number of at least 0, not -1"):
        capture.proportional(-1, prompt=False)
    with pytest.raises(LawError, match="budget for graphs is not known"):
        capture.forecast(F21, ([], []), None, COSTS)


@given(st.floats(0, 1e6), st.floats(0, 1e6), st.sampled_from([0.0, 0.3, 0.5, 1.0]))
def test_more_room_never_captures_fewer_prompts_in_the_first_pass(room: float, more: float, ratio: float) -> None:
    prompts, decodes = found()
    costs = (capture.proportional(10.0, prompt=True), capture.proportional(100.0, prompt=False))
    small = capture.forecast(F17, (prompts, decodes), room, costs, ratio=ratio)
    large = capture.forecast(F17, (prompts, decodes), room + more, costs, ratio=ratio)
    assert len(small.first[0].buckets) <= len(large.first[0].buckets)
    assert set(small.first[0].buckets) <= set(small.prompt.buckets)
    assert small.graphs == len(set(small.prompt.buckets)) + len(set(small.decode.buckets))
