"""vLLM's command line, with the answers vLLM 0.32's own parser gave to the same words."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any, NoReturn

import pytest
from hypothesis import given, settings, strategies as st

from budget_exporter.engines._command_line import split
from budget_exporter.engines._flag_table import OPTIONS, options
from budget_exporter.engines.arguments import ENVIRON_ALLOWED, GIVEN_ALLOWED, shape
from budget_exporter.errors import SourceError
from budget_exporter.facts.engine import Shape


def serve(
    line: str,
    environ: Mapping[str, str] | None = None,
    config: Mapping[str, str] | None = None,
    version: str | None = None,
) -> Shape:
    def read(path: str) -> str:
        if path not in (config or {}):
            raise SourceError("No such file or directory")
        return (config or {})[path]

    return shape(["/opt/venv/bin/python3", "/opt/venv/bin/vllm", "serve", *line.split()], environ or {}, read, version)


ACCEPTED: list[tuple[str, dict[str, Any]]] = [
    ("M", {"model": "M", "utilization": None, "tensor_parallel_size": 1, "max_model_len": None}),
    ("M --gpu-mem 0.3", {"utilization": 0.3}),
    ("M --gpu_memory_utilization=0.3", {"utilization": 0.3}),
    ("M --device-memory-utilization 0.3", {"utilization": 0.3}),
    ("M --gpu-memory-utilization 0.5 --gpu-memory-utilization=0.6", {"utilization": 0.6}),
    ("M --gpu-memory-utilization 1.00", {"utilization": 1.0}),
    ("M --kv-cache-memory 100M", {"kv_cache_memory_bytes": 104857600}),
    ("M --kv-cache-memory-bytes 1.5g", {"kv_cache_memory_bytes": 1500000000}),
    ("M --kv-cache-memory-bytes 1_000_000", {"kv_cache_memory_bytes": 1000000}),
    ("M --kv-cache-memory-bytes None", {"kv_cache_memory_bytes": None}),
    ("M --max-model-len 32k", {"max_model_len": 32000}),
    ("M --max-model-len 32K", {"max_model_len": 32768}),
    ("M --max-model-len 1.001k", {"max_model_len": 1000}),
    ("M --max-model-len auto", {"max_model_len": None}),
    ("M --max-model-len -1", {"max_model_len": None}),
    ("M --max-model-len=-1", {"max_model_len": None}),
    ("M --max-num-batched-tokens 8K", {"max_num_batched_tokens": 8192}),
    ("M -tp 2", {"tensor_parallel_size": 2}),
    ("M -tp=2", {"tensor_parallel_size": 2}),
    ("M -t 2", {"tensor_parallel_size": 2}),
    ("M --tensor-par 2", {"tensor_parallel_size": 2}),
    ("M -dp 2 -pp 4", {"data_parallel_size": 2, "pipeline_parallel_size": 4}),
    ("M -O3 -tp 2", {"tensor_parallel_size": 2}),
    ("M -O 3 -tp 2", {"tensor_parallel_size": 2}),
    ("M -cc.mode=3 -cc.cudagraph_capture_sizes+ 1,2,4 -tp 2", {"tensor_parallel_size": 2}),
    ("M --cudagraph-capture-sizes 1 2 4 --enforce-eager", {"enforce_eager": True, "model": "M"}),
    ("M --enforce-eager --no-enforce-eager", {"enforce_eager": False}),
    ("M --served-model-name a b c", {"served_model_name": "a"}),
    ("M --kv-cache-dtype fp8 --block-size 32", {"kv_cache_dtype": "fp8", "block_size": 32}),
    ("M --num-gpu-blocks-override 512 --max-num-seqs 3", {"num_gpu_blocks_override": 512, "max_num_seqs": 3}),
    ("M --speculative-config.method mtp", {"speculative": True, "speculative_method": "mtp"}),
    ("M -sc.method=eagle3 -sc.num_speculative_tokens 3", {"speculative_method": "eagle3", "speculative_tokens": 3}),
    ("M -sc.method=[1] -sc.num_speculative_tokens 2k", {"speculative_method": None, "speculative_tokens": 2000}),
    ("M -sc.num_speculative_tokens many", {"speculative": True, "speculative_tokens": None}),
    (
        'M -sc {"method":"qwen3_next_mtp","num_speculative_tokens":2}',
        {"speculative_method": "qwen3_next_mtp", "speculative_tokens": 2},
    ),
    (
        'M -sc {"method":["mtp"],"num_speculative_tokens":-2}',
        {"speculative": True, "speculative_method": None, "speculative_tokens": None},
    ),
    ("M -sc 3", {"speculative": True, "speculative_method": None}),
    (
        "M --spec-method ngram --spec-tokens 4",
        {"speculative": True, "speculative_method": "ngram", "speculative_tokens": 4},
    ),
    ("M", {"speculative": False, "speculative_method": None, "speculative_tokens": None}),
    ('M -sc {"method":"mtp"}', {"speculative": True}),
    ("M --speculative-config null", {"speculative": False}),
    ("M --spec-method ngram", {"speculative": True}),
    (
        'M --kv-transfer-config {"kv_ip":"10.0.0.1"} --hf-overrides.x 1 --disable-sliding-window',
        {"layout_flags": ("disable-sliding-window", "hf-overrides", "kv-transfer-config")},
    ),
    ("M --kv-transfer-config null --no-disable-sliding-window", {"layout_flags": ()}),
    ("M --kv-cache-dtype-skip-layers 0 1", {"layout_flags": ("kv-cache-dtype-skip-layers",)}),
    ("-tp 2 --port 8001 M", {"model": "M", "port": 8001}),
    ("-tp 2 --model M --enforce-eager", {"model": "M", "enforce_eager": True}),
    ("--config=cfg.yaml M", {"model": "M", "utilization": None}),
    ("M --swap-space 4 --disable-log-requests", {"model": "M"}),
    ("M -n 1 -q fp8", {"model": "M"}),
]


@pytest.mark.parametrize(("line", "want"), ACCEPTED, ids=[line for line, _ in ACCEPTED])
def test_reads_what_vllm_reads(line: str, want: dict[str, Any]) -> None:
    got = serve(line)
    assert got.faults == ()
    assert {field: getattr(got, field) for field in want} == want


REJECTED = [
    ("M --kv-cache-memory-bytes 1.5G", "kv_cache_memory_bytes", "--kv-cache-memory-bytes 1.5G"),
    ("M --kv-cache-memory-bytes 64Mi", "kv_cache_memory_bytes", "64Mi"),
    ("M --kv-cache-memory-bytes 64MB", "kv_cache_memory_bytes", "64MB"),
    ("M --kv-cache-memory-bytes 1e9", "kv_cache_memory_bytes", "1e9"),
    ("M --kv-cache-memory-bytes 0", "kv_cache_memory_bytes", "at least 1"),
    ("M --max-num-seqs 1k", "max_num_seqs", "--max-num-seqs 1k"),
    ("M --max-num-seqs 1k --max-num-seqs 2", None, "--max-num-seqs 1k"),
    ("M --max-model-len -5", "max_model_len", "--max-model-len -5"),
    ("M --gpu-memory-utilization 1.01", "utilization", "at most 1"),
    ("M --gpu-memory-utilization nan", "utilization", "nan"),
    ("M --gpu-memory-utilization", "utilization", "no value follows"),
    ("M --port 70000", "port", "70000"),
    ("M --kv-cache-dtype fp8;x", "kv_cache_dtype", "fp8;x"),
    ("M -tp2", None, "-tp2: not a flag"),
    ("M --conf cfg.yaml", None, "--conf: ambiguous, could be --config, --config-format"),
    ("M --enforce-eager=True", "enforce_eager", "takes no value"),
    ("M --enforce-eager false", None, "1 argument(s) that belong to no flag"),
    ("M --bogus-flag 1", None, "--bogus-flag: not a flag"),
    ("M --speculative-config {bad", "speculative", "not JSON"),
    ("M --model", "model", "--model: no value"),
    ("M -cc.mode", None, "-cc.mode: no value"),
]


@pytest.mark.parametrize(("line", "field", "why"), REJECTED, ids=[line for line, _, _ in REJECTED])
def test_names_what_vllm_rejects_and_sets_nothing(line: str, field: str | None, why: str) -> None:
    got = serve(line)
    assert any(why in fault for fault in got.faults), got.faults
    if field not in (None, "model"):
        assert not getattr(got, str(field))


# Each line was put to the parser of vLLM 0.32.0, which answered with these figures.
ANSWERED: list[tuple[str, dict[str, Any]]] = [
    ("--gpu-mem 0.3", {"utilization": 0.3}),
    ("--gpu-memory-util=0.3", {"utilization": 0.3}),
    ("--gpu_memory_utilization 0.3", {"utilization": 0.3}),
    ("--device-memory-utilization 0.3", {"utilization": 0.3}),
    ("--gpu-memory-utilization 0.5 --gpu-memory-utilization=0.6", {"utilization": 0.6}),
    ("--kv-cache-memory 100M", {"kv_cache_memory_bytes": 104857600}),
    ("--kv-cache-memory=104857600", {"kv_cache_memory_bytes": 104857600}),
    ("--kv-cache-memory-bytes 1.5g", {"kv_cache_memory_bytes": 1500000000}),
    ("--kv-cache-memory-bytes 1_000_000", {"kv_cache_memory_bytes": 1000000}),
    ("--max-model-len 32k", {"max_model_len": 32000}),
    ("--max-model-len 32K", {"max_model_len": 32768}),
    ("--max-model-len auto", {"max_model_len": None}),
    ("--max-model-len -1", {"max_model_len": None}),
    ("--max-model-len=-1", {"max_model_len": None}),
    ("--max-num-batched-tokens 8K", {"max_num_batched_tokens": 8192}),
    ("-tp 2", {"tensor_parallel_size": 2}),
    ("-tp=2", {"tensor_parallel_size": 2}),
    ("--tensor-parallel-size 2", {"tensor_parallel_size": 2}),
    ("--tensor-par 2", {"tensor_parallel_size": 2}),
    ("-dp 2 -pp 2 -dcp 2", {"data_parallel_size": 2, "pipeline_parallel_size": 2}),
    ("-O3", {"optimization_level": 3}),
    ("-O 3", {"optimization_level": 3}),
    ("-O=3", {"optimization_level": 3}),
    ("-cc.mode=3", {"cudagraph_mode": None, "optimization_level": None}),
    ("-cc.cudagraph_capture_sizes+ 1,2,4", {"cudagraph_capture_sizes": (1, 2, 4)}),
    ('--compilation-config {"cudagraph_mode":"NONE"}', {"cudagraph_mode": "NONE"}),
    ("--compilation-config.max_cudagraph_capture_size 16", {"max_cudagraph_capture_size": 16}),
    ('-cc {"max_cudagraph_capture_size":16}', {"max_cudagraph_capture_size": 16}),
    ("--cudagraph-capture-sizes 1 2 4", {"cudagraph_capture_sizes": (1, 2, 4)}),
    ("--max-cudagraph-capture-size 8", {"max_cudagraph_capture_size": 8}),
    ("--enforce-eager", {"enforce_eager": True}),
    ("--no-enforce-eager", {"enforce_eager": False}),
    ("--no-enable-prefix-caching", {"given": {"enable-prefix-caching": "false"}}),
    ("--enable-prefix-caching --no-enable-prefix-caching", {"given": {"enable-prefix-caching": "false"}}),
    ("--config=cfg.yaml", {"max_model_len": None, "utilization": None}),
    ("--cpu-offload-gb 2", {"given": {"cpu-offload-gb": "2"}}),
    ("--kv-offloading-size 4", {"given": {"kv-offloading-size": "4"}}),
    ("--block-size 32", {"block_size": 32}),
    ("--kv-cache-dtype fp8", {"kv_cache_dtype": "fp8"}),
    ("--mm-ipc-gpu-memory-gb 1", {"given": {"mm-ipc-gpu-memory-gb": "1"}}),
    ("--served-model-name a b c", {"served_model_name": "a"}),
    ("--hf-overrides.num_hidden_layers 1", {"layout_flags": ("hf-overrides",)}),
    ("--device-ids 2,3", {"given": {"device-ids": "2,3"}}),
]


@pytest.mark.parametrize(("line", "want"), ANSWERED, ids=[line for line, _ in ANSWERED])
def test_0_32_reads_it_the_same(line: str, want: dict[str, Any]) -> None:
    got = serve(f"M {line}", version="0.32.0")
    assert got.faults == ()
    assert {field: getattr(got, field) for field in want} == want


REFUSED = [
    ("--kv-cache-memory-bytes 1.5G", "1.5G"),
    ("--kv-cache-memory-bytes 64Mi", "64Mi"),
    ("--kv-cache-memory-bytes 64MB", "64MB"),
    ("--kv-cache-memory-bytes 1e9", "1e9"),
    ("--max-num-seqs 1k", "1k"),
    ("-tp2", "-tp2: not a flag"),
    ("-O.level=3", "--optimization-level .level=3: must be 0 to 3"),
    ('-O {"level":3}', "-O: not a flag of vLLM 0.32.0"),
    ("--enforce-eager=True", "takes no value"),
    ("--enforce-eager false", "belong to no flag"),
    ("--conf cfg.yaml", "ambiguous, could be --config, --config-format"),
    ("--swap-space 4", "--swap-space: not a flag of vLLM 0.32.0"),
    ("--device-ids 2 3", "belong to no flag"),
    ('--kv-transfer-config {"kv_connector":"X","n":80mb}', "--kv-transfer-config: not JSON"),
    ("--bogus-flag 1", "--bogus-flag: not a flag"),
    ("--kv-cache-dtype fp9", "--kv-cache-dtype fp9: not one of its values"),
    ("-cc.cudagraph_mode=SOME", "cudagraph_mode: not one of its values"),
    ("-cc.mode=4", "mode: not one of its values"),
    ("-cc 3", "--compilation-config: not a JSON object"),
    ("--hf-overrides {bad}", "--hf-overrides: not JSON"),
    ("--cudagraph-capture-sizes 1 x", "--cudagraph-capture-sizes 1 x: "),
    ("--cpu-offload-gb two", "--cpu-offload-gb two: "),
    ("--config cfg.yaml --config cfg.yaml", "--config: given more than once"),
    ("--block-size 16 --", "--: stands behind the model"),
]


@pytest.mark.parametrize(("line", "why"), REFUSED, ids=[line for line, _ in REFUSED])
def test_0_32_refuses_it(line: str, why: str) -> None:
    faults = serve(f"M {line}", version="0.32.0+cpu").faults
    assert any(why in fault for fault in faults), faults


def test_a_served_name_wants_the_model_first() -> None:
    assert any("model must come first" in fault for fault in serve("--served-model-name a -tp 2 M").faults)
    assert serve("--model M --served-model-name a").faults == ()


BY_RELEASE: list[tuple[str, str, dict[str, Any] | None]] = [
    ("0.8.5", "--max-num-batched-tokens 8k", None),
    ("0.9.2", "--max-num-batched-tokens 8k", {"max_num_batched_tokens": 8000}),
    ("0.10.1", "--kv-cache-memory-bytes 1G", None),
    ("0.10.2", "--kv-cache-memory-bytes 1G", {"kv_cache_memory_bytes": 1 << 30}),
    ("0.12.0", "--kv-cache-memory-bytes 1T", None),
    ("0.13.0", "--kv-cache-memory-bytes 1T", {"kv_cache_memory_bytes": 1 << 40}),
    ("0.13.0", "--max-model-len auto", None),
    ("0.13.0", "--max-model-len -1", None),
    ("0.14.0", "--max-model-len auto", {"max_model_len": None}),
    ("0.18.0", "--swap-space 4", None),
    ("0.17.1", "--swap-space 4", {"given": {"swap-space": "4"}}),
    ("0.30.0", "--device-memory-utilization 0.5", None),
    ("0.31.0", "--device-memory-utilization 0.5", {"utilization": 0.5}),
    ("0.10.2", "-O3", {"optimization_level": 3}),
    ("0.10.2", "-O 0", {"optimization_level": 0}),
    ("0.10.2", "-O.level=0", {"optimization_level": 0}),
    ("0.10.2", '-O {"level":2}', {"optimization_level": 2}),
    ("0.10.2", "-O 7", None),
    ("0.8.5", "--compilation-config 3", {"optimization_level": 3}),
    ("0.12.0", "--compilation-config 3", None),
    ("0.12.0", "-O3", {"optimization_level": 3}),
    ("0.12.0", "-O.cudagraph_mode=none", {"cudagraph_mode": "NONE"}),
    ("0.13.0", "-O.cudagraph_mode=none", None),
    ("0.9.2", "--cuda-graph-sizes 8", {"optimization_level": None}),
    ("0.13.0", "--cuda-graph-sizes 8", None),
    ("0.10.0", "--kv-cache-m 1", None),
    ("0.1.dev7+gabcdef0", "--swap-space 4 --device-memory-utilization 0.5", {"utilization": 0.5}),
    ("0.18.1.dev3", "--swap-space 4", {"given": {"swap-space": "4"}}),
    ("0.9.0.1+Gaudi-1.22", "--override-neuron-config {}", {"optimization_level": None}),
    ("no version", "-O.level=3", {"optimization_level": 3}),
]


@pytest.mark.parametrize(("version", "line", "want"), BY_RELEASE, ids=[f"{v} {line}" for v, line, _ in BY_RELEASE])
def test_each_release_by_its_own_rules(version: str, line: str, want: dict[str, Any] | None) -> None:
    got = serve(f"M {line}", version=version)
    assert bool(got.faults) == (want is None), got.faults
    assert {field: getattr(got, field) for field in want or {}} == (want or {})


def test_a_file_s_mapping_is_json_from_0_16_on() -> None:
    assert serve("M --config cfg.yaml", config={"cfg.yaml": CONFIG}, version="0.16.0").speculative_method == "mtp"
    old = serve("M --config cfg.yaml", config={"cfg.yaml": CONFIG}, version="0.15.1")
    assert old.faults == ("--speculative-config: not JSON",)


def test_a_false_in_the_file_counts_for_the_module_only() -> None:
    module = ["python3", "-m", "vllm.entrypoints.openai.api_server", "--model", "M", "--config", "c.yaml"]
    assert shape(module, {}, lambda _: CONFIG).given["enable-prefix-caching"] == "false"
    assert "enable-prefix-caching" not in serve("M --config c.yaml", config={"c.yaml": CONFIG}).given


def test_dotted_keys_nest_and_lists_grow() -> None:
    got = serve("M -cc.pass_config.a=1 -cc.cudagraph_capture_sizes=[1] -cc.cudagraph_capture_sizes+ 2,4 -cc.x.y 2")
    assert (got.faults, got.cudagraph_capture_sizes) == ((), (1, 2, 4))
    assert serve('M -cc {"cudagraph_capture_sizes":[1,"x"]}').cudagraph_capture_sizes is None
    assert serve('M -cc {"max_cudagraph_capture_size":"1k"}').max_cudagraph_capture_size is None
    assert serve('M -cc {"max_cudagraph_capture_size":1K}').max_cudagraph_capture_size == 1024


def test_what_a_json_holds_is_not_repeated() -> None:
    got = serve('M --kv-transfer-config {"url":"http://u:secret@example.org" --speculative-config {secret')
    assert len(got.faults) == 2
    assert "secret" not in repr(got)


def test_a_flag_of_another_release_does_not_swallow_the_model() -> None:
    assert serve("M --bogus a b -tp 2").model == "M"
    lost = serve("--bogus M -tp 2")
    assert (lost.model, lost.tensor_parallel_size) == (None, 2)
    assert lost.faults


def test_the_fork_s_flags_and_its_graph_charge() -> None:
    got = serve(
        "/models/flash --enable-expert-offload --expert-offload-mem 57 --expert-resident-layers= --expert-precise "
        "--ple-nvme-offload --ple-cache-gb 4 --ple-cache-reuse true --max-model-len 200704 --max-num-seqs 3",
        {
            "VLLM_CUDAGRAPH_MEM_BASE_MB": "0",
            "VLLM_CUDAGRAPH_MEM_PER_GRAPH_MB": "12",
            "VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS": "0",
        },
    )
    assert got.faults == ()
    assert got.expert_offload
    assert got.expert_precise_memory
    assert got.expert_offload_mem == "57"
    assert got.expert_resident_layers == ""
    assert (got.graph_base_mib, got.graph_per_graph_mib, got.graph_estimate_mib) == (0, 12, None)
    assert got.estimate_graphs is False
    assert got.given["ple-cache-reuse"] == "true"


def test_an_environment_that_cannot_be_read_is_not_an_empty_one() -> None:
    unknown = shape(["vllm", "serve", "M"], None)
    assert unknown.estimate_graphs is None
    assert any("environment could not be read" in fault for fault in unknown.faults)
    assert shape(["vllm", "serve", "M"], {}).faults == ()


def test_a_charge_that_is_no_number_is_a_fault_and_no_figure() -> None:
    got = serve("M", {"VLLM_CUDAGRAPH_MEM_BASE_MB": "256MB", "VLLM_CUDAGRAPH_MEM_PER_GRAPH_MB": "-12"})
    assert (got.graph_base_mib, got.graph_per_graph_mib) == (None, None)
    assert len(got.faults) == 2


CONFIG = """
model: /models/tiny
max-model-len: 512
max_num_seqs: 4
enforce-eager: true
enable-prefix-caching: false
gpu-memory-utilization: 0.5
kv-cache-memory-bytes: 32M
served-model-name: [tiny, alias]
speculative-config:
  method: mtp
"""


def test_config_file_sets_what_the_command_line_does_not() -> None:
    got = serve("--config cfg.yaml --gpu-memory-utilization 0.6", config={"cfg.yaml": CONFIG})
    assert got.faults == ()
    assert got.model == "/models/tiny"
    assert got.utilization == 0.6
    assert got.kv_cache_memory_bytes == 32 << 20
    assert (got.max_model_len, got.max_num_seqs, got.served_model_name) == (512, 4, "tiny")
    assert got.enforce_eager
    assert got.speculative


def test_the_positional_model_wins_over_the_file_s() -> None:
    assert serve("M --config cfg.yaml", config={"cfg.yaml": CONFIG}).model == "M"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a: [", "not YAML"),
        ("- x", "not a mapping"),
        ("api-key: *k", "not YAML"),
        ("a: &a [x]\n" + "".join(f"k{i}: *a\n" for i in range(40)), "YAML aliases"),
        ("a: " + "[" * 5000, "not YAML"),
        ("max-model-len: " + "9" * 5000, "--config cfg.yaml"),
        ("? [1, 2]\n: x", "not YAML, line 1"),
        ("1: 2", "a key is no text"),
        ("compilation-config: {day: 2026-01-01}", "compilation-config: not to be written as JSON"),
    ],
)
def test_a_broken_config_file_is_a_fault(text: str, why: str) -> None:
    got = serve("M -tp 2 --config cfg.yaml", config={"cfg.yaml": text})
    assert got.tensor_parallel_size == 2
    assert len(got.faults) == 1
    assert why in got.faults[0]


def test_a_broken_config_file_is_not_quoted() -> None:
    got = serve("M --config cfg.yaml", config={"cfg.yaml": "api-key: sk-secret\n  x: [\n"})
    assert got.faults
    assert "secret" not in " ".join(got.faults)


def test_a_config_file_out_of_reach_says_that_flags_are_unknown() -> None:
    got = serve("M --config other.yaml")
    assert got.faults == ("--config other.yaml: No such file or directory; the flags it sets are unknown",)
    assert serve("M --config notes.txt", config={"notes.txt": CONFIG}).faults[0].startswith("--config notes.txt: not a")
    assert shape(["vllm", "serve", "M", "--config", "c.yaml"], {}).faults


def test_the_module_form_takes_its_model_by_flag() -> None:
    module = ["python3", "-m", "vllm.entrypoints.openai.api_server", "--model", "M", "-tp", "2"]
    assert (shape(module, {}).model, shape(module, {}).tensor_parallel_size) == ("M", 2)
    assert shape([*module[:3], "M", "-tp", "2"], {}).model is None


def test_nothing_that_opens_a_door_is_repeated() -> None:
    got = serve(
        "https://user:pw@example.org/m?token=abc --api-key sk-1 sk-2 --hf-token tok --ssl-keyfile k.pem "
        "--otlp-traces-endpoint http://user:pw@example.org --gpu-memory-utilization 0.9 --secret-flag=sk-3 sk-4"
    )
    told = repr(got)
    assert not any(secret in told for secret in ("sk-", "tok'", "pw@", "abc", "k.pem"))
    assert got.model == "https://example.org/m"
    assert got.given == {"gpu-memory-utilization": "0.9"}
    assert not any(word in name for name in GIVEN_ALLOWED for word in ("key", "token-", "url", "endpoint"))
    assert not any(word in name for name in ENVIRON_ALLOWED for word in ("KEY", "SECRET", "TOKEN", "PASS"))
    assert {f"--{name}" for name in GIVEN_ALLOWED} <= OPTIONS.keys()


@given(st.lists(st.text(max_size=40), max_size=12))
def test_no_command_line_raises(words: list[str]) -> None:
    shape(["vllm", "serve", *words], {}, lambda _: "a: 1")


@given(st.text(max_size=200))
def test_no_config_file_raises(text: str) -> None:
    shape(["vllm", "serve", "M", "--config", "c.yaml"], {}, lambda _: text)


def test_deep_json_is_a_fault() -> None:
    got = shape(["vllm", "serve", "M", "--speculative-config", "[" * 100_000], {})
    assert got.faults
    assert not got.speculative


class _Refused(Exception):  # noqa: N818 - reads as what argparse did
    pass


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise _Refused(message)


def _argparse() -> argparse.ArgumentParser:
    """Python's own parser, told the same flags: what it answers is what vLLM's class is built on."""
    parser = _Parser(add_help=False)
    parser.add_argument("model", nargs="?")
    texts: dict[str, list[str]] = {}
    for text, option in KNOWN.items():
        if not option.negative:
            texts.setdefault(option.name, []).append(text)
    for name, strings in texts.items():
        hows: dict[str, dict[str, Any]] = {
            "switch": {"action": argparse.BooleanOptionalAction},
            "mark": {"action": "store_true"},
            "value": {},
            "list": {"nargs": "+"},
            "maybe": {"nargs": "?", "const": True},
        }
        how = hows[OPTIONS[strings[0]].kind]
        parser.add_argument(*strings, dest=f"flag {name}", default=argparse.SUPPRESS, **how)
    return parser


V32 = (0, 32)
KNOWN = {text: option for text, option in options(V32).items() if not option.fork}
PARSER = _argparse()
_LONG = sorted(text for text in KNOWN if text.startswith("--"))
_WORDS = st.one_of(
    st.sampled_from(_LONG),
    st.sampled_from(_LONG).flatmap(lambda t: st.integers(4, len(t)).map(lambda n: t[:n])),
    st.sampled_from([text for text in KNOWN if not text.startswith("--")]),
    st.tuples(st.sampled_from(_LONG), st.sampled_from(["1", "a", ""])).map("=".join),
    st.sampled_from(["1", "a", "b c", "-1", "-5", ""]),
)


@settings(max_examples=400)
@given(st.lists(_WORDS, max_size=7))
def test_words_fall_where_argparse_puts_them(words: list[str]) -> None:
    if any(word.startswith(("--model", "--config")) for word in words):
        return
    if words and words[0].startswith("-") and any(word.startswith("--served-model-name") for word in words):
        return  # vLLM's own rule, not argparse's: see REJECTED
    line = split(["serve", *words], None, V32)
    try:
        known = vars(PARSER.parse_args(words))
    except _Refused:
        assert line.faults
        return
    assert line.faults == []
    assert line.model == known.pop("model")
    got: dict[str, Any] = {}
    for flag in line.flags:
        kind = OPTIONS[f"--{flag.name}"].kind
        one = flag.values[0] if flag.values else True
        got[f"flag {flag.name}"] = (
            list(flag.values) if kind == "list" else not flag.negative if kind == "switch" else one
        )
    assert got == known
