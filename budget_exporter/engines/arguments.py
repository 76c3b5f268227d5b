"""Read a vLLM server's command line and environment as vLLM reads them: the shape of its budget."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from budget_exporter.engines._command_line import Given, split
from budget_exporter.engines._launch import server_arguments
from budget_exporter.engines._neuron_options import neuron_facts
from budget_exporter.facts.engine import Shape
from budget_exporter.units import human_int

__all__ = ["ENVIRON_ALLOWED", "GIVEN_ALLOWED", "server_arguments", "shape"]

_ENVIRON = """
    CUDA_DEVICE_ORDER CUDA_VISIBLE_DEVICES HIP_VISIBLE_DEVICES ROCR_VISIBLE_DEVICES
    HABANA_VISIBLE_DEVICES HABANA_VISIBLE_MODULES
    NEURON_LOGICAL_NC_CONFIG NEURON_PLATFORM_TARGET_OVERRIDE NEURON_RT_NUM_CORES NEURON_RT_VIRTUAL_CORE_SIZE
    NEURON_RT_VISIBLE_CORES NEURON_VISIBLE_DEVICES
    TPU_VISIBLE_CHIPS TPU_VISIBLE_DEVICES VLLM_ALLOW_CHUNKED_LOCAL_ATTN_WITH_HYBRID_KV_CACHE ZE_AFFINITY_MASK
    PODMAN_SYSTEMD_UNIT PROMETHEUS_MULTIPROC_DIR PT_HPU_LAZY_MODE
    PYTORCH_ALLOC_CONF PYTORCH_CUDA_ALLOC_CONF PYTORCH_HIP_ALLOC_CONF
    VLLM_BUCKETING_FROM_FILE VLLM_BUCKETING_STRATEGY VLLM_COMPACT_GDN VLLM_CONFIGURE_LOGGING VLLM_CONTIGUOUS_PA
    VLLM_CPU_KVCACHE_SPACE VLLM_CUDAGRAPH_MEM_BASE_MB VLLM_CUDAGRAPH_MEM_ESTIMATE_MB VLLM_CUDAGRAPH_MEM_PER_GRAPH_MB
    VLLM_ENABLE_BUCKETING VLLM_ENABLE_STARTUP_PLAN VLLM_EXPONENTIAL_BUCKETING VLLM_FLASHINFER_WORKSPACE_BUFFER_SIZE
    VLLM_GRAPH_DECODE_STRATEGY VLLM_GRAPH_MEM_MARGIN VLLM_GRAPH_PROMPT_RATIO VLLM_GRAPH_PROMPT_STRATEGY
    VLLM_GRAPH_RESERVED_MEM VLLM_KV_CACHE_LAYOUT VLLM_LOGGING_LEVEL VLLM_LOGGING_STREAM
    VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS VLLM_MLA_DISABLE VLLM_NEURON_CPU_COMPILE VLLM_NEURON_CPU_MODE
    VLLM_NEURON_KV_GMU_BUDGET_CAP_FRACTION VLLM_NEURON_MIN_KV_BUDGET_GIB VLLM_PP_LAYER_PARTITION
    VLLM_PROCESS_NAME_PREFIX VLLM_SERVER_DEV_MODE VLLM_SKIP_WARMUP VLLM_USE_V1 VLLM_USE_V2_MODEL_RUNNER
    VLLM_WORKER_MULTIPROC_METHOD
"""
_BUCKETS = frozenset(
    f"VLLM_{dimension}_BUCKET_{parameter}"
    for dimension in (
        "PROMPT_BS",
        "PROMPT_SEQ",
        "PROMPT_QUERY",
        "PROMPT_CTX",
        "DECODE_BS",
        "DECODE_SEQ",
        "DECODE_BLOCK",
    )
    for parameter in ("MIN", "STEP", "MAX", "PAD_MAX", "PAD_PERCENT")
)
"""Gaudi's bucket settings."""
ENVIRON_ALLOWED: frozenset[str] = frozenset(_ENVIRON.split()) | _BUCKETS
"""The only environment variables that are kept of a watched process: no key, token or address is among them."""

_GIVEN = """
    api-server-count async-scheduling block-size cpu-offload-gb cudagraph-capture-sizes data-parallel-backend
    data-parallel-rank data-parallel-size data-parallel-size-local data-parallel-start-rank
    decode-context-parallel-size device-ids disable-hybrid-kv-cache-manager distributed-executor-backend dtype
    enable-chunked-prefill enable-cumem-allocator enable-expert-offload enable-expert-parallel enable-lora
    enable-prefix-caching enable-sleep-mode enforce-eager expert-direct-load expert-offload-mem expert-precise-memory
    expert-resident-layers gpu-memory-utilization headless kv-cache-dtype kv-cache-memory-bytes
    kv-offloading-backend kv-offloading-size load-format mamba-block-size mamba-cache-dtype mamba-cache-mode
    mamba-ssm-cache-dtype max-cudagraph-capture-size
    max-lora-rank max-loras max-model-len max-num-batched-tokens max-num-prefill-seqs max-num-seqs
    max-seq-len-to-capture mm-ipc-gpu-memory-gb mm-processor-cache-gb nnodes node-rank num-gpu-blocks-override
    optimization-level pipeline-parallel-size ple-cache-gb ple-cache-reuse ple-nvme-offload port
    prefill-context-parallel-size quantization spec-method spec-tokens swap-space tensor-parallel-size
"""
GIVEN_ALLOWED: frozenset[str] = frozenset(_GIVEN.split())
"""The only flags that ``Shape.given`` repeats, by their name without dashes."""

_LAYOUT = """
    disable-sliding-window hf-config-path hf-overrides kv-cache-dtype-skip-layers kv-events-config kv-transfer-config
    use-replayssm
"""
"""Flags that change the KV cache's layout; some hold addresses, so only their names are kept."""
_NEURON = ("additional-config", "override-neuron-config")
"""Flags with JSON of which only the settings that Neuron reads are kept."""
_NOTHING = ("", "None")
"""What vLLM's optional types read as not given."""
_DTYPE = re.compile(r"[a-z0-9_]{1,40}")
_USER = re.compile(r"(?<=://)[^/]*@")
_QUERY = re.compile(r"[?#].*", re.DOTALL)
_T = TypeVar("_T")


def shape(
    argv: Sequence[str],
    environ: Mapping[str, str] | None,
    read_config: Callable[[str], str] | None = None,
) -> Shape:
    """
    Return the budget flags of ``argv`` as vLLM understands them; never raise for what a command line may hold.

    ``argv`` is the main process's whole command line; ``environ`` its environment, None where that may not be read.
    ``read_config`` returns the text of the file after ``--config`` and raises SourceError or OSError where it cannot.
    What the engine would reject, and what we cannot understand, is a sentence in ``faults`` and leaves its field None.

    Source: vLLM 0.32 ``utils/argparse_utils.py`` and ``engine/arg_utils.py``, compared with that parser's answers.
    """
    args = server_arguments(argv)
    if args is None:
        return Shape(faults=("not the command line of a vLLM server",))
    line = split(args, read_config)
    flags = _Flags(line.flags, line.faults)
    number = _environment(environ, line.faults)
    estimate = number("VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS")
    speculation = flags.read("speculative-config", _speculation)
    # The short flags say the same: the engine takes one way or the other.
    method = (speculation or {}).get("method") or flags.read("spec-method", _given_text)
    drafts = (speculation or {}).get("num_speculative_tokens") or flags.read("spec-tokens", lambda t: _optional(t, int))
    return Shape(
        model=None if line.model is None else _without_credentials(line.model),
        served_model_name=flags.read("served-model-name", _without_credentials, at=0),
        port=flags.read("port", lambda t: _integer(t, 1, 65535)),
        utilization=flags.read("gpu-memory-utilization", _ratio),
        kv_cache_memory_bytes=flags.read("kv-cache-memory-bytes", lambda t: _at_least_one(_optional(t, human_int))),
        num_gpu_blocks_override=flags.read("num-gpu-blocks-override", lambda t: _at_least_one(_optional(t, int))),
        max_model_len=flags.read("max-model-len", _length),
        max_num_seqs=flags.read("max-num-seqs", _integer),
        max_num_batched_tokens=flags.read("max-num-batched-tokens", lambda t: _at_least_one(human_int(t))),
        block_size=flags.read("block-size", _integer),
        kv_cache_dtype=flags.read("kv-cache-dtype", _dtype),
        tensor_parallel_size=flags.read("tensor-parallel-size", _integer) or 1,
        pipeline_parallel_size=flags.read("pipeline-parallel-size", _integer) or 1,
        data_parallel_size=flags.read("data-parallel-size", _integer) or 1,
        enforce_eager=flags.on("enforce-eager"),
        speculative=speculation is not None
        or any(flags.read(f"spec-{part}", lambda t: t not in _NOTHING) for part in ("method", "model", "tokens")),
        speculative_method=method if isinstance(method, str) and _DTYPE.fullmatch(method) else None,
        speculative_tokens=drafts if type(drafts) is int and drafts > 0 else None,
        expert_offload=flags.on("enable-expert-offload"),
        expert_precise_memory=flags.on("expert-precise-memory"),
        expert_offload_mem=flags.read("expert-offload-mem", str),
        expert_resident_layers=flags.read("expert-resident-layers", str),
        graph_base_mib=number("VLLM_CUDAGRAPH_MEM_BASE_MB"),
        graph_per_graph_mib=number("VLLM_CUDAGRAPH_MEM_PER_GRAPH_MB"),
        graph_estimate_mib=number("VLLM_CUDAGRAPH_MEM_ESTIMATE_MB"),
        estimate_graphs=None if estimate is None else bool(estimate),
        layout_flags=tuple(name for name in _LAYOUT.split() if flags.set(name)),
        neuron=neuron_facts(
            {name: text for name in _NEURON if (text := flags.read(name, _given_text)) is not None},
            environ or {},
            _without_credentials,
            line.faults,
        ),
        given=flags.given(),
        environ={name: text for name, text in (environ or {}).items() if name in ENVIRON_ALLOWED},
        faults=tuple(line.faults),
    )


@dataclass(slots=True)
class _Flags:
    """The last of each flag, and the faults found in reading them."""

    typed: list[Given]
    faults: list[str]
    last: dict[str, Given] = field(init=False)

    def __post_init__(self) -> None:
        self.last = {given.name: given for given in self.typed}

    def read(self, name: str, parse: Callable[[str], _T], at: int = -1) -> _T | None:
        """Return what ``parse`` makes of the last value; None where it is absent or wrong (then with a fault)."""
        value: _T | None = None
        for text in (given.values[at] for given in self.typed if given.name == name and given.values):
            try:
                value = parse(text)
            except (ValueError, OverflowError, RecursionError) as error:
                # An earlier value that is wrong ends the engine as well, though a later one would have won.
                self.faults.append(f"--{name} {text[:60]}: {str(error)[:160]}")
                value = None
        return value

    def on(self, name: str) -> bool:
        given = self.last.get(name)
        return given is not None and not given.negative

    def set(self, name: str) -> bool:
        """Return whether a flag stands for something: not switched off, not null."""
        given = self.last.get(name)
        return given is not None and not given.negative and given.values not in (("",), ("None",), ("null",))

    def given(self) -> dict[str, str]:
        """Return the allow-listed flags as typed; ``true`` and ``false`` for a switch."""
        return {
            name: " ".join(g.values) if g.values else ("false" if g.negative else "true")
            for name, g in sorted(self.last.items())
            if name in GIVEN_ALLOWED
        }


def _integer(text: str, low: int = 1, high: int | None = None) -> int:
    value = int(text)
    if value < low or (high is not None and value > high):
        raise ValueError(f"must be {low} to {high}" if high is not None else f"must be at least {low}")
    return value


def _at_least_one(value: int | None) -> int | None:
    if value is not None and value < 1:
        raise ValueError("must be at least 1")
    return value


def _optional(text: str, parse: Callable[[str], int]) -> int | None:
    return None if text in _NOTHING else parse(text)


def _ratio(text: str) -> float:
    value = float(text)
    if not 0 < value <= 1:
        raise ValueError("must be above 0 and at most 1")
    return value


def _length(text: str) -> int | None:
    """``auto`` and -1 (0.14 and later) let the engine choose: then only the engine knows."""
    if text.strip() == "-1" or text.strip().lower() == "auto":
        return None
    return _at_least_one(human_int(text))


def _dtype(text: str) -> str:
    if not _DTYPE.fullmatch(text):
        raise ValueError("not the name of a type")
    return text


def _speculation(text: str) -> dict[str, object] | None:
    """Return the speculative config, None where it is null; what is no object is an empty one."""
    try:
        value = None if text in _NOTHING else json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError("not JSON") from error
    return value if value is None or isinstance(value, dict) else {}


def _given_text(text: str) -> str | None:
    return None if text in _NOTHING else text


def _without_credentials(text: str) -> str:
    """Return ``text`` without user, password and query, should it be a URL: a model may be named by one."""
    return _QUERY.sub("", _USER.sub("", text)) if "://" in text else text


def _environment(environ: Mapping[str, str] | None, faults: list[str]) -> Callable[[str], int | None]:
    """
    Return a function from the name of a variable to its whole number, None where it is unset, unknown or wrong.

    Sources: VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS of vLLM 0.18 and later, ``envs.py``; the three sizes in MiB of
    the expert-offload fork's graph charge.
    """
    if environ is None:
        faults.append("the environment could not be read: the graph charge it may set is unknown")

    def number(name: str) -> int | None:
        text = None if environ is None else environ.get(name)
        if text is None:
            return None
        try:
            return _integer(text, low=0)
        except ValueError:
            faults.append(f"{name}={text[:60]}: not a whole number")
            return None

    return number
