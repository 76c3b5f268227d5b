from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, strategies as st

from budget_exporter.budget import buckets
from budget_exporter.budget.buckets import (
    Bucket,
    Limited,
    Linear,
    Padded,
    Release,
    Sizes,
    defaults,
    exponential,
    fork,
    linear,
    padding_aware,
    plugin,
)
from budget_exporter.budget.buckets.releases import countable, flag
from budget_exporter.errors import LawError

HERE = Path(__file__).parent / "goldens"
GOLDEN: dict[str, Any] = json.loads((HERE / "gaudi_buckets.json").read_text())
LOGS: dict[str, Any] = yaml.safe_load((HERE / "gaudi.yaml").read_text())
LABELS = {
    "1.17": ["1.17"],
    "1.18..1.22": ["1.18", "1.19", "1.20", "1.21.0", "1.21.3", "1.22"],
    "1.18/1.19": ["1.18", "1.19", "1.20"],
    "1.21.0": ["1.21.0"],
    "1.21.2/3": ["1.21.2", "1.21.3"],
    "1.22": ["1.22"],
    "vllm-gaudi 0.26": ["0.26.0"],
    "vllm-gaudi 0.26 non-contiguous": ["0.26.0"],
}


def of(text: str) -> Release:
    release = buckets.release_of(text)
    assert release is not None
    return release


def labelled(key: str) -> list[Any]:
    """Return a parameter for each release a golden figure was taken from: the figure's name, its releases, itself."""
    return [
        pytest.param(name, release, label, expected, id=f"{name} {label} {release}")
        for name, by_label in GOLDEN[key].items()
        for label, expected in by_label.items()
        for release in LABELS[label]
    ]


def known(found: buckets.Buckets) -> tuple[Bucket, ...]:
    assert found.found is not None
    return found.found


def attempt(call: Any) -> Any:
    try:
        return call()
    except LawError as error:
        return error


def same(found: Any, expected: Any) -> None:
    """Hold a list to a list, and a refusal to the name of the exception the engine ends with."""
    if isinstance(expected, str):
        assert isinstance(found, LawError)
        assert expected.partition(":")[0] in str(found)
    else:
        assert found == expected


# One range


@pytest.mark.parametrize(
    ("name", "release", "label", "expected"), labelled("linear_warmup_range_edge_cases(min,step,max)")
)
def test_linear_values_of_every_release(name: str, release: str, label: str, expected: Any) -> None:
    del label
    same(attempt(lambda: linear.values(Linear(*ast.literal_eval(name)), of(release))), expected)


@pytest.mark.parametrize(
    ("name", "expected"), GOLDEN["linear_min0 (vllm-gaudi 0.26 only; <=1.22 loops forever)"].items()
)
def test_a_minimum_of_0_is_a_bucket_in_the_plugin_and_no_end_before(name: str, expected: list[int]) -> None:
    spec = Linear(*ast.literal_eval(name))
    assert linear.values(spec, of("0.26.0")) == expected
    with pytest.raises(LawError, match="never ends"):
        linear.values(spec, of("1.22"))


@pytest.mark.parametrize(("name", "release", "label", "expected"), labelled("linear_find_bucket"))
def test_what_a_size_is_padded_to(name: str, release: str, label: str, expected: int) -> None:
    del label
    value, _, spec = name.partition(" in ")
    assert linear.padded(int(value), Linear(*ast.literal_eval(spec)), of(release)) == expected


def test_a_size_below_the_minimum_is_padded_to_it() -> None:
    assert linear.padded(3, Linear(4, 32, 64), of("1.21.0")) == 4
    assert linear.padded(33, Linear(1, 32, 64), of("1.21.0")) == 64
    with pytest.raises(LawError, match="at least 1"):
        linear.padded(3, Linear(0, 32, 64), of("1.20"))
    with pytest.raises(LawError, match="at least 1"):
        linear.padded(3, Linear(1, 0, 64), of("1.20"))


@pytest.mark.parametrize("example", LOGS["bucket_examples"], ids=str)
def test_published_examples(example: dict[str, list[int]]) -> None:
    assert linear.values(Linear(*example["range"]), of("1.18")) == example["values"]


@pytest.mark.parametrize(
    ("name", "release", "label", "expected"), labelled("exponential_warmup_range(min,step,max,limit)")
)
def test_exponential_values_of_every_release(name: str, release: str, label: str, expected: Any) -> None:
    spec = Limited(*ast.literal_eval(name))
    contiguous = "non-contiguous" not in label
    same(attempt(lambda: exponential.values(spec, of(release), contiguous=contiguous)), expected)


def test_the_last_exponential_value_is_rounded_up_without_contiguous_attention() -> None:
    spec = Limited(128, 128, 1519, 12)
    assert exponential.values(spec, of("1.22"), contiguous=False)[-1] == 1536
    assert exponential.values(spec, of("1.22"), contiguous=True)[-1] == 1519


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ((0, 8, 64, 64, 0), [0, 1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64]),
        ((0, 8, 64, 64, 50), [0, 1, 2, 4, 8, 16, 32, 64]),
        ((0, 8, 64, 16, 50), [0, 1, 2, 4, 8, 16, 32, 48, 64]),
        ((16, 16, 128, 32, 25), [16, 32, 48, 64, 80, 96, 128]),
        ((16, 16, 120, 0, 25), [16, 32, 48, 64, 80, 96, 120]),
        ((0, 1, 0, 0, 25), [0]),
        ((5, 4, 5, 1, 25), [5]),
    ],
)
def test_padding_aware_values(spec: tuple[int, int, int, int, int], expected: list[int]) -> None:
    assert padding_aware.values(Padded(*spec)) == expected


BAD_RANGES = [
    (lambda: linear.values(Linear(-1, 4, 8), of("1.22")), "below 1"),
    (lambda: linear.values(Linear(1, -4, 8), of("0.26.0")), "below 1"),
    (lambda: linear.values(Linear(0, 0, 8), of("0.26.0")), "step of 0 to 8 must not be 0"),
    (lambda: linear.values(Linear(1, 1, 10**7), of("1.22")), "more than 1000000 values"),
    (lambda: exponential.values(Limited(1, 0, 8, 4), of("1.22"), contiguous=True), "at least 1"),
    (lambda: exponential.values(Limited(1, 1, 8, 0), of("0.26.0"), contiguous=True), "at least 1"),
    (lambda: exponential.values(Limited(1, 1, 10**7, 4), of("1.22"), contiguous=True), "more than 1000000"),
    (lambda: padding_aware.values(Padded(9, 1, 8, 4, 25)), "above the maximum 8"),
    (lambda: padding_aware.values(Padded(1, 0, 8, 4, 25)), "step must be at least 1"),
    (lambda: padding_aware.values(Padded(1, 1, 8, -1, 25)), "padding at least 0"),
    (lambda: padding_aware.values(Padded(1, 1, 8, 4, 51)), "0 to 50 percent, not 51"),
    (lambda: padding_aware.values(Padded(1, 1, 10**7, 4, 25)), "more than 1000000"),
]


@pytest.mark.parametrize(("call", "message"), BAD_RANGES)
def test_a_range_that_cannot_be_is_named(call: Any, message: str) -> None:
    with pytest.raises(LawError, match=message):
        call()


RELEASES = st.sampled_from(
    [of(text) for text in ("1.16", "1.17", "1.18", "1.20", "1.21.0", "1.21.3", "1.22", "0.26.0")]
)


@given(st.integers(1, 400), st.integers(1, 400), st.integers(1, 4000), RELEASES)
def test_linear_values_rise_to_at_most_the_maximum(low: int, step: int, above: int, release: Release) -> None:
    found = linear.values(Linear(low, step, low + above), release)
    assert found == sorted(set(found))
    assert all(value <= low + above for value in found)
    if release.since((1, 18)):
        assert all(value >= low for value in found)


@given(st.integers(1, 300), st.integers(1, 300), st.integers(1, 5000), st.integers(1, 20), RELEASES, st.booleans())
def test_exponential_values_are_no_more_than_asked_for(
    low: int, step: int, above: int, limit: int, release: Release, contiguous: bool
) -> None:
    found = exponential.values(Limited(low, step, low + above, limit), release, contiguous=contiguous)
    assert found == sorted(found)
    # Only the plugin may name its maximum twice, where it cuts a value down to it.
    assert len(set(found)) == len(found) or (release.plugin and found[-2:] == [low + above] * 2)
    assert 1 <= len(found) <= limit + 1
    if release.plugin:
        assert found[-1] <= low + above


@given(st.integers(0, 300), st.integers(1, 300), st.integers(0, 5000), st.integers(0, 600), st.integers(0, 50))
def test_padding_aware_values_end_with_the_maximum(low: int, step: int, above: int, pad: int, percent: int) -> None:
    found = padding_aware.values(Padded(low, step, low + above, pad, percent))
    assert found[-1] == low + above
    assert found == sorted(set(found))


@given(st.integers(1, 300), st.integers(1, 300), st.integers(1, 5000), RELEASES)
def test_a_size_is_never_padded_to_less(low: int, step: int, value: int, release: Release) -> None:
    assert linear.padded(value, Linear(low, step, 5000), release) >= value


# The fork


def test_the_buckets_of_the_1_17_log() -> None:
    sizes = Sizes(max_num_seqs=4)
    log = LOGS["seed_log_1_17"]
    prompt, decode = known(buckets.prompt(of("1.17"), sizes)), known(buckets.decode(of("1.17"), sizes))
    assert (len(prompt), len(decode)) == (log["prompt_buckets"], log["decode_buckets"])
    assert sorted(prompt) == [tuple(pair) for pair in GOLDEN["seed_117"]["prompt_sorted"]]
    assert (len(prompt), len(decode)) == (GOLDEN["seed_117"]["prompt"], GOLDEN["seed_117"]["decode"])
    assert known(buckets.prompt(of("1.16"), sizes)) == prompt


def test_the_same_engine_with_1_18() -> None:
    expected = GOLDEN["same engine, 1.18 defaults max_num_seqs=4"]
    sizes = Sizes(max_num_seqs=4, max_num_batched_tokens=4096, num_blocks=1519)
    prompt = buckets.prompt(of("1.18"), sizes)
    assert (len(known(prompt)), len(prompt.omitted)) == (expected["prompt"], expected["omitted"])
    decode = known(buckets.decode(of("1.18"), sizes))
    assert [list(pair) for pair in decode] == expected["decode"]
    log = LOGS["tuning_doc_log"]
    assert (len(known(prompt)), len(decode)) == (log["prompt_buckets"], log["decode_buckets"])


def test_prompts_over_the_token_budget_are_omitted() -> None:
    expected = GOLDEN["1.19 token filter max_num_batched_tokens=2048, bs<=4 seq<=1024"]
    environ = {"VLLM_PROMPT_BS_BUCKET_MAX": "4"}
    found = buckets.prompt(of("1.19"), Sizes(max_num_batched_tokens=2048, environ=environ))
    assert len(known(found)) == expected["prompt"]
    assert [list(pair) for pair in found.omitted] == expected["omitted"]
    assert not found.over_budget


@pytest.mark.parametrize("release", ["1.18", "1.22"])
def test_where_every_prompt_is_over_the_budget_all_stay(release: str) -> None:
    kept = GOLDEN["1.18 filter-empties"][0]
    names = {"BS": "8", "SEQ": "1024"}
    environ = {f"VLLM_PROMPT_{dim}_BUCKET_{end}": n for dim, n in names.items() for end in ("MIN", "STEP", "MAX")}
    environ["VLLM_EXPONENTIAL_BUCKETING"] = "false"
    sizes = Sizes(max_num_seqs=8, max_num_batched_tokens=2048, max_model_len=1024, environ=environ)
    found = buckets.prompt(of(release), sizes)
    assert [list(bucket[:2]) for bucket in known(found)] == kept
    assert (found.over_budget, found.omitted) == (True, ())


def test_no_prompt_at_all_is_refused() -> None:
    expected = GOLDEN["no buckets ValueError"]
    ranges = defaults.Ranges(Linear(5, 4, 6), Linear(128, 128, 128))
    with pytest.raises(LawError, match=expected.partition(":")[0]):
        fork.prompt(of("1.19"), ranges, Sizes(max_num_batched_tokens=2048))


def test_decode_counts_with_the_blocks_there_are() -> None:
    sizes = Sizes(max_num_seqs=256, num_blocks=1519, max_model_len=2048)
    assert len(known(buckets.decode(of("1.18"), sizes))) == GOLDEN["1.18 defaults max_num_seqs=256 decode"]
    expected = GOLDEN["1.21.0 linear decode max_num_seqs=256 num_hpu_blocks=1519 (contiguous PA)"]
    found = known(buckets.decode(of("1.21.0"), sizes))
    assert len(found) == expected["n"]
    assert [list(pair) for pair in found[-5:]] == expected["last5"]


def test_1_21_2_drops_fewer_blocks_than_sequences() -> None:
    sizes = Sizes(max_num_seqs=256, num_blocks=1519, max_model_len=2048)
    older, newer = (known(buckets.decode(of(text), sizes)) for text in ("1.21.0", "1.21.2"))
    assert set(older) - set(newer) == {pair for pair in older if pair[0] > pair[1]}
    assert len(newer) == len(older) - 4


def test_1_21_without_contiguous_attention_stops_at_the_blocks() -> None:
    environ = {"VLLM_CONTIGUOUS_PA": "false"}
    sizes = Sizes(max_num_seqs=1, num_blocks=300, max_model_len=131072, environ=environ)
    assert known(buckets.decode(of("1.21.0"), sizes)) == ((1, 128), (1, 256), (1, 300))
    own = Sizes(max_num_seqs=1, num_blocks=300, max_model_len=131072, environ={"VLLM_DECODE_BLOCK_BUCKET_MAX": "256"})
    assert known(buckets.decode(of("1.21.0"), own)) == ((1, 128), (1, 256))
    whole = Sizes(max_num_seqs=1, num_blocks=256, max_model_len=131072)
    assert known(buckets.decode(of("1.21.0"), whole)) == ((1, 128), (1, 256))


@pytest.mark.parametrize("blocks", [3969, 4107, 100_000])
def test_issue_1194_count_and_positions(blocks: int) -> None:
    log = LOGS["fork_issue_1194"]
    assert log["least_blocks"] == 3969
    sizes = Sizes(max_num_seqs=log["max_num_seqs"], num_blocks=blocks)
    found = buckets.warm_up_order(known(buckets.decode(of(log["release"]), sizes)))
    assert len(found) == log["bucket_count"]
    assert [list(found[202]), list(found[203])] == [log["position_203"], log["position_204"]]


def test_fewer_blocks_than_issue_1194_had_give_fewer_buckets() -> None:
    sizes = Sizes(max_num_seqs=256, num_blocks=3968)
    assert len(known(buckets.decode(of("1.20"), sizes))) == 403


def test_1_21_exponential_is_opt_in() -> None:
    sizes = Sizes(max_num_seqs=4, num_blocks=1519, max_model_len=2048, max_num_batched_tokens=2048)
    assert defaults.strategy(of("1.21.0"), {}) == "lin"
    opted = Sizes(
        max_num_seqs=4,
        num_blocks=1519,
        max_model_len=2048,
        max_num_batched_tokens=2048,
        environ={"VLLM_EXPONENTIAL_BUCKETING": "true"},
    )
    prompt = defaults.prompt_ranges(of("1.21.0"), opted)
    assert (prompt.batch, prompt.second) == (Limited(1, 2, 64, 7), Limited(128, 128, 2048, 12))
    decode = defaults.decode_ranges(of("1.21.0"), opted)
    assert (decode.batch, decode.second) == (Limited(1, 2, 4, 3), Limited(128, 128, 1519, 8))
    assert known(buckets.decode(of("1.21.0"), opted)) != known(buckets.decode(of("1.21.0"), sizes))
    assert all(batch * length <= 2048 for batch, length in known(buckets.prompt(of("1.21.0"), opted)))


def test_the_documented_examples_of_1_22() -> None:
    expected = GOLDEN["doc example 36 prompt buckets (1.22, prefix caching, bs1 seq<=1024)"]
    sizes = Sizes(max_num_prefill_seqs=1, max_model_len=1024, max_num_batched_tokens=2048, prefix_caching=True)
    found = known(buckets.prompt(of("1.22"), sizes))
    assert len(found) == expected["n"]
    assert [list(bucket) for bucket in found] == expected["buckets"]
    assert "bs:[1, 2, 1, 1], seq:[128, 128, 1024, 11]" in expected["logs"][0]
    assert defaults.prompt_ranges(of("1.22"), sizes).second == Limited(128, 128, 1024, 11)
    expected = GOLDEN["doc example 42 decode buckets (1.22, max_num_seqs 4, 5888 blocks)"]
    found = known(buckets.decode(of("1.22"), Sizes(max_num_seqs=4, num_blocks=5888)))
    assert len(found) == expected["n"]
    assert sorted({bucket[2] for bucket in found}) == expected["blocks"]
    assert {bucket[1] for bucket in found} == {1}


def test_1_22_linear_prompts_carry_every_context() -> None:
    sizes = Sizes(
        max_num_prefill_seqs=1,
        max_model_len=512,
        max_num_batched_tokens=512,
        prefix_caching=True,
        environ={"VLLM_EXPONENTIAL_BUCKETING": "0"},
    )
    found = known(buckets.prompt(of("1.22"), sizes))
    assert found == tuple(
        (1, query, blocks) for query in (128, 256, 384, 512) for blocks in range((512 - query) // 128 + 1)
    )
    plain = Sizes(max_num_prefill_seqs=1, max_model_len=512, max_num_batched_tokens=512, environ=sizes.environ)
    assert known(buckets.prompt(of("1.22"), plain)) == ((1, 128, 0), (1, 256, 0), (1, 384, 0), (1, 512, 0))


def test_how_1_22_spaces_long_prompts_is_not_known() -> None:
    found = buckets.prompt(of("1.22"), Sizes(max_model_len=8192, max_num_batched_tokens=8192))
    assert found.found is None
    assert "1.22" in found.why


# The plugin


def test_the_plugin_s_own_counts() -> None:
    """What its own tests expect of it: 25 prompt and 18 decode buckets."""
    ranges = defaults.Ranges(Linear(1, 16, 16), Linear(512, 512, 1024), Linear(0, 1, 4))
    sizes = Sizes(max_num_batched_tokens=2048, block_size=64, max_model_len=2048)
    rule = plugin.prompt_rule(of("0.19.0"))
    assert rule is not None
    assert len(plugin.prompt(of("0.19.0"), ranges, sizes, rule)) == 25
    ranges = defaults.Ranges(Linear(1, 64, 64), Linear(128, 128, 2048))
    sizes = Sizes(max_model_len=2048, block_size=128, prefix_caching=True)
    found = plugin.decode(of("0.19.0"), ranges, sizes)
    assert len(found) == 18
    assert all(blocks <= batch * 16 for batch, _, blocks in found)


def test_the_plugin_s_exponential_ranges() -> None:
    sizes = Sizes(
        max_num_seqs=256, max_model_len=40960, max_num_batched_tokens=8192, num_blocks=7593, prefix_caching=True
    )
    ranges = defaults.prompt_ranges(of("0.26.0"), sizes)
    assert (ranges.batch, ranges.second, ranges.context) == (
        Limited(1, 2, 1, 1),
        Limited(128, 128, 8192, 13),
        Limited(0, 1, 256, 9),
    )
    sizes = Sizes(
        max_num_seqs=256, max_model_len=91964, max_num_batched_tokens=2048, num_blocks=3593, prefix_caching=True
    )
    ranges = defaults.prompt_ranges(of("0.16.0"), sizes)
    assert (ranges.second, ranges.context) == (Limited(128, 128, 2048, 11), Limited(0, 1, 702, 11))
    blocks = plugin.decode_blocks(of("0.16.0"), sizes)
    assert blocks == (183_808, 13)
    decode = defaults.decode_ranges(of("0.16.0"), sizes, blocks)
    assert (decode.batch, decode.second) == (Limited(1, 2, 256, 9), Limited(1, 256, 183_808, 13))
    one = Sizes(max_model_len=256, max_num_batched_tokens=2048, environ={"VLLM_PROMPT_QUERY_BUCKET_MIN": "1"})
    short = defaults.prompt_ranges(of("0.26.0"), one)
    assert (short.second, short.context) == (Limited(1, 128, 2048, 11), Limited(0, 1, 1, 2))


LONG = Sizes(max_num_seqs=256, max_model_len=40960, max_num_batched_tokens=8192, num_blocks=7593, prefix_caching=True)
SHORT = Sizes(max_num_seqs=16, max_model_len=4100, max_num_batched_tokens=8192, num_blocks=7593, prefix_caching=True)


@pytest.mark.parametrize(
    ("release", "sizes", "expected"),
    [
        ("0.10.1", LONG, None),
        ("0.11.2", LONG, (7593, 14)),
        ("0.13.0", SHORT, (512, 14)),
        ("0.14.0", LONG, None),
        ("0.14.1", LONG, (81_920, 14)),
        ("0.16.0", LONG, (81_920, 14)),
        ("0.17.0", LONG, None),
        ("0.17.1", LONG, (22_779, 16)),
        ("0.18.1", LONG, None),
        ("0.19.1", LONG, (81_920, 18)),
        ("0.19.1", SHORT, (22_779, 16)),
        ("0.20.1", LONG, None),
        ("0.21.0", LONG, (81_920, 18)),
        ("0.21.0", SHORT, (528, 11)),
        ("0.22.0", LONG, None),
        ("0.24.0", LONG, None),  # beyond three times the blocks: how many values come on top is not known
        ("0.27.0", SHORT, (528, 11)),
        ("0.28.0", SHORT, None),
    ],
)
def test_the_largest_decode_bucket_by_release(release: str, sizes: Sizes, expected: tuple[int, int] | None) -> None:
    assert plugin.decode_blocks(of(release), sizes) == expected


def test_the_decode_bucket_of_pull_request_1700() -> None:
    log = LOGS["plugin_pull_request_1700"]
    sizes = Sizes(
        max_num_seqs=log["max_num_seqs"],
        max_model_len=log["max_model_len"],
        num_blocks=log["hpu_blocks"],
        max_num_batched_tokens=8192,
        prefix_caching=True,
    )
    assert known(buckets.decode(of("0.21.0"), sizes))[-1] == (256, 1, log["largest_decode_blocks"])
    assert plugin.decode_blocks(of("0.17.1"), sizes) == (3 * 7593, 16)


def test_contiguous_attention_goes_to_the_blocks_there_are() -> None:
    near = Sizes(max_num_seqs=16, max_model_len=4096, max_num_batched_tokens=2048, num_blocks=300)
    assert defaults.contiguous(of("0.17.1"), near)
    found = known(buckets.decode(of("0.17.1"), near))
    assert max(blocks for _, _, blocks in found) == 300
    assert any(batch > blocks for batch, _, blocks in found)
    assert plugin.decode_blocks(of("0.21.0"), near) == (300, 10)
    roomy = Sizes(max_num_seqs=1, max_model_len=4096, max_num_batched_tokens=2048, num_blocks=300)
    assert plugin.decode_blocks(of("0.21.0"), roomy) is None
    assert plugin.decode_blocks(of("0.20.1"), roomy) == (300, 10)
    assert buckets.decode(of("0.21.0"), roomy).found is None


def test_contiguous_linear_decode_ends_with_the_blocks() -> None:
    environ = {"VLLM_EXPONENTIAL_BUCKETING": "false"}
    sizes = Sizes(max_num_seqs=1, max_model_len=4096, num_blocks=300, environ=environ)
    assert known(buckets.decode(of("0.19.0"), sizes)) == tuple(
        (1, 1, n) for n in (1, 2, 4, 8, 16, 32, 64, 128, 256, 300)
    )
    full = Sizes(max_num_seqs=1, max_model_len=4096, num_blocks=256, environ=environ)
    assert known(buckets.decode(of("0.19.0"), full))[-1] == (1, 1, 256)


def test_the_plugin_s_linear_ranges() -> None:
    environ = {"VLLM_BUCKETING_STRATEGY": "lin", "VLLM_PROMPT_SEQ_BUCKET_STEP": "256", "VLLM_PROMPT_BS_BUCKET_MAX": "4"}
    sizes = Sizes(
        max_num_seqs=64,
        max_model_len=4096,
        max_num_batched_tokens=2048,
        num_blocks=700,
        prefix_caching=True,
        environ=environ,
    )
    prompt = defaults.prompt_ranges(of("0.20.0"), sizes)
    assert (prompt.batch, prompt.second, prompt.context) == (Linear(1, 1, 4), Linear(128, 256, 2048), Linear(0, 1, 31))
    decode = defaults.decode_ranges(of("0.20.0"), sizes)
    assert (decode.batch, decode.second) == (Linear(1, 32, 64), Linear(1, 128, 700))
    newer = Sizes(
        max_num_seqs=1,
        max_model_len=64,
        max_num_batched_tokens=2048,
        num_blocks=700,
        prefix_caching=True,
        environ={"VLLM_BUCKETING_STRATEGY": "lin"},
    )
    assert defaults.decode_ranges(of("0.20.0"), newer).second == Linear(1, 128, 128)


def test_the_plugin_s_padding_aware_ranges() -> None:
    sizes = Sizes(
        max_num_seqs=64,
        max_model_len=4096,
        max_num_batched_tokens=2048,
        num_blocks=100,
        prefix_caching=True,
        environ={"VLLM_BUCKETING_STRATEGY": "pad", "VLLM_DECODE_BS_BUCKET_PAD_PERCENT": "40"},
    )
    prompt = defaults.prompt_ranges(of("0.26.0"), sizes)
    assert (prompt.batch, prompt.second, prompt.context) == (
        Padded(1, 1, 1, 1, 25),
        Padded(128, 128, 2048, 512, 25),
        Padded(0, 2, 31, 16, 25),
    )
    decode = defaults.decode_ranges(of("0.26.0"), sizes)
    assert (decode.batch, decode.second) == (Padded(1, 2, 64, 16, 40), Padded(1, 128, 2048, 512, 25))
    near = Sizes(max_num_seqs=64, max_model_len=4096, num_blocks=1000, environ={"VLLM_BUCKETING_STRATEGY": "pad"})
    assert defaults.decode_ranges(of("0.26.0"), near).second == Padded(128, 128, 1000, 250, 25)
    assert len(known(buckets.prompt(of("0.26.0"), sizes))) > 1


def test_long_contexts_end_where_the_query_does() -> None:
    sizes = Sizes(max_num_seqs=8, max_model_len=8192, max_num_batched_tokens=2048, num_blocks=7593, prefix_caching=True)
    found = known(buckets.prompt(of("0.26.0"), sizes))
    widest: dict[int, int] = {}
    for _, query, context in found:
        widest[query] = max(widest.get(query, 0), context)
    assert widest == {query: (8192 - query) // 128 for query in widest}
    # A setting that forbids the edge keeps what came before it, which for the first query is the range's own end.
    capped = Sizes(
        max_num_seqs=8,
        max_model_len=8192,
        max_num_batched_tokens=2048,
        num_blocks=7593,
        prefix_caching=True,
        environ={"VLLM_PROMPT_CTX_BUCKET_MAX": "8"},
    )
    assert max(context for _, _, context in known(buckets.prompt(of("0.26.0"), capped))) == 48


def test_both_parts_count_together_to_0_20_and_apart_from_0_24() -> None:
    sizes = Sizes(max_num_seqs=8, max_model_len=1024, max_num_batched_tokens=1024, num_blocks=512, prefix_caching=True)
    together, apart = (known(buckets.prompt(of(text), sizes)) for text in ("0.19.0", "0.26.0"))
    assert set(together) < set(apart)
    assert all(query + context * 128 <= 1024 for _, query, context in together)
    unknown = buckets.prompt(of("0.21.0"), sizes)
    assert unknown.found is None
    assert "filters" in unknown.why


def test_a_plugin_without_buckets_is_refused() -> None:
    ranges = defaults.Ranges(Linear(8, 8, 8), Linear(1024, 128, 1024), Linear(0, 1, 4))
    sizes = Sizes(max_num_batched_tokens=1024, max_model_len=2048, prefix_caching=True)
    rule = plugin.prompt_rule(of("0.26.0"))
    assert rule is not None
    with pytest.raises(LawError, match="Generated 0 prompt buckets"):
        plugin.prompt(of("0.26.0"), ranges, sizes, rule)
    with pytest.raises(LawError, match="Generated 0 decode buckets"):
        plugin.decode(of("0.26.0"), defaults.Ranges(Linear(256, 1, 256), Linear(1, 1, 4)), sizes)
    with pytest.raises(LawError, match="range of contexts"):
        plugin.prompt(of("0.26.0"), defaults.Ranges(Linear(1, 1, 1), Linear(1, 1, 1)), sizes, rule)


def test_the_look_up_and_its_fallback() -> None:
    found = [(1, 128, 0), (1, 256, 4), (2, 128, 0), (4, 512, 8)]
    assert plugin.find(found, (1, 128, 0)) == (1, 128, 0)
    assert plugin.find(found, (1, 200, 1)) == (1, 256, 4)
    assert plugin.find(found, (2, 300, 0)) == (4, 512, 8)
    assert plugin.find(found, (1, 200, 5)) == (4, 512, 8)
    assert plugin.find(found, (8, 1, 0)) is None
    assert (plugin.fallback(31, 32), plugin.fallback(4001, 32)) == (128, 4096)
    assert (plugin.fallback(2, 2), plugin.fallback(300, 32)) == (4, 448)  # (2, 300) gets a bucket (4, 448)
    assert (plugin.fallback(0, 32), plugin.fallback(1, 2)) == (0, 1)


# Settings, and what is not known


@pytest.mark.parametrize(
    ("release", "environ", "expected"),
    [
        ("1.20", {"VLLM_EXPONENTIAL_BUCKETING": "true"}, "lin"),
        ("1.21.3", {}, "lin"),
        ("1.21.3", {"VLLM_EXPONENTIAL_BUCKETING": "true"}, "exp"),
        ("1.22", {}, "exp"),
        ("1.22", {"VLLM_EXPONENTIAL_BUCKETING": "False"}, "lin"),
        ("0.19.0", {"VLLM_BUCKETING_STRATEGY": "pad"}, "exp"),
        ("0.20.0", {"VLLM_BUCKETING_STRATEGY": "pad"}, "pad"),
        ("0.20.0", {"VLLM_BUCKETING_STRATEGY": "exp"}, "exp"),
        ("0.20.0", {"VLLM_BUCKETING_STRATEGY": "pad", "VLLM_EXPONENTIAL_BUCKETING": "0"}, "lin"),
        ("0.20.0", {"VLLM_BUCKETING_FROM_FILE": "buckets.txt"}, "file"),
    ],
)
def test_strategies(release: str, environ: dict[str, str], expected: str) -> None:
    assert defaults.strategy(of(release), environ) == expected


@pytest.mark.parametrize(
    ("release", "expected"),
    [
        ("1.17", (Linear(1, 32, 64), Linear(128, 128, 1024), Linear(1, 128, 256), Linear(128, 128, 2048))),
        ("1.18", (Linear(1, 32, 64), Linear(128, 128, 1024), Linear(32, 32, 256), Linear(128, 128, 4096))),
        ("1.20", (Linear(1, 32, 64), Linear(128, 128, 1024), Linear(1, 32, 256), Linear(128, 128, 4096))),
        ("1.21.3", (Linear(1, 32, 64), Linear(128, 128, 8192), Linear(1, 32, 256), Linear(128, 128, 16384))),
        ("1.22", (Linear(1, 32, 64), Linear(128, 128, 8192), Linear(1, 32, 256), Linear(128, 128, 7593))),
        ("0.19.0", (Linear(1, 1, 1), Linear(128, 128, 2048), Linear(1, 32, 256), Linear(1, 128, 7593))),
    ],
)
def test_the_twelve_defaults_by_release(release: str, expected: tuple[Linear, ...]) -> None:
    sizes = Sizes(
        max_num_seqs=256,
        max_model_len=8192,
        max_num_batched_tokens=2048,
        num_blocks=7593,
        environ={"VLLM_EXPONENTIAL_BUCKETING": "false"},
    )
    prompt, decode = defaults.prompt_ranges(of(release), sizes), defaults.decode_ranges(of(release), sizes)
    assert (prompt.batch, prompt.second, decode.batch, decode.second) == expected


def test_every_one_of_the_twelve_can_be_set() -> None:
    names = [("PROMPT", "BS"), ("PROMPT", "SEQ"), ("DECODE", "BS"), ("DECODE", "BLOCK")]
    environ = {
        f"VLLM_{phase}_{dim}_BUCKET_{end}": str(10 * place + offset)
        for place, (phase, dim) in enumerate(names, start=1)
        for offset, end in enumerate(("MIN", "STEP", "MAX"))
    }
    sizes = Sizes(max_num_seqs=256, environ=environ)
    prompt, decode = defaults.prompt_ranges(of("1.20"), sizes), defaults.decode_ranges(of("1.20"), sizes)
    found = (prompt.batch, prompt.second, decode.batch, decode.second)
    assert found == tuple(Linear(10 * place, 10 * place + 1, 10 * place + 2) for place in (1, 2, 3, 4))
    sequence = {"VLLM_DECODE_SEQ_BUCKET_MAX": "512"}
    older = defaults.decode_ranges(of("1.17"), Sizes(max_num_seqs=4, environ=sequence))
    assert older.second == Linear(128, 128, 512)


@pytest.mark.parametrize(
    ("release", "environ", "message"),
    [
        ("1.20", {"VLLM_PROMPT_BS_BUCKET_MIN": "one"}, "VLLM_PROMPT_BS_BUCKET_MIN must be a whole number, not 'one'"),
        ("1.20", {"VLLM_PROMPT_BS_BUCKET_MAX": "-1"}, "VLLM_PROMPT_BS_BUCKET_MAX must not be negative, not -1"),
        ("1.22", {"VLLM_EXPONENTIAL_BUCKETING": "perhaps"}, "VLLM_EXPONENTIAL_BUCKETING must be true or false"),
        ("0.20.0", {"VLLM_BUCKETING_STRATEGY": "both"}, "VLLM_BUCKETING_STRATEGY must be exp, lin or pad, not 'both'"),
    ],
)
def test_a_setting_that_is_wrong_is_named(release: str, environ: dict[str, str], message: str) -> None:
    sizes = Sizes(max_num_seqs=4, max_model_len=2048, max_num_batched_tokens=2048, environ=environ)
    with pytest.raises(LawError, match=message):
        buckets.prompt(of(release), sizes)


def test_a_size_that_is_missing_is_named() -> None:
    with pytest.raises(LawError, match="max_num_seqs is not known"):
        buckets.prompt(of("1.17"), Sizes())
    with pytest.raises(LawError, match="num_blocks is not known"):
        buckets.decode(of("1.20"), Sizes(max_num_seqs=4))
    with pytest.raises(LawError, match="block_size must be at least 1, not 0"):
        buckets.prompt(of("1.17"), Sizes(max_num_seqs=4, block_size=0))
    with pytest.raises(LawError, match=r"0\.18\.1 is not known"):
        defaults.decode_ranges(of("0.18.1"), LONG)


@pytest.mark.parametrize("ask", [buckets.prompt, buckets.decode])
@pytest.mark.parametrize(
    ("release", "environ", "why"),
    [
        ("0.20.0", {"VLLM_BUCKETING_FROM_FILE": "buckets.txt"}, "from a file"),
        ("1.20", {"VLLM_ENABLE_BUCKETING": "false"}, "switched off"),
        ("0.10.1", {}, "before 0.11.2"),
    ],
)
def test_buckets_that_cannot_be_known(ask: Any, release: str, environ: dict[str, str], why: str) -> None:
    found = ask(of(release), Sizes(max_num_seqs=4, environ=environ))
    assert found.found is None
    assert why in found.why


def test_more_buckets_than_can_be_warmed_up_are_not_counted() -> None:
    environ = {"VLLM_PROMPT_SEQ_BUCKET_MIN": "1", "VLLM_PROMPT_SEQ_BUCKET_STEP": "1", "VLLM_DECODE_BS_BUCKET_STEP": "1"}
    sizes = Sizes(
        max_num_seqs=8192, max_model_len=65536, max_num_batched_tokens=65536, num_blocks=9999, environ=environ
    )
    for found in (buckets.prompt(of("1.21.3"), sizes), buckets.decode(of("1.21.3"), sizes)):
        assert found.found is None
        assert "more than 200000" in found.why
    countable(200, 1000)


def test_switches() -> None:
    for text in ("1", "true", "True", " yes "):
        assert flag({"A": text}, "A", default=False)
    for text in ("0", "FALSE", "off"):
        assert not flag({"A": text}, "A", default=True)
    assert flag({}, "A", default=True)
    with pytest.raises(LawError, match="A must be true or false, not 'maybe'"):
        flag({"A": "maybe"}, "A", default=True)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0.6.6.post1+Gaudi-1.20.0", Release("gaudi", (1, 20, 0))),
        ("v0.4.2-Gaudi-1.16.0", Release("gaudi", (1, 16, 0))),
        ("1.21.3", Release("gaudi", (1, 21, 3))),
        ("v0.19.1.post1", Release("gaudi_plugin", (0, 19, 1))),
        ("0.27.0rc0", Release("gaudi_plugin", (0, 27, 0))),
        ("main", None),
    ],
)
def test_releases_by_their_version(text: str, expected: Release | None) -> None:
    assert buckets.release_of(text) == expected
