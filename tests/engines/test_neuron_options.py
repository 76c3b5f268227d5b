"""What a command line and an environment say of the programs an engine on AWS Neuron compiles."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest
from hypothesis import given, strategies as st

from budget_exporter.engines.arguments import shape
from budget_exporter.facts.engine import Shape
from budget_exporter.facts.neuron import NeuronFacts


def serve(*flags: str, environ: Mapping[str, str] | None = None) -> Shape:
    return shape(["/opt/venv/bin/vllm", "serve", "org/model", *flags], environ or {})


def facts(*flags: str, environ: Mapping[str, str] | None = None) -> NeuronFacts:
    found = serve(*flags, environ=environ)
    assert found.faults == ()
    assert found.neuron is not None
    return found.neuron


def test_an_engine_that_says_nothing_of_it_has_no_facts() -> None:
    assert serve().neuron is None
    assert serve("--additional-config", '{"enable_graph_mode": true}').neuron is None
    assert serve("--additional-config", "None", environ={"VLLM_NEURON_BACKEND": ""}).neuron is None


def test_the_older_names_of_the_environment() -> None:
    environ = {
        "NEURON_CONTEXT_LENGTH_BUCKETS": "128, 512,1024",
        "NEURON_TOKEN_GEN_BUCKETS": "1024",
        "NEURON_COMPILED_ARTIFACTS": "s3://key:secret@example.org/compiled?sig=abc",
        "VLLM_NEURON_FRAMEWORK": "transformers-neuronx",
        "VLLM_NEURON_BACKEND": "neuron_native",
    }
    assert facts(environ=environ) == NeuronFacts(
        buckets={"NEURON_CONTEXT_LENGTH_BUCKETS": (128, 512, 1024), "NEURON_TOKEN_GEN_BUCKETS": (1024,)},
        framework="transformers-neuronx",
        backend="neuron_native",
        compiled_artifacts="s3://example.org/compiled",
    )


def test_the_flag_of_vllm_s_own_worker() -> None:
    given_ = {"enable_bucketing": False, "sequence_parallel_enabled": True}
    assert facts("--override-neuron-config", json.dumps(given_)) == NeuronFacts(enable_bucketing=False)


@pytest.mark.parametrize("below", ["override_neuron_config", "override-neuron-config"])
def test_the_settings_of_the_plugin_on_the_inference_library(below: str) -> None:
    settings = {
        "pa_num_blocks": 65,
        "pa_block_size": 32,
        "is_block_kv_layout": True,
        "is_prefix_caching": True,
        "context_encoding_buckets": [256, 1024],
        "token_generation_buckets": [1024],
        "prefix_buckets": [512],
    }
    assert facts("--additional-config", json.dumps({below: settings})) == NeuronFacts(
        buckets={
            "context_encoding_buckets": (256, 1024),
            "token_generation_buckets": (1024,),
            "prefix_buckets": (512,),
        },
        is_block_kv_layout=True,
        is_prefix_caching=True,
        pa_num_blocks=65,
        pa_block_size=32,
    )


def test_the_settings_of_the_plugin_with_models_of_its_own() -> None:
    settings = {"num_seqs_buckets": [1, 2], "num_batched_tokens_buckets": None, "quantization": "mxfp8"}
    expected = NeuronFacts(buckets={"num_seqs_buckets": (1, 2)}, quantization="mxfp8")
    assert facts("--additional-config", json.dumps({"neuron_config": settings})) == expected


def test_dotted_flags() -> None:
    assert facts(
        "--additional-config.neuron_config.num_seqs_buckets",
        "[1,4]",
        "--additional-config.neuron_config.quantization=bf16",
    ) == NeuronFacts(buckets={"num_seqs_buckets": (1, 4)}, quantization="bf16")


@pytest.mark.parametrize(
    ("flag", "text", "fault"),
    [
        ("--additional-config", "{", "--additional-config: not JSON"),
        ("--additional-config", "[1]", "--additional-config: not a JSON object"),
        ("--additional-config", '{"neuron_config": 3}', "--additional-config: neuron_config is not an object"),
        ("--override-neuron-config", "x", "--override-neuron-config: not JSON"),
        ("--override-neuron-config", '{"pa_num_blocks": 0}', "pa_num_blocks: must be a whole number above 0, not 0"),
        (
            "--override-neuron-config",
            '{"pa_num_blocks": true}',
            "pa_num_blocks: must be a whole number above 0, not True",
        ),
        ("--override-neuron-config", '{"enable_bucketing": 1}', "enable_bucketing: must be true or false, not 1"),
        ("--override-neuron-config", '{"prefix_buckets": 5}', "prefix_buckets: must be a list of at most 1024 sizes"),
        (
            "--override-neuron-config",
            '{"prefix_buckets": [-5]}',
            "prefix_buckets: must be a whole number above 0, not -5",
        ),
        ("--override-neuron-config", '{"quantization": "a b"}', "quantization: not a name"),
    ],
)
def test_what_cannot_be_read_is_said_and_left_out(flag: str, text: str, fault: str) -> None:
    found = serve(flag, text)
    assert (found.neuron, found.faults) == (None, (fault,))


def test_a_wrong_variable_is_said_and_the_rest_is_read() -> None:
    environ = {"NEURON_TOKEN_GEN_BUCKETS": "128,many", "VLLM_NEURON_FRAMEWORK": "a b", "VLLM_NEURON_BACKEND": "x"}
    found = serve(environ=environ)
    assert found.neuron == NeuronFacts(backend="x")
    assert [fault.partition(":")[0] for fault in found.faults] == ["NEURON_TOKEN_GEN_BUCKETS", "VLLM_NEURON_FRAMEWORK"]


def test_nothing_else_of_the_json_is_kept() -> None:
    found = serve("--additional-config", '{"neuron_config": {"quantization": "bf16"}, "token": "sk-do-not-show"}')
    assert "sk-do-not-show" not in repr(found)
    assert "additional-config" not in found.given


@given(st.text(), st.dictionaries(st.sampled_from(["NEURON_TOKEN_GEN_BUCKETS", "VLLM_NEURON_BACKEND"]), st.text()))
def test_anything_may_be_given(text: str, environ: dict[str, str]) -> None:
    serve("--additional-config", text, "--override-neuron-config", text, environ=environ)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda v: (
            st.lists(v)
            | st.dictionaries(
                st.sampled_from(
                    ["neuron_config", "pa_num_blocks", "num_seqs_buckets", "quantization", "enable_bucketing"]
                ),
                v,
            )
        ),
    )
)
def test_any_json_may_be_given(value: object) -> None:
    serve("--additional-config", json.dumps(value), "--override-neuron-config", json.dumps(value))
