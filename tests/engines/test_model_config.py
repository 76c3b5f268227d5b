"""Reading config.json: what each family's layers keep, and that whatever is wrong is named."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from budget_exporter.budget.kv_blocks import needed
from budget_exporter.budget.kv_geometry import geometry
from budget_exporter.engines.model_config import FAMILIES, parse
from budget_exporter.errors import LawError
from budget_exporter.facts.engine import Shape
from budget_exporter.facts.model import Attention, Index, Latent, Layer, ModelConfig, State

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_hidden_layers": 3,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "hidden_size": 4096,
    "max_position_embeddings": 131072,
    "torch_dtype": "bfloat16",
}
QWEN = {**LLAMA, "model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]}
LATENT: dict[str, Any] = {
    "model_type": "deepseek_v3",
    "num_hidden_layers": 2,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "num_nextn_predict_layers": 1,
}
DELTA: dict[str, Any] = {
    "model_type": "qwen3_next",
    "num_hidden_layers": 4,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
}
MAMBA_D: dict[str, Any] = {
    "num_hidden_layers": 2,
    "num_key_value_heads": 8,
    "num_attention_heads": 32,
    "hidden_size": 4096,
    "mamba_n_heads": 128,
    "mamba_d_head": 64,
    "mamba_d_state": 128,
    "mamba_n_groups": 1,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
}
NEMOTRON: dict[str, Any] = {
    "model_type": "nemotron_h",
    "num_key_value_heads": 8,
    "head_dim": 128,
    "mamba_num_heads": 128,
    "mamba_head_dim": 80,
    "ssm_state_size": 128,
    "n_groups": 8,
    "conv_kernel": 4,
    "chunk_size": 128,
    "mamba_ssm_cache_dtype": "float32",
}
FULL: Layer = (Attention(8, 128, 128),)


def read(config: dict[str, Any], **more: Any) -> ModelConfig:
    return parse(json.dumps({**config, **more}))


def kinds(config: ModelConfig) -> list[str]:
    """Return one letter a layer: whole, sliding, chunked, latent, state, nothing."""
    letters = []
    for layer in config.layers:
        marks = ""
        for cache in layer:
            if isinstance(cache, Attention):
                marks += "s" if cache.window is not None else "c" if cache.chunk is not None else "f"
            else:
                marks += {Latent: "l", Index: "i", State: "m"}[type(cache)]
        letters.append(marks or "-")
    return letters


def test_a_plain_model() -> None:
    config = read(LLAMA)
    assert config == ModelConfig(
        "LlamaForCausalLM", "llama", (FULL,) * 3, dtype="bfloat16", max_model_len=131072, query_heads=32
    )


def test_heads_and_their_size_by_other_names() -> None:
    gpt2 = {"model_type": "gpt2", "n_layer": 2, "n_head": 12, "n_embd": 768}
    assert read(gpt2).layers == ((Attention(12, 64, 64),),) * 2
    bigcode = {"model_type": "gpt_bigcode", "n_layer": 1, "n_head": 48, "n_embd": 6144, "multi_query": True}
    assert read(bigcode).layers == ((Attention(1, 128, 128),),)
    falcon = {"model_type": "falcon", "num_hidden_layers": 1, "num_attention_heads": 128, "hidden_size": 8192}
    new = {"num_kv_heads": 8, "new_decoder_architecture": True, "multi_query": True}
    assert read(falcon, **new).layers == ((Attention(8, 64, 64),),)
    assert read(LLAMA, num_key_value_heads=None).layers == ((Attention(32, 128, 128),),) * 3
    assert read(LLAMA, head_dim=64).layers == ((Attention(8, 64, 64),),) * 3


def test_a_nested_language_model_wins_over_the_outer_keys() -> None:
    inner = {**LLAMA, "num_hidden_layers": 2, "torch_dtype": None}
    outer = {"model_type": "llava", "architectures": ["Llava"], "num_hidden_layers": 9, "dtype": "torch.float16"}
    for name in ("text_config", "llm_config", "language_config"):
        config = read(outer, **{name: inner})
        assert (config.architecture, config.model_type, len(config.layers)) == ("Llava", "llama", 2)
        assert config.dtype == "float16"
    assert read(outer, thinker_config={"text_config": inner}).layers == (FULL,) * 2
    assert read({"text_config": inner, "model_type": "some_vl"}).architecture == "llama"


def test_windows_of_a_whole_model() -> None:
    mistral = {**LLAMA, "model_type": "mistral"}
    assert kinds(read(mistral, sliding_window=4096)) == ["s"] * 3
    for none in (None, 0):
        assert kinds(read(mistral, sliding_window=none)) == ["f"] * 3
    assert kinds(read(QWEN, sliding_window=4096)) == ["f"] * 3
    assert kinds(read(QWEN, sliding_window=4096, use_sliding_window=False, max_window_layers=2)) == ["f"] * 3
    assert kinds(read(QWEN, sliding_window=4096, use_sliding_window=True, max_window_layers=0)) == ["s"] * 3
    with pytest.raises(LawError, match="max_window_layers"):
        read(QWEN, sliding_window=4096, use_sliding_window=True, max_window_layers=2)


def test_layers_named_one_by_one() -> None:
    types = ["sliding_attention", "full_attention", "sliding_attention", "full_attention"]
    config = read(LLAMA, layer_types=types, sliding_window=512)
    assert kinds(config) == ["s", "f", "s"]
    assert config.layers[0] == (Attention(8, 128, 128, window=512),)
    assert kinds(read(LLAMA, layer_types=["full_attention"] * 3)) == ["f"] * 3
    assert kinds(read(LLAMA, layer_types=["sliding_attention"] * 3, sliding_window=512)) == ["s"] * 3
    with pytest.raises(LawError, match="sliding_window is 512"):
        read(LLAMA, layer_types=["full_attention"] * 3, sliding_window=512)
    with pytest.raises(LawError, match="'sliding_attention' is not known"):
        read(LLAMA, layer_types=types)
    with pytest.raises(LawError, match="layer_types names 1 of 3 layers"):
        read(LLAMA, layer_types=["full_attention"])


def test_gemma_2_and_3_by_pattern() -> None:
    gemma2 = {**LLAMA, "model_type": "gemma2", "num_hidden_layers": 4}
    assert kinds(read(gemma2)) == ["s", "f"] * 2
    assert read(gemma2).layers[0] == (Attention(8, 128, 128, window=4096),)
    bare = {"model_type": "gemma3", "text_config": {"model_type": "gemma3_text", "num_hidden_layers": 12}}
    assert kinds(read(bare)) == [*"sssssf"] * 2
    assert read(bare).layers[5] == (Attention(4, 256, 256),)
    gemma3 = {**LLAMA, "model_type": "gemma3_text", "sliding_window": 1024}
    assert kinds(read(gemma3, sliding_window_pattern=3)) == ["s", "s", "f"]
    assert kinds(read(gemma3, layer_types=["full_attention"] * 2 + ["sliding_attention"])) == ["f", "f", "s"]


def test_gemma_3n_and_4_share_the_last_caches() -> None:
    types = ["sliding_attention", "full_attention"] * 2
    three = {**LLAMA, "model_type": "gemma3n_text", "num_hidden_layers": 4, "sliding_window": 512, "layer_types": types}
    assert kinds(read(three, num_kv_shared_layers=1)) == ["s", "f", "s", "-"]
    four = {**three, "model_type": "gemma4_text", "global_head_dim": 512}
    assert kinds(read(four)) == ["s", "f"] * 2
    assert read(four).layers[1] == (Attention(8, 512, 512),)
    equal = read(four, attention_k_eq_v=True, num_global_key_value_heads=2, num_kv_shared_layers=2)
    assert equal.layers == ((Attention(8, 128, 128, window=512),), (Attention(2, 512, 512),), (), ())
    with pytest.raises(LawError, match="num_kv_shared_layers is 5, of 4"):
        read(three, num_kv_shared_layers=5)
    with pytest.raises(LawError, match="layer_types is missing"):
        read(four, layer_types=None)
    with pytest.raises(LawError, match="'linear_attention' is not known"):
        read(four, layer_types=["linear_attention"] * 4)


def test_gpt_oss_alternates() -> None:
    config = parse('{"model_type": "gpt_oss", "num_hidden_layers": 4}')
    assert kinds(config) == ["s", "f"] * 2
    assert config.layers[0] == (Attention(8, 64, 64, window=128),)


def test_llama_4_chunks_where_it_rotates() -> None:
    llama4 = {**LLAMA, "model_type": "llama4_text", "num_hidden_layers": 8, "attention_chunk_size": 8192}
    assert kinds(read(llama4)) == [*"cccf"] * 2
    assert kinds(read(llama4, no_rope_layers=[])) == [*"cccf"] * 2
    assert kinds(read(llama4, no_rope_layers=[1, 0] * 4)) == [*"cf"] * 4
    assert kinds(read(llama4, attention_chunk_size=None)) == ["f"] * 8
    with pytest.raises(LawError, match="no_rope_layers marks 1 of 8"):
        read(llama4, no_rope_layers=[1])


def test_latent_attention_with_and_without_an_indexer() -> None:
    config = read(LATENT)
    assert config.layers == ((Latent(576),),) * 2
    assert config.draft_layers == ((Latent(576),),)
    sparse = read(LATENT, model_type="deepseek_v32", index_topk=2048, index_head_dim=128)
    assert sparse.layers == ((Latent(576), Index(132)),) * 2
    assert sparse.draft_layers == sparse.layers[:1]
    with pytest.raises(LawError, match="index_head_dim"):
        read(LATENT, index_topk=2048)


def test_gated_delta_nets_attend_every_fourth_layer() -> None:
    config = read(DELTA)
    state = State("gdn", channels=8192, kernel=4, elements=32 * 128 * 128, heads=32)
    assert config.layers == ((state,),) * 3 + ((Attention(2, 256, 256),),)
    assert config.draft_layers == ((Attention(2, 256, 256),),)
    assert read(DELTA, num_nextn_predict_layers=0).draft_layers == ()
    five = {**DELTA, "model_type": "qwen3_5_text", "mamba_ssm_dtype": "float32"}
    assert read(five).draft_layers == ()
    assert read(five, mtp_num_hidden_layers=1).draft_layers == config.draft_layers
    assert read(five).state_dtype == "float32"
    assert kinds(read(DELTA, layer_types=["full_attention"] * 2 + ["linear_attention"] * 2)) == [*"ffmm"]
    assert kinds(read(DELTA, full_attention_interval=2)) == [*"mfmf"]
    with pytest.raises(LawError, match="'mamba' is not known"):
        read(DELTA, layer_types=["mamba"] * 4)


def test_nemotron_h_by_pattern_or_by_name() -> None:
    config = read(NEMOTRON, hybrid_override_pattern="M-M*E")
    state = State("mamba2", 10240, 4, elements=128 * 80 * 128, heads=128, groups=8, group_size=128)
    assert config.layers == ((state,), (), (state,), FULL, ())
    assert (config.state_dtype, config.chunk_size) == ("float32", 128)
    names = ["mamba", "moe", "attention"]
    assert kinds(read(NEMOTRON, num_hidden_layers=3, layers_block_type=names)) == [*"m-f"]
    with pytest.raises(LawError, match="hybrid_override_pattern is missing"):
        read(NEMOTRON, num_hidden_layers=3)
    with pytest.raises(LawError, match="hybrid_override_pattern: 'X'"):
        read(NEMOTRON, hybrid_override_pattern="MX")


def test_mamba_2_hybrids() -> None:
    state = State("mamba2", 8192, 4, elements=128 * 64 * 128, heads=128, groups=1, group_size=128)
    granite = {**MAMBA_D, "model_type": "granitemoehybrid"}
    assert read(granite, layer_types=["mamba", "attention"]).layers == ((state,), FULL)
    assert kinds(read({**LLAMA, "model_type": "granitemoehybrid"}, layer_types=["attention"] * 3)) == ["f"] * 3
    bamba = {**MAMBA_D, "model_type": "bamba"}
    assert read(bamba, attn_layer_indices=[1]).layers == ((state,), FULL)
    falcon = read(MAMBA_D, model_type="falcon_h1", mamba_d_ssm=3072)
    assert kinds(falcon) == ["mf", "mf"]
    assert falcon.layers[0][0] == State("mamba2", 3072, 4, 128 * 64 * 128, 128, 1, 128)
    for config, key in ((granite, "layer_types"), (bamba, "attn_layer_indices")):
        with pytest.raises(LawError, match=f"{key} is missing"):
            read(config)


def test_mamba_1_and_the_pure_ones() -> None:
    jamba = {**MAMBA_D, "model_type": "jamba", "num_hidden_layers": 8, "attn_layer_period": 8, "attn_layer_offset": 4}
    config = read(jamba)
    assert kinds(config) == [*"mmmmfmmm"]
    assert config.layers[0] == (State("mamba1", 8192, 4, elements=8192 * 128, heads=8192),)
    assert kinds(read(jamba, attn_layer_offset=0))[0] == "f"
    mamba = {"model_type": "mamba", "num_hidden_layers": 2, "intermediate_size": 1536, "state_size": 16}
    assert read(mamba, conv_kernel=4).layers == ((State("mamba1", 1536, 4, 1536 * 16, 1536),),) * 2
    two = {"model_type": "mamba2", "num_hidden_layers": 1, "expand": 2, "hidden_size": 2560, "num_heads": 80}
    config = read(two, head_dim=64, state_size=128, n_groups=1, conv_kernel=4)
    assert config.layers == ((State("mamba2", 5120, 4, 80 * 64 * 128, 80, 1, 128),),)


def test_short_convolutions() -> None:
    lfm = {**LLAMA, "model_type": "lfm2", "hidden_size": 2048, "conv_L_cache": 3}
    state = State("short_conv", 2048, 3, heads=2048)
    whole: Layer = (Attention(8, 64, 64),)
    assert read(lfm, full_attn_idxs=[2]).layers == ((state,), (state,), whole)
    assert read(lfm, layer_types=["full_attention", "conv", "conv"]).layers == (whole, (state,), (state,))
    with pytest.raises(LawError, match="layer_types is missing"):
        read(lfm)


@pytest.mark.parametrize(
    ("quantization", "kv_dtype"),
    [
        (None, None),
        ({"quant_method": "modelopt", "kv_cache_quant_algo": "FP8"}, "fp8"),
        ({"quant_method": "modelopt", "quantization": {"kv_cache_quant_algo": "NVFP4"}}, "nvfp4"),
        ({"quant_method": "modelopt", "kv_cache_quant_algo": "INT3"}, None),
        ({"quant_method": "compressed-tensors", "kv_cache_scheme": {"num_bits": 8, "type": "float"}}, "fp8"),
        ({"quant_method": "modelopt", "kv_cache_scheme": {"num_bits": 4, "type": "float"}}, "nvfp4"),
        ({"quant_method": "compressed-tensors", "kv_cache_scheme": {"num_bits": [8], "type": "float"}}, None),
        ({"quant_method": "compressed-tensors", "kv_cache_scheme": {"num_bits": 8, "type": "int"}}, None),
        ({"quant_method": "fp8"}, None),
    ],
)
def test_the_kv_type_a_checkpoint_was_made_for(quantization: Any, kv_dtype: str | None) -> None:
    assert read(LLAMA, quantization_config=quantization).kv_dtype == kv_dtype


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", "not a JSON object"),
        ("{}", "model_type is missing"),
        ('{"model_type": "brandnew", "architectures": ["BrandNewForCausalLM"]}', "BrandNewForCausalLM"),
        ('{"model_type": "brandnew"}', "of brandnew"),
        ('{"model_type": 3}', "model_type must be a string"),
        ('{"architectures": "LlamaForCausalLM"}', "architectures must be a list"),
        ('{"architectures": []}', "architectures must be a list"),
        ('{"model_type": "llama"}', "num_hidden_layers is missing"),
        ('{"text_config": {"model_type": "llama"}}', "text_config.num_hidden_layers is missing"),
        ('{"text_config": 3}', "text_config must be an object"),
        ('{"model_type": "deepseek_v3", "compress_ratios": [4]}', "of deepseek_v3"),
    ],
)
def test_a_file_that_is_no_use_says_why(text: str, message: str) -> None:
    with pytest.raises(LawError, match=message):
        parse(text)


@pytest.mark.parametrize("value", [0, -1, 1.5, float("nan"), True, "8", [8], 1 << 40])
def test_a_count_that_cannot_be_names_its_key(value: Any) -> None:
    with pytest.raises(LawError, match="num_key_value_heads must be a whole number"):
        read(LLAMA, num_key_value_heads=value)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("num_hidden_layers", 5000, "num_hidden_layers is 5000"),
        ("use_sliding_window", 1, "use_sliding_window must be true or false"),
        ("layer_types", "full_attention", "layer_types must be a list"),
        ("layer_types", [1, 2, 3], "layer_types must be a list of strings"),
        ("torch_dtype", 16, "torch_dtype must be a string"),
        ("hidden_size", None, "hidden_size is missing"),
        ("hidden_size", 16, "hidden_size is less than the 32"),
    ],
)
def test_a_key_of_the_wrong_kind_is_named(key: str, value: Any, message: str) -> None:
    with pytest.raises(LawError, match=message):
        read(LLAMA, **{key: value})


def test_missing_heads_are_not_guessed_where_the_type_has_a_default() -> None:
    with pytest.raises(LawError, match="num_key_value_heads is missing"):
        read({**LLAMA, "model_type": "mistral"}, num_key_value_heads=None)


def test_numbers_of_layers_must_be_whole() -> None:
    with pytest.raises(LawError, match="attn_layer_indices must be a list of whole numbers"):
        read(MAMBA_D, model_type="bamba", attn_layer_indices=[1.5])


def test_more_prediction_layers_than_layers_is_an_error() -> None:
    with pytest.raises(LawError, match="9 prediction layers"):
        read(LATENT, num_nextn_predict_layers=9)


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner))
KEYS = st.sampled_from(
    [
        *LLAMA,
        *LATENT,
        *DELTA,
        *MAMBA_D,
        *NEMOTRON,
        "layer_types",
        "text_config",
        "quantization_config",
        "sliding_window",
    ]
)


@given(
    st.sampled_from(sorted(FAMILIES)),
    st.dictionaries(KEYS, VALUES, max_size=3),
    st.booleans(),
    st.sampled_from([(0, 8, 5), (0, 11, 2), (0, 19), (0, 24), (0, 32)]),
    st.sampled_from(["auto", "fp8", "nvfp4", "int8_per_token_head", "fp8_ds_mla"]),
    st.integers(1, 16),
)
@settings(deadline=None)
def test_whatever_a_file_holds_it_is_laid_out_or_refused(
    kind: str, strange: dict[str, Any], nested: bool, version: tuple[int, ...], dtype: str, ranks: int
) -> None:
    config = {**LLAMA, **LATENT, **DELTA, **MAMBA_D, **NEMOTRON, "model_type": kind, **strange}
    text = json.dumps({"text_config": config} if nested else config)
    shape = Shape(tensor_parallel_size=ranks, kv_cache_dtype=dtype, max_num_batched_tokens=2048)
    try:
        layout = geometry(parse(text), shape, version)
    except LawError:
        return
    assert layout.bytes_per_token >= 0
    assert all(size > 0 for size in layout.stages)
    assert needed(layout, 4096) is not None


@given(st.text(max_size=200))
def test_text_that_is_no_config_is_refused(text: str) -> None:
    with pytest.raises(LawError, match=r"config\.json"):
        parse(text)
