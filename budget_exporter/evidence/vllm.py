"""
What vLLM says of a boot, 0.6 to 0.33: one row per form of a line.

Formats are those of ``v1/worker/gpu_worker.py``, ``v1/worker/gpu_model_runner.py``, ``v1/worker/gpu/model_runner.py``,
``v1/core/kv_cache_utils.py`` and ``utils/mem_utils.py`` of those releases.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from budget_exporter.evidence import vllm_graphs, vllm_marks
from budget_exporter.evidence.arguments_line import named_args
from budget_exporter.evidence.statements import (
    GIB,
    INTEGER,
    NUMBER,
    BootFact,
    Death,
    Mark,
    Pattern,
    RankFact,
    Statement,
    count,
    figure,
    sizes,
)

__all__ = ["PATTERNS"]

_N = NUMBER
_I = INTEGER
_G = GIB


def _row(lead: str, body: str) -> Pattern:
    return Pattern(lead, re.compile(body), sizes)


def _version(match: re.Match[str]) -> Iterable[Statement]:
    yield Mark("banner", "starting")
    yield from _identity(match)


def _identity(match: re.Match[str]) -> Iterable[Statement]:
    for name, text in match.groupdict().items():
        if text is not None:
            yield BootFact(name, text.rstrip(",'"))


def _args(match: re.Match[str]) -> Iterable[Statement]:
    args = named_args(match["args"])
    if args:
        yield Mark("args", "starting")
        yield BootFact("args", args)


def _engine(match: re.Match[str]) -> Iterable[Statement]:
    yield Mark("engine", "starting")
    yield BootFact("version", match["version"])
    if match["core"] is not None:
        yield BootFact("core", match["core"])


def _runner(match: re.Match[str]) -> Iterable[Statement]:
    yield BootFact("model_runner", "V1" if "using the V1" in match[0] else "V2")


def _config(match: re.Match[str]) -> Iterable[Statement]:
    for name, number in match.groupdict().items():
        if number is not None:
            yield BootFact(name, count(number))


def _length(match: re.Match[str]) -> Iterable[Statement]:
    yield BootFact("max_model_len", count(match["max_model_len"]))


def _concurrency(match: re.Match[str]) -> Iterable[Statement]:
    yield BootFact("max_model_len", count(match["max_model_len"]))
    yield BootFact("kv_concurrency", float(match["kv_concurrency"].replace(",", "")))


def _tokens(match: re.Match[str]) -> Iterable[Statement]:
    yield Mark("kv_size", "allocating_kv")
    yield BootFact("kv_tokens", count(match["kv_tokens"]))


def _blocks(match: re.Match[str]) -> Iterable[Statement]:
    """Take the blocks of the V0 engine and of the first V1 releases, which do not tell tokens."""
    yield Mark("kv_size", "allocating_kv")
    yield RankFact("kv_blocks", count(match["kv_blocks"]))


def _rank_of(match: re.Match[str]) -> Iterable[Statement]:
    yield RankFact("rank", int(match[1]))


def _ascend(match: re.Match[str]) -> Iterable[Statement]:
    """Read what vllm-ascend says of its pool: bytes, and 0 where there is no room, which the check of it refuses."""
    yield Mark("kv_available", "allocating_kv")
    if count(match["kv_available"]) == 0:
        yield Death("root", "no_kv_room", "allocating_kv")
    for name, number in match.groupdict().items():
        yield RankFact(name, figure(number, "B", 0))


def _available(match: re.Match[str]) -> Iterable[Statement]:
    yield Mark("kv_available", "allocating_kv")
    yield from sizes(match)


def _loaded(match: re.Match[str]) -> Iterable[Statement]:
    yield Mark("loaded", "profiling")
    yield from sizes(match)


_SNAPSHOT = rf"(?P<free_at_init>{_N})/(?P<size_at_init>{_N}){_G}"
_DEVICE = "Free memory on device"
_DEVICES = ("GPU", "cuda", "CUDA", "rocm", "hpu", "HPU", "xpu", "XPU", "TPU", "tpu", "npu", "NPU", "neuron")
"""How a line of blocks names what it counts them on: ``GPU`` up to 0.6, the platform's own name after."""
_IDENTITY = (
    Pattern(
        r"\bversion \d",
        re.compile(
            r"(?:█\s+|^\s*)version (?P<version>\d+\.\d+\.\d+[^\s\x22]*)\s(?:\s*model\s+(?P<model>[^\s\x22]+)\s)?"
        ),
        _version,
        budget=False,
    ),
    Pattern(
        r"\bversion \d",
        re.compile(r"server version (?P<version>\d[^\s,\x22]*)[\s,](?:\s*serving model (?P<model>[^\s\x22]+)\s)?"),
        _version,
        budget=False,
    ),
    Pattern(r"█  model", re.compile(r"█\s+model\s+(?P<model>[^\s\x22]+)\s"), _identity, budget=False),
    Pattern(r"Clav Version", re.compile(r"Clav Version (?P<release>\d[\w.]*)\s"), _identity, budget=False),
    Pattern("non-default args", re.compile(r"non-default args: (?P<args>\{.*)"), _args, budget=False),
    Pattern(
        r"LLM engine \(v",
        re.compile(r"Initializing an? (?:(?P<core>V\d) )?LLM engine \(v(?P<version>\d[^)\s]{0,79})\)"),
        _engine,
        budget=False,
    ),
    Pattern(
        r"LLM engine \(v",
        re.compile(
            r"[ (](?:max_seq_len=(?P<max_model_len>[0-9]{1,12})|tensor_parallel_size=(?P<tp>[0-9]{1,12})"
            r"|pipeline_parallel_size=(?P<pp>[0-9]{1,12})),(?=\s)"
        ),
        _config,
        budget=False,
    ),
    Pattern(r"LLM engine \(v", re.compile(r"[ (]device_config=(?P<device_type>[a-z]{2,16}),"), _identity, budget=False),
    Pattern(
        "Resolved architecture", re.compile(r"Resolved architecture: (?P<architecture>\w+)\s"), _identity, budget=False
    ),
    Pattern(
        "Using max model len", re.compile(rf"Using max model len (?P<max_model_len>{_I})\s"), _length, budget=False
    ),
    Pattern(
        "Auto-fit max_model_len",
        re.compile(r"Auto-fit max_model_len: .{0,80}? to (?P<max_model_len>[0-9]{1,12})[\s.]"),
        _length,
        budget=False,
    ),
    Pattern(
        "Using V2 Model Runner|using the V1 model runner instead",
        re.compile(r"Using V2 Model Runner(?=[\s.])|using the V1 model runner instead"),
        _runner,
        budget=False,
    ),
    Pattern(r"local_rank=", re.compile(r"world_size=\d+ rank=([0-9]{1,6}) local_rank=\d+ "), _rank_of, budget=False),
    Pattern(
        "in world size", re.compile(r"rank ([0-9]{1,6}) in world size \d+ is assigned as "), _rank_of, budget=False
    ),
)
_MEMORY = (
    Pattern(
        r"loading took|model weights took",
        re.compile(
            rf"(?:Model loading took|Loading model weights took) (?P<weights>{_N})\s?"
            r"(?P<weights_u>[GM]i?B)(?![A-Za-z0-9]|[.,]+[0-9])"
        ),
        _loaded,
    ),
    _row("init memory snapshot", rf"free_memory=(?P<free_at_init>{_N}){_G}, total_memory=(?P<size_at_init>{_N}){_G}"),
    _row("worker requested memory", rf"worker requested memory: (?P<requested>{_N}){_G}"),
    _row("Initial free memory:", rf"Initial free memory: (?P<free_at_init>{_N}){_G}"),
    _row("Initial free memory:", rf"Requested memory: {_N} \(util\), (?P<requested>{_N}){_G}"),
    _row("Total non KV cache memory", rf"torch peak memory increase: (?P<activation>{_N}){_G}"),
    _row("Total non KV cache memory", rf"non-torch forward increase memory: (?P<non_torch>{_N}){_G}"),
    _row("Total non KV cache memory", rf"total consumed \(from mem_get_info\): (?P<consumed>{_N}){_G}"),
    _row("Total non KV cache memory", rf"weights memory: (?P<weights>{_N}){_G}"),
    _row("model weights take", rf"model weights take\s+(?P<weights>{_N}){_G}"),
    _row("model weights take", rf"non_torch_memory takes (?P<non_torch>{_N}){_G}"),
    _row("model weights take", rf"activation peak memory takes (?P<activation>{_N}){_G}"),
    _row("model weights take", rf"reserved for KV Cache is (?P<kv_available>{_N}){_G}"),
    _row("total_gpu_memory=", rf"[\s,]total_gpu_memory=(?P<size_at_init>{_N}){_G}"),
    _row("total_gpu_memory=", rf"[\s,]initial_memory_usage=(?P<used_at_init>{_N}){_G}"),
    _row("total_gpu_memory=", rf"[\s,]peak_torch_memory=(?P<peak_torch>{_N}){_G}"),
    _row("total_gpu_memory=", rf"[\s,]memory_usage_post_profile=(?P<used_after_profile>{_N}){_G}"),
    _row("total_gpu_memory=", rf"[\s,]non_torch_memory=(?P<non_torch>{_N}){_G}"),
    _row("total_gpu_memory=", rf"[\s,]kv_cache_size=(?P<kv_available>{_N}){_G}"),
    _row(
        "the current vLLM instance can use",
        rf"total_gpu_memory \((?P<size_at_init>{_N}){_G}\) x gpu_memory_utilization \({_N}\) = "
        rf"(?P<requested>{_N}){_G}",
    ),
    _row(_DEVICE, rf"{_DEVICE}(?: \S{{1,40}})? \({_SNAPSHOT}(?=[) ])"),
    _row(_DEVICE, rf"esired GPU memory utilization (?:is )?\({_N}, (?P<requested>{_N}){_G}\)"),
    # The suggestion comes after the capture and before the sampler is warmed up.
    Pattern(
        "Current kv cache memory in use",
        re.compile("Current kv cache memory in use is"),
        lambda _: (Mark("captured", "warming_up"),),
        budget=False,
    ),
    _row(_DEVICE, rf"(?P<weights>{_N}){_G} for weights?,"),
    _row(_DEVICE, rf"(?P<non_torch>{_N}){_G} for non-torch memory"),
    _row(_DEVICE, rf"(?P<consumed>{_N}){_G} for consumed memory"),
    _row(_DEVICE, rf"consumed memory.{{0,80}}?(?P<activation_and_estimate>{_N}){_G} for peak activation"),
    _row(_DEVICE, rf"for weights?, (?P<activation_suggested>{_N}){_G} for peak activation"),
    _row(_DEVICE, rf"(?P<graph_pool>{_N}){_G} for CUDAGraph memory"),
    _row(_DEVICE, rf"kv cache memory in use is (?P<kv_in_use>{_N})\s?(?P<kv_in_use_u>GiB|bytes)(?=\.?\s)"),
    Pattern(
        "memory for KV Cache",
        re.compile(
            rf"Initial free memory (?P<free_at_init>{_N}){_G},? "
            rf"reserved (?P<kv_reserved>{_N}){_G} memory for KV Cache"
        ),
        _available,
    ),
    Pattern(
        "Available KV cache memory", re.compile(rf"Available KV cache memory: (?P<kv_available>{_N}){_G}"), _available
    ),
    Pattern(
        "Available memory: ",
        re.compile(rf"Available memory: (?P<kv_available>{_I}), total memory: (?P<size_at_init>{_I})(?=\s*\n)"),
        _ascend,
        budget=False,
    ),
    _row("frontend multimodal decoding", rf"Reserving (?P<multimodal>{_N}){_G} of GPU memory for frontend"),
    _row("frontend multimodal decoding", rf"KV cache memory reduced to (?P<kv_reduced>{_N}){_G}"),
    Pattern(
        "KV cache size:",
        re.compile(rf"(?:GPU|CPU|XPU)(?: \+ host)? KV cache size: (?P<kv_tokens>{_I}) tokens"),
        _tokens,
    ),
    Pattern(
        "|".join(f"# {device} blocks: " for device in _DEVICES),
        re.compile(rf"# (?:{'|'.join(_DEVICES)}) blocks: (?P<kv_blocks>{_I})(?=[,\s])"),
        _blocks,
    ),
    Pattern(
        "Maximum concurrency",
        re.compile(
            rf"Maximum concurrency for (?P<max_model_len>{_I}) tokens per request: "
            rf"(?P<kv_concurrency>{_N})x(?![0-9a-z]|[.,][0-9])"
        ),
        _concurrency,
    ),
)
PATTERNS = (*_IDENTITY, *_MEMORY, *vllm_graphs.PATTERNS, *vllm_marks.PATTERNS)
