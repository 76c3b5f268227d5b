"""KV geometry by version: pages, groups, what is refused, and properties that hold for any model."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from budget_exporter.budget.kv_blocks import blocks, concurrency, longest, metric_blocks, needed, tokens, usable
from budget_exporter.budget.kv_geometry import geometry
from budget_exporter.budget.kv_settings import batched_tokens, settings
from budget_exporter.budget.kv_spec import DS_MLA, DS_MLA_V4, state_bytes, token_bytes
from budget_exporter.budget.kv_states import aligned_block
from budget_exporter.errors import LawError
from budget_exporter.facts.engine import Shape
from budget_exporter.facts.model import Attention, Index, Latent, Layer, ModelConfig, State
from budget_exporter.units import GIB

FULL: Layer = (Attention(8, 128, 128),)
SLIDING: Layer = (Attention(8, 128, 128, window=1024),)
CHUNKED: Layer = (Attention(8, 128, 128, chunk=8192),)
LATENT: Layer = (Latent(576),)
SPARSE: Layer = (Latent(576), Index(132))
DELTA = State("gdn", channels=10240, kernel=4, elements=48 * 128 * 128, heads=48)
MAMBA2 = State("mamba2", channels=4096, kernel=4, elements=64 * 64 * 128, heads=64, groups=8, group_size=128)
MAMBA1 = State("mamba1", channels=8192, kernel=4, elements=8192 * 16, heads=8192)
V19, V32 = (0, 19, 0), (0, 32, 0)
DRAFTING = Shape(speculative=True, speculative_method="mtp", speculative_tokens=3)


def model(*layers: Layer, kind: str = "llama", drafts: tuple[Layer, ...] = ()) -> ModelConfig:
    return ModelConfig("ForCausalLM", kind, layers, drafts)


def hybrid(state: State = DELTA, kind: str = "qwen3_5") -> ModelConfig:
    return model(*((state,), (state,), (state,), FULL) * 2, kind=kind, drafts=(FULL,))


# -- bytes a token


@pytest.mark.parametrize(
    ("dtype", "bytes_"),
    [
        ("float16", 4096),
        ("bfloat16", 4096),
        ("fp8", 2048),
        ("fp8_e4m3", 2048),
        ("fp8_e5m2", 2048),
        ("fp8_inc", 2048),
        ("int8_per_token_head", 2048 + 64),
        ("fp8_per_token_head", 2048 + 64),
        ("int4_per_token_head", 1024 + 64),
        ("nvfp4", 8 * 2 * (64 + 8)),
        ("nvfp4_4over6", 8 * 2 * (64 + 8)),
    ],
)
def test_each_type_of_grouped_attention(dtype: str, bytes_: int) -> None:
    layout = geometry(model(FULL), Shape(kv_cache_dtype=dtype), V32)
    assert layout.bytes_per_token == bytes_
    assert layout.dtype == dtype


def test_keys_and_values_of_different_sizes() -> None:
    assert token_bytes(Attention(4, 192, 128), "bfloat16", 1, V32) == 4 * (192 + 128) * 2


@pytest.mark.parametrize(
    ("dtype", "bytes_"), [("bfloat16", 1152), ("fp8", 576), ("fp8_ds_mla", DS_MLA), ("nvfp4_ds_mla", 352)]
)
def test_each_type_of_latent_attention_is_whole_on_every_rank(dtype: str, bytes_: int) -> None:
    for tensor in (1, 8):
        assert token_bytes(Latent(576), dtype, tensor, V32) == bytes_
    assert DS_MLA_V4 == 448 + 128 + 8


def test_heads_are_divided_until_there_is_one() -> None:
    prices = [geometry(model(FULL), Shape(tensor_parallel_size=n), V32).bytes_per_token for n in (1, 2, 8, 16)]
    assert prices == [4096, 2048, 512, 512]


@pytest.mark.parametrize(
    ("dtype", "version", "message"),
    [
        ("nvfp4", V19, "'nvfp4' is not known to vLLM 0.19.0"),
        ("int8_per_token_head", V19, "not known to vLLM"),
        ("turboquant_k8v4", V32, "kv_cache_dtype 'turboquant_k8v4'"),
        ("float32", V32, "kv_cache_dtype 'float32'"),
        ("fp8_ds_mla", V32, "kv_cache_dtype 'fp8_ds_mla'"),
    ],
)
def test_an_unknown_type_is_an_error_that_names_it(dtype: str, version: tuple[int, ...], message: str) -> None:
    with pytest.raises(LawError, match=message):
        geometry(model(FULL), Shape(kv_cache_dtype=dtype), version)


def test_four_bits_need_whole_blocks_of_scale() -> None:
    with pytest.raises(LawError, match="'nvfp4' needs head sizes"):
        geometry(model((Attention(8, 72, 72),)), Shape(kv_cache_dtype="nvfp4"), V32)


def test_auto_is_the_models_type_and_never_float32() -> None:
    for own in (None, "float32", "float8_e4m3fn", "bfloat16", "float16"):
        layout = geometry(replace(model(FULL), dtype=own), Shape(), V32)
        assert layout.bytes_per_token == 4096
    assert geometry(model(FULL), Shape(given={"dtype": "float"}), V32).bytes_per_token == 8192


def test_a_checkpoint_quantized_for_fp8_decides_auto_from_0_19() -> None:
    config = replace(model(FULL), kv_dtype="fp8")
    assert geometry(config, Shape(), V19).bytes_per_token == 2048
    assert geometry(config, Shape(), (0, 13)).bytes_per_token == 4096
    assert geometry(config, Shape(kv_cache_dtype="bfloat16"), V19).bytes_per_token == 4096
    with pytest.raises(LawError, match="kv_cache_dtype auto"):
        geometry(config, Shape(), (0, 16))


def test_sparse_attention_keeps_its_index_beside_the_latent_vector() -> None:
    config = model(*(SPARSE,) * 61, kind="deepseek_v32")
    assert geometry(config, Shape(), (0, 11, 0)).bytes_per_token == 61 * (656 + 132)
    assert geometry(config, Shape(), (0, 12)).bytes_per_token == 61 * (1152 + 132)
    assert geometry(config, Shape(kv_cache_dtype="bfloat16"), (0, 11, 0)).bytes_per_token == 61 * (1152 + 132)
    assert geometry(config, Shape(kv_cache_dtype="fp8"), (0, 12)).bytes_per_token == 61 * (656 + 132)
    assert geometry(config, Shape(kv_cache_dtype="fp8_ds_mla"), V32).bytes_per_token == 61 * (656 + 132)
    assert geometry(config, Shape(kv_cache_dtype="nvfp4_ds_mla"), V32).bytes_per_token == 61 * (352 + 132)
    with pytest.raises(LawError, match="'fp8' of a sparse model"):
        geometry(config, Shape(kv_cache_dtype="fp8"), V32)
    with pytest.raises(LawError, match=r"before 0\.11"):
        geometry(config, Shape(kv_cache_dtype="bfloat16"), (0, 10, 2))


# -- groups


@pytest.mark.parametrize(
    ("version", "groups", "size"),
    [((0, 10, 2), 3, 12), ((0, 12), 2, 13), ((0, 17), 2, 13), ((0, 18), 2, 13), (V32, 2, 13)],
)
def test_a_draft_layer_pads_the_other_kind_from_0_12(version: tuple[int, ...], groups: int, size: int) -> None:
    """12 sliding and 13 whole layers: 13 of each, where 12 would make a third group of one layer."""
    config = model(*(SLIDING, FULL) * 12, FULL)
    layout = geometry(config, Shape(), version)
    assert len(layout.groups) == groups
    assert layout.stages == (size * 16 * 4096,)


@pytest.mark.parametrize(("version", "groups"), [((0, 17), 3), ((0, 18), 2)])
def test_the_ratio_that_pads_grew_with_0_18(version: tuple[int, ...], groups: int) -> None:
    config = model(*(SLIDING,) * 10, *(FULL,) * 14)
    assert len(geometry(config, Shape(), version).groups) == groups


def test_padding_layers_cost_as_much_as_layers() -> None:
    """10 whole and 52 sliding layers make groups of 10, the last of them with 8 of padding."""
    config = model(*((SLIDING,) * 5 + (FULL,)) * 10, *(SLIDING,) * 2)
    layout = geometry(config, Shape(), V32)
    assert len(layout.groups) == 7
    assert layout.bytes_per_token == 70 * 4096


def test_before_0_9_1_and_without_the_hybrid_manager_a_window_saves_nothing() -> None:
    config = model(*(SLIDING, FULL) * 2)
    off = Shape(given={"disable-hybrid-kv-cache-manager": "true"})
    for shape, version in ((off, V32), (Shape(), (0, 8, 5))):
        layout = geometry(config, shape, version)
        assert [group.spec.kind for group in layout.groups] == ["full"]
        assert layout.bytes_per_token == 4 * 4096
    only = geometry(model(SLIDING, SLIDING), off, V32)
    assert [group.spec.kind for group in only.groups] == ["sliding"]


def test_layers_without_a_kind_in_common_need_the_hybrid_manager() -> None:
    with pytest.raises(LawError, match="no kind in common"):
        geometry(hybrid(), Shape(given={"disable-hybrid-kv-cache-manager": "true"}), V32)


def test_pages_of_different_sizes_take_more_tokens_a_block() -> None:
    config = model(*((Attention(8, 64, 64, window=512),), FULL) * 2)
    layout = geometry(config, Shape(max_num_batched_tokens=512), (0, 24))
    assert [(group.spec.kind, group.spec.block_size) for group in layout.groups] == [("sliding", 32), ("full", 16)]
    assert len({group.spec.page for group in layout.groups}) == 1
    assert layout.bytes_per_token == 2 * 4096 + 4096
    for version, message in (((0, 11, 2), "before 0.12"), ((0, 29), "layout")):
        with pytest.raises(LawError, match=message):
            geometry(config, Shape(), version)
    with pytest.raises(LawError, match="does not divide"):
        geometry(model((Attention(3, 64, 64, window=512),), FULL), Shape(), (0, 24))


def test_kinds_that_need_as_many_slots_share_one_group() -> None:
    wide: Layer = (Attention(16, 128, 128),)
    layout = geometry(model(FULL, wide), Shape(), V32)
    assert len(layout.groups) == 1
    assert layout.bytes_per_token == 3 * 4096
    windows = geometry(model(SLIDING, (Attention(16, 128, 128, window=1024),)), Shape(), V32)
    assert len(windows.groups) == 1


def test_chunked_layers_are_not_guessed_at_where_a_default_is_unknown() -> None:
    config = model(*(CHUNKED, CHUNKED, CHUNKED, FULL) * 12)
    assert len(geometry(config, Shape(), V19).groups) == 4
    with pytest.raises(LawError, match="chunked layers"):
        geometry(config, Shape(), (0, 12))
    off = Shape(given={"disable-hybrid-kv-cache-manager": "true"})
    assert len(geometry(config, off, (0, 12)).groups) == 1
    assert len(geometry(config, Shape(), (0, 10)).groups) == 4
    variable = "VLLM_ALLOW_CHUNKED_LOCAL_ATTN_WITH_HYBRID_KV_CACHE"
    for text, groups in (("1", 4), ("0", 1)):
        assert len(geometry(config, Shape(environ={variable: text}), (0, 12)).groups) == groups
    with pytest.raises(LawError, match=variable):
        geometry(config, Shape(environ={variable: "yes"}), (0, 12))


@pytest.mark.parametrize(
    ("config", "shape", "version", "message"),
    [
        (model(FULL), Shape(layout_flags=("hf-overrides",)), V32, "--hf-overrides"),
        (model(FULL), Shape(layout_flags=("kv-cache-dtype-skip-layers",)), V32, "--kv-cache-dtype-skip-layers"),
        (model(SLIDING, FULL), Shape(layout_flags=("kv-transfer-config",)), V32, "--kv-transfer-config"),
        (model(SLIDING, FULL), Shape(layout_flags=("disable-sliding-window",)), V32, "--disable-sliding-window"),
        (model(LATENT), Shape(environ={"VLLM_MLA_DISABLE": "1"}), V32, "VLLM_MLA_DISABLE"),
        (model(FULL), Shape(environ={"VLLM_USE_V1": "0"}), (0, 10), "VLLM_USE_V1"),
    ],
)
def test_what_changes_the_layout_unseen_is_refused(
    config: ModelConfig, shape: Shape, version: tuple[int, ...], message: str
) -> None:
    with pytest.raises(LawError, match=message):
        geometry(config, shape, version)


def test_what_changes_nothing_here_is_not_refused() -> None:
    flags = ("disable-sliding-window", "kv-events-config", "kv-transfer-config")
    shape = Shape(layout_flags=flags, environ={"VLLM_MLA_DISABLE": "1", "VLLM_USE_V1": "0"})
    assert geometry(model(FULL), shape, V32).bytes_per_token == 4096
    connected = Shape(layout_flags=flags[1:], given={"disable-hybrid-kv-cache-manager": "true"})
    assert len(geometry(model(SLIDING, FULL), connected, V32).groups) == 1


# -- pipeline stages


@pytest.mark.parametrize(
    ("layers", "pipeline", "expected"),
    [(32, 2, [16, 16]), (30, 4, [7, 8, 8, 7]), (31, 4, [8, 8, 8, 7]), (5, 2, [3, 2])],
)
def test_layers_left_over_go_before_the_last_stage(layers: int, pipeline: int, expected: list[int]) -> None:
    layout = geometry(model(*(FULL,) * layers), Shape(pipeline_parallel_size=pipeline), V32)
    assert [size // (16 * 4096) for size in layout.stages] == expected
    assert layout.bytes_per_token == max(expected) * 4096


def test_the_environment_may_part_the_layers() -> None:
    def parted(text: str) -> tuple[int, ...]:
        shape = Shape(pipeline_parallel_size=2, environ={"VLLM_PP_LAYER_PARTITION": text})
        return geometry(model(*(FULL,) * 6), shape, V32).stages

    assert parted("2,4") == (2 * 16 * 4096, 4 * 16 * 4096)
    assert parted("") == (3 * 16 * 4096,) * 2
    for text in ("2,5", "1,2,3", "-1,7", "two"):
        with pytest.raises(LawError, match="VLLM_PP_LAYER_PARTITION"):
            parted(text)


def test_groups_are_dealt_over_the_stages() -> None:
    """From 0.11 on a group takes every n-th layer of its kind, so that each stage holds half of each group."""
    config = model(*(SLIDING, SLIDING, FULL) * 4)
    assert geometry(config, Shape(pipeline_parallel_size=2), V32).stages == (2 * 16 * 4096,) * 2
    assert geometry(config, Shape(pipeline_parallel_size=2), (0, 10, 2)).stages == (4 * 16 * 4096,) * 2


def test_more_stages_than_layers_is_an_error() -> None:
    with pytest.raises(LawError, match="pipeline_parallel_size 3"):
        geometry(model(FULL, FULL), Shape(pipeline_parallel_size=3), V32)


# -- drafts


def test_a_prediction_layer_counts_only_when_it_drafts() -> None:
    config = model(*(LATENT,) * 61, drafts=(LATENT,))
    assert geometry(config, Shape(), V32).bytes_per_token == 61 * 1152
    assert geometry(config, DRAFTING, V32).bytes_per_token == 62 * 1152
    ngram = Shape(speculative=True, speculative_method="ngram", speculative_tokens=3)
    assert geometry(config, ngram, V32).bytes_per_token == 61 * 1152


def test_a_draft_model_adds_its_own_layers() -> None:
    shape = Shape(speculative=True, given={"spec-method": "eagle3", "spec-tokens": "3"})
    layout = geometry(model(*(FULL,) * 4), shape, V32, draft=model(FULL))
    assert layout.bytes_per_token == 5 * 4096
    assert layout.drafts == 3


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        (Shape(speculative=True), "speculative_method: not known"),
        (Shape(speculative=True, speculative_method="eagle"), "'eagle': the draft model"),
        (DRAFTING, "names no prediction layers"),
    ],
)
def test_a_draft_that_is_not_known_is_an_error(shape: Shape, message: str) -> None:
    with pytest.raises(LawError, match=message):
        geometry(model(FULL), shape, V32)


# -- recurrent states


@pytest.mark.parametrize(
    ("token", "inputs", "own", "drafts", "block"),
    [
        (4096, "bfloat16", "float16", 15, 480),
        (2080, "bfloat16", "float16", 7, 864),
        (4096, "bfloat16", "float32", 0, 784),
    ],
    ids=["15 drafts", "7 drafts, int8 per token and head", "none"],
)
def test_block_sizes_that_qwen38_27b_was_seen_with(token: int, inputs: str, own: str, drafts: int, block: int) -> None:
    """Start-up lines of a 27B on an RTX 3090, published as syv-ai/qwen38-27b-rtx3090 issue 102, and of the report."""
    state = state_bytes(DELTA, 1, inputs, own, drafts, V32)
    assert aligned_block(settings(Shape()), V32, "align", 16, token, state, None) == block


def test_two_ranks_with_seven_drafts_as_published() -> None:
    """noonghunna/club-3090 issue 1107: TP 2, fp8, seven drafts: 1648 tokens a block, padded by 0.73 %."""
    state = state_bytes(DELTA, 2, "bfloat16", "float32", 7, V32)
    block = aligned_block(settings(Shape()), V32, "align", 16, 1024, state, None)
    assert block == 1648
    assert f"{100 * (block * 1024 - state) / state:.2f}" == "0.73"


def test_drafts_add_to_the_state_and_to_a_request() -> None:
    plain = geometry(hybrid(), Shape(), V32)
    drafting = geometry(hybrid(), DRAFTING, V32)
    assert plain.mode == drafting.mode == "align"
    block = plain.groups[-1].spec.block_size
    assert needed(plain, block) == 3 * 2 + 1
    assert needed(drafting, drafting.groups[-1].spec.block_size) == 2 * (2 + 3) + 1
    with pytest.raises(LawError, match="speculative_tokens"):
        geometry(hybrid(), Shape(speculative=True, speculative_method="mtp"), V32)


def test_mamba_2_keeps_drafts_from_0_17_and_repeats_groups() -> None:
    assert state_bytes(MAMBA2, 1, "bfloat16", "float32", 2, (0, 16)) == 6144 * 3 * 2 + 524288 * 4
    assert state_bytes(MAMBA2, 1, "bfloat16", "float32", 2, (0, 17)) == 6144 * 5 * 2 + 524288 * 4
    assert (
        state_bytes(MAMBA2, 16, "bfloat16", "float32", 0, V32) == (4096 + 2 * 16 * 128) // 16 * 3 * 2 + 524288 // 16 * 4
    )
    with pytest.raises(LawError, match="tensor_parallel_size 3"):
        state_bytes(MAMBA2, 3, "bfloat16", "float32", 0, V32)


@pytest.mark.parametrize(
    ("version", "caching", "wanted", "state", "kept", "request_"),
    [
        ((0, 11, 0), "true", None, MAMBA2, "none", 1),
        ((0, 12), None, None, MAMBA2, "none", 1),
        ((0, 12), "true", None, MAMBA2, "all", 4),
        ((0, 12), "true", None, DELTA, "none", 1),
        ((0, 16), None, None, MAMBA2, "none", 1),
        ((0, 16), "true", None, MAMBA2, "all", 4),
        ((0, 16), "true", "align", MAMBA2, "align", 2),
        ((0, 16), "true", "all", DELTA, "align", 2),
        ((0, 26), None, None, DELTA, "align", 2),
        ((0, 26), "false", "align", DELTA, "none", 1),
        ((0, 28), None, None, MAMBA2, "align", 2),
        ((0, 28), None, "all", MAMBA2, "all", 4),
        (V32, None, "none", MAMBA2, "align", 3),
    ],
)
def test_how_many_states_a_request_holds(
    version: tuple[int, ...], caching: str | None, wanted: str | None, state: State, kept: str, request_: int
) -> None:
    flags = {"enable-prefix-caching": caching, "mamba-cache-mode": wanted}
    config = replace(hybrid(state, kind="bamba"), chunk_size=256)
    layout = geometry(config, Shape(given={name: text for name, text in flags.items() if text}), version)
    length = 4 * next(group.spec.block_size for group in layout.groups)
    assert layout.mode == kept
    assert needed(layout, length) == 3 * request_ + 4


def test_states_at_every_block_count_drafts_from_0_22() -> None:
    config = replace(hybrid(MAMBA2, kind="bamba"), chunk_size=256)
    shape = replace(DRAFTING, speculative_method="ngram", given={"enable-prefix-caching": "true"})
    for version, more in (((0, 21), 0), ((0, 22), 3 * 3)):
        layout = geometry(config, shape, version)
        assert needed(layout, layout.groups[-1].spec.block_size) == 3 + 1 + more


def test_states_at_every_block_are_a_multiple_of_the_kernels_chunk() -> None:
    on = {"enable-prefix-caching": "true"}
    config = replace(hybrid(MAMBA2, kind="bamba"), chunk_size=256)
    assert geometry(config, Shape(given=on), (0, 19)).groups[0].spec.block_size % 256 == 0
    own = geometry(config, Shape(given={**on, "mamba-block-size": "96"}), (0, 19))
    assert own.groups[0].spec.block_size % 96 == 0
    with pytest.raises(LawError, match="chunk_size"):
        geometry(replace(config, chunk_size=None), Shape(given=on), (0, 19))
    with pytest.raises(LawError, match="mamba-cache-mode all"):
        geometry(config, Shape(given={"mamba-cache-mode": "all"}), V32)


@pytest.mark.parametrize(
    ("kind", "own", "version", "given", "platform", "elements"),
    [
        ("nemotron_h", None, (0, 12), {}, "", 2),
        ("nemotron_h", None, (0, 19), {}, "", 2),
        ("nemotron_h", "float32", (0, 19), {}, "", 4),
        ("nemotron_h", None, (0, 20), {}, "", 4),
        ("nemotron_h", None, (0, 20), {"mamba-ssm-cache-dtype": "bfloat16"}, "", 2),
        ("qwen3_5", "float32", (0, 16), {}, "", 2),
        ("qwen3_5", "float32", (0, 17), {}, "", 4),
        ("qwen3_5", "float32", (0, 17), {"mamba-ssm-cache-dtype": "auto"}, "", 4),
        ("bamba", "float32", V32, {}, "", 2),
        ("bamba", None, V32, {}, "host", 4),
        ("bamba", None, V32, {"mamba-cache-dtype": "float32"}, "", 4),
    ],
)
def test_the_type_of_a_state(
    kind: str, own: str | None, version: tuple[int, ...], given: dict[str, str], platform: str, elements: int
) -> None:
    state = State("mamba1", channels=1024, kernel=1, elements=1 << 20, heads=1024)
    config = replace(model((state,), kind=kind), state_dtype=own)
    assert geometry(config, Shape(given=given), version, platform=platform).stages == ((1 << 20) * elements,)


def test_a_short_convolution_has_no_state_but_its_inputs() -> None:
    state = State("short_conv", channels=2048, kernel=3, heads=2048)
    layout = geometry(model((state,)), Shape(given={"mamba-ssm-cache-dtype": "float32"}), V32)
    assert layout.stages == (2048 * 2 * 2,)


def test_a_model_without_attention() -> None:
    layout = geometry(model((MAMBA1,), (MAMBA1,), kind="mamba"), Shape(), V19)
    assert layout.mode == "none"
    assert layout.bytes_per_token == 0
    number = blocks(layout, [10 * layout.stages[0]])
    assert number == 10
    assert concurrency(layout, number, 2048) == 10
    assert tokens(layout, number, 2048) == 10 * 2048


def test_a_draft_with_larger_pages_pads_the_states_from_0_26() -> None:
    wide = model((Attention(16, 128, 128),))
    shape = Shape(speculative=True, speculative_method="eagle", speculative_tokens=1)
    assert len({group.spec.page for group in geometry(hybrid(), shape, (0, 26), draft=wide).groups}) == 1
    with pytest.raises(LawError, match=r"before 0\.26"):
        geometry(hybrid(), shape, (0, 24), draft=wide)


def test_states_on_a_cpu_before_0_20_are_not_guessed_at() -> None:
    with pytest.raises(LawError, match=r"on CPU before 0\.20"):
        geometry(hybrid(), Shape(), V19, platform="host")


# -- block sizes


@pytest.mark.parametrize(
    ("layer", "shape", "version", "platform", "size", "assumed"),
    [
        (FULL, Shape(), V32, "nvidia", 16, True),
        (FULL, Shape(block_size=32), V32, "nvidia", 32, False),
        (SPARSE, Shape(), V32, "nvidia", 64, True),
        (FULL, Shape(), V32, "host", 128, False),
        (FULL, Shape(), (0, 10, 2), "host", 16, True),
        (LATENT, Shape(block_size=64), V32, "host", 16, False),
        (LATENT, Shape(), (0, 24), "host", 128, False),
    ],
)
def test_default_block_sizes_say_where_they_are_assumed(
    layer: Layer, shape: Shape, version: tuple[int, ...], platform: str, size: int, assumed: bool
) -> None:
    layout = geometry(model(layer), shape, version, platform=platform)
    assert layout.groups[0].spec.block_size == size
    assert bool(layout.notes) is assumed


# -- blocks, tokens, concurrency


def test_the_least_pool_decides_for_all_ranks() -> None:
    layout = geometry(model(*(FULL,) * 6), Shape(tensor_parallel_size=2, pipeline_parallel_size=2), V32)
    block = layout.stages[0]
    assert blocks(layout, [10 * block]) == 10
    assert blocks(layout, [10 * block, 9 * block, 12 * block, 11 * block]) == 9
    assert blocks(layout, [10 * block, -1, 12 * block, 11 * block]) == 0
    with pytest.raises(LawError, match="3 KV pools for 4 ranks"):
        blocks(layout, [1, 2, 3])


def test_an_override_replaces_what_the_pool_gives() -> None:
    layout = geometry(model(FULL), Shape(num_gpu_blocks_override=77), V32)
    assert blocks(layout, [GIB]) == 77


def test_the_null_block_is_not_for_requests() -> None:
    assert (usable(1024), usable(1), usable(0)) == (1023, 0, 0)


def test_replicas_are_summed_in_the_metric_from_0_9_2() -> None:
    layout = geometry(model(FULL), Shape(data_parallel_size=2), (0, 9, 2))
    assert metric_blocks(layout, 10) == 20
    assert metric_blocks(replace(layout, version=(0, 9, 1)), 10) == 10


def test_the_two_definitions_of_the_kv_cache_size() -> None:
    """A length that is no multiple of the block: up to 0.20.0 slots are counted, from 0.20.1 on requests."""
    config = model(FULL)
    old, new = (geometry(config, Shape(block_size=32), version) for version in ((0, 20, 0), (0, 20, 1)))
    assert tokens(old, 77, 1000) == 77 * 32
    assert tokens(new, 77, 1000) == 2406
    assert concurrency(old, 77, 1000) == concurrency(new, 77, 1000) == 77 / 32
    oldest = geometry(config, Shape(block_size=32), (0, 9, 0, 1))
    assert concurrency(oldest, 77, 1000) == 77 * 32 / 1000


def test_a_hybrid_counts_its_smallest_blocks() -> None:
    layout = geometry(model(*(SLIDING, FULL) * 2), Shape(max_num_batched_tokens=2048), V19)
    assert tokens(layout, 101, 8192) == 50 * 16
    assert needed(layout, 8192) == 512 + (1023 + 2048 + 15) // 16 + 1


def test_context_parallel_shares_a_request_out() -> None:
    both = {"decode-context-parallel-size": "4", "prefill-context-parallel-size": "2"}
    for version, ranks in (((0, 10, 1), 1), ((0, 10, 2), 4), ((0, 12), 8), ((0, 25, 1), 8), ((0, 26), 4)):
        layout = geometry(model(*(LATENT,) * 2), Shape(given=both, block_size=16), version)
        assert layout.context_parallel == ranks
        assert needed(layout, 8192) == 8192 // ranks // 16
    with pytest.raises(LawError, match="decode_context_parallel_size"):
        geometry(model(SLIDING, FULL), Shape(given=both), V32)


@pytest.mark.parametrize(
    ("shape", "version", "platform", "flights"),
    [
        (Shape(), (0, 25), "nvidia", (2048,)),
        (Shape(), (0, 26), "nvidia", (4096,)),
        (Shape(), (0, 26), "host", (2048,)),
        (Shape(given={"async-scheduling": "false"}), (0, 26), "nvidia", (2048,)),
        (Shape(given={"async-scheduling": "true"}, pipeline_parallel_size=2), (0, 26), "nvidia", (4096, 6144)),
        (replace(DRAFTING, speculative_method="ngram"), (0, 26), "nvidia", (2048, 4096)),
        (replace(DRAFTING, speculative_method="ngram", given={"async-scheduling": "true"}), (0, 26), "amd", (4096,)),
    ],
)
def test_tokens_in_flight(shape: Shape, version: tuple[int, ...], platform: str, flights: tuple[int, ...]) -> None:
    layout = geometry(model(FULL, FULL), shape, version, platform=platform, batched_tokens=2048)
    assert layout.in_flight == flights


def test_an_unknown_batch_is_no_figure_but_where_it_does_not_matter() -> None:
    layout = geometry(model(SLIDING, FULL), Shape(), V32)
    assert needed(layout, 1000) == 63 + 64
    assert needed(layout, 8192) is None
    assert concurrency(layout, 100, 8192) is None
    assert tokens(layout, 100, 8192) is None
    assert longest(layout, 100_000, 8192) is None
    either = geometry(model(SLIDING, FULL), replace(DRAFTING, speculative_method="ngram"), V32, batched_tokens=2048)
    assert needed(either, 2048) == 128 + 129
    assert needed(either, 8192) is None
    chunks = geometry(model(CHUNKED, FULL), Shape(), V32)
    assert needed(chunks, 8192) == 512 + 512


def test_the_longest_request_sets_the_null_block_aside_from_0_29() -> None:
    for version, length in (((0, 28), 15 * 16), ((0, 29), 14 * 16)):
        assert longest(geometry(model(FULL), Shape(), version), 15, 8192) == length
    assert longest(geometry(model(FULL), Shape(), V32), 15, 100) == 100
    assert longest(geometry(model(FULL), Shape(), V32), 1, 100) == 0


def test_a_model_without_any_cache_has_the_null_block() -> None:
    layout = geometry(model((), ()), Shape(), V32)
    assert blocks(layout, [GIB]) == 1
    assert tokens(layout, 1, 2048) is None
    assert concurrency(layout, 1, 2048) is None


def test_a_length_below_one_is_an_error() -> None:
    with pytest.raises(LawError, match="max_model_len"):
        needed(geometry(model(FULL), Shape(), V32), 0)


# -- settings


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        (Shape(block_size=0), "block_size"),
        (Shape(tensor_parallel_size=0), "tensor_parallel_size"),
        (Shape(num_gpu_blocks_override=0), "num_gpu_blocks_override"),
        (Shape(given={"dtype": "int3"}), "--dtype"),
        (Shape(given={"decode-context-parallel-size": "two"}), "--decode-context-parallel-size"),
        (Shape(given={"decode-context-parallel-size": "0"}), "--decode-context-parallel-size"),
        (Shape(given={"mamba-cache-mode": "some"}), "--mamba-cache-mode"),
        (Shape(given={"mamba-cache-dtype": "int8"}), "--mamba-cache-dtype"),
    ],
)
def test_a_bad_setting_names_its_flag(shape: Shape, message: str) -> None:
    with pytest.raises(LawError, match=message):
        settings(shape)


def test_a_flag_left_empty_is_not_given() -> None:
    assert settings(Shape(given={"mamba-block-size": "None", "spec-tokens": ""})).state_block_size is None


@pytest.mark.parametrize(
    ("shape", "version", "platform", "gib", "name", "length", "batch"),
    [
        (Shape(max_num_batched_tokens=777), V32, "tpu", 16, "", 1000, 777),
        (Shape(), V32, "tpu", 16, "", 1000, None),
        (Shape(), V32, "nvidia", 24, "RTX 3090", 8192, 2048),
        (Shape(), V32, "nvidia", 80, "H100", 8192, 8192),
        (Shape(), V32, "nvidia", 80, "NVIDIA A100-SXM4-80GB", 8192, 2048),
        (Shape(), V32, "nvidia", 180, "B200", 8192, 16384),
        (Shape(), (0, 31), "amd", 192, "MI300X", 8192, 8192),
        (Shape(tensor_parallel_size=2), V32, "host", 64, "", 8192, 4096),
        (Shape(max_num_seqs=2), V32, "nvidia", 80, "H100", 1000, 2000),
    ],
)
def test_the_default_size_of_a_batch(
    shape: Shape, version: tuple[int, ...], platform: str, gib: int, name: str, length: int, batch: int | None
) -> None:
    assert batched_tokens(shape, version, platform, gib * GIB, name, length) == batch


# -- properties

CACHES = st.one_of(
    st.builds(Attention, st.sampled_from([1, 2, 4, 8, 16]), st.sampled_from([64, 128]), st.just(128)),
    st.builds(Latent, st.integers(1, 1024)),
)
VERSIONS = st.sampled_from([(0, 11), (0, 12), (0, 18), V19, (0, 20, 1), (0, 24), (0, 29), V32])


@st.composite
def whole_models(draw: st.DrawFn) -> ModelConfig:
    return model(*((draw(CACHES),) for _ in range(draw(st.integers(1, 12)))))


@given(whole_models(), VERSIONS)
def test_more_ranks_never_raise_the_price_of_a_token(config: ModelConfig, version: tuple[int, ...]) -> None:
    prices = [geometry(config, Shape(tensor_parallel_size=n), version).bytes_per_token for n in (1, 2, 4, 8, 16)]
    assert prices == sorted(prices, reverse=True)


@given(st.lists(st.sampled_from([FULL, SLIDING]), min_size=1, max_size=20), VERSIONS)
def test_groups_hold_every_layer_once_and_none_is_cheaper_than_its_layers(
    layers: list[Layer], version: tuple[int, ...]
) -> None:
    layout = geometry(model(*layers), Shape(), version)
    assert sum(len(group.members) for group in layout.groups) == len(layers)
    assert layout.bytes_per_token >= len(layers) * 4096
    assert all(group.page(0) <= layout.stages[0] for group in layout.groups)


@given(whole_models(), VERSIONS, st.integers(0, GIB), st.integers(0, GIB), st.integers(1, 1 << 20))
def test_more_bytes_never_hold_fewer_tokens(
    config: ModelConfig, version: tuple[int, ...], pool: int, more: int, length: int
) -> None:
    layout = geometry(config, Shape(), version)
    small, large = blocks(layout, [pool]), blocks(layout, [pool + more])
    assert small * layout.stages[0] <= pool < (small + 1) * layout.stages[0]
    held = [(tokens(layout, number, length), concurrency(layout, number, length)) for number in (small, large)]
    assert held[0][0] is not None
    assert held[1][0] is not None
    assert held[0][1] is not None
    assert held[1][1] is not None
    assert held[0][0] <= held[1][0]
    assert held[0][1] <= held[1][1]


@given(st.lists(st.sampled_from([FULL, SLIDING, CHUNKED]), min_size=1, max_size=12), st.integers(1, 1 << 18))
def test_a_longer_request_never_needs_fewer_blocks(layers: list[Layer], length: int) -> None:
    layout = geometry(model(*layers), Shape(max_num_batched_tokens=2048), V32)
    shorter, longer = needed(layout, length), needed(layout, length + 1)
    assert shorter is not None
    assert longer is not None
    assert shorter <= longer


@given(whole_models(), st.integers(0, 5000), st.integers(1, 1 << 16))
def test_the_longest_request_fits_and_a_longer_one_does_not(config: ModelConfig, number: int, limit: int) -> None:
    layout = geometry(config, Shape(), V32)
    length = longest(layout, number, limit)
    assert length is not None
    if length:
        held = needed(layout, length)
        assert held is not None
        assert held <= usable(number)
    if length < limit:
        beyond = needed(layout, length + 1)
        assert beyond is not None
        assert beyond > usable(number)


@given(st.integers(0, 8), st.sampled_from([1, 2, 4, 8, 16]))
def test_the_page_of_a_hybrid_holds_its_state(drafts: int, tensor: int) -> None:
    shape = Shape(tensor_parallel_size=tensor, speculative=True, speculative_method="suffix", speculative_tokens=drafts)
    layout = geometry(hybrid(), shape, V32)
    state = state_bytes(DELTA, tensor, "bfloat16", "bfloat16", drafts, V32)
    for group in layout.groups:
        assert group.spec.page >= state
        assert group.spec.block_size % 16 == 0
