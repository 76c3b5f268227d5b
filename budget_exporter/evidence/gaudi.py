"""
What vLLM says of itself on Gaudi: HabanaAI's fork 1.16 to 1.22 and the plugin vllm-gaudi 0.10 to 0.27.

Formats are those of ``worker/habana_worker.py``, ``worker/hpu_worker.py``, ``worker/hpu_model_runner.py``,
``v1/worker/hpu_worker.py`` and ``v1/worker/hpu_model_runner.py`` of those releases, of the profiler and the bucketing
they import, and of the PyTorch bridge (``device_memory.cpp``, ``device.cpp``) where it fails.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from budget_exporter.evidence.statements import (
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
)
from budget_exporter.facts.boot import Phase, Printed

__all__ = ["PATTERNS"]

_N = NUMBER
_I = INTEGER
_DIGITS = 4
"""Significant digits of a size (``format_bytes`` prints ``%.4g``, which drops trailing zeros)."""
_STEPS: tuple[tuple[str, str, str, Phase], ...] = (
    ("Loading model weights", "weights", "loaded", "profiling"),
    ("Pre-loading model weights", "weights_preloaded", "loading", "loading"),
    ("Model profiling run", "activation", "profiled", "profiling"),
    ("Initializing cache engine", "kv_allocated", "kv_allocated", "warming_up"),
    ("init_cache_engine", "kv_and_warm_up", "kv_allocated", "warming_up"),
    ("Wrapping in HPU ?Graph", "graph_wrapping", "loading", "loading"),
    ("Preparing model with INC", "quantization_taken", "loading", "loading"),
)
"""What the memory profiler is put around: the step, the fact of what it took, and where the boot is after it."""


def _size(name: str) -> str:
    return rf"(?P<{name}>{_N})\s?(?P<{name}_u>(?:[KMGT]i)?B)(?![A-Za-z0-9]|[.,]+[0-9])"


def _printed(number: str, unit: str) -> Printed:
    whole = number.lstrip("-").partition(".")[0].replace(",", "")
    return figure(number, unit, max(0, _DIGITS - len(whole)))


def _sizes(match: re.Match[str]) -> Iterable[Statement]:
    """Make a RankFact of each size of a match."""
    groups = match.groupdict()
    for name, number in groups.items():
        if number is not None and name + "_u" in groups:
            yield RankFact(name, _printed(number, groups[name + "_u"]))


def _after(mark: str, phase: Phase) -> Callable[[re.Match[str]], Iterable[Statement]]:
    def make(match: re.Match[str]) -> Iterable[Statement]:
        yield Mark(mark, phase)
        yield from _sizes(match)

    return make


def _counts(match: re.Match[str]) -> Iterable[Statement]:
    for name, number in match.groupdict().items():
        yield RankFact(name, count(number))


def _warm_up(match: re.Match[str]) -> Iterable[Statement]:
    yield Mark("warming", "capturing" if match["kind"].startswith("Graph/") else "warming_up")
    for name in ("bucket", "buckets", "batch_size", "seq_len", "query_len", "num_blocks"):
        if match[name] is not None:
            yield RankFact(name, count(match[name]))
    yield from _sizes(match)


def _generated(match: re.Match[str]) -> Iterable[Statement]:
    for name, number in match.groupdict().items():
        if number is not None:
            yield BootFact(name, count(number))


def _captured(kind: str) -> Callable[[re.Match[str]], Iterable[Statement]]:
    def make(match: re.Match[str]) -> Iterable[Statement]:
        yield Mark("captured", "warming_up")
        yield BootFact(f"{kind}_graphs", count(match[f"{kind}_graphs"]))
        yield from _sizes(match)

    return make


def _ratios(match: re.Match[str]) -> Iterable[Statement]:
    for name, number in match.groupdict().items():
        yield RankFact(name, float(number))


def _failed(match: re.Match[str]) -> Iterable[Statement]:
    rank = match["rank"]
    yield Death("root", tried=figure(match["tried"], "B", 0), local_rank=None if rank is None else int(rank))


_FREE = "Free device memory:"
_BUDGET = (
    Pattern(
        _FREE,
        re.compile(rf"{_FREE} {_size('free_after_load')}, {_size('requested')} usable(?= \()"),
        _after("kv_available", "allocating_kv"),
    ),
    Pattern(
        _FREE,
        re.compile(
            rf" usable \(gpu_memory_utilization=(?P<utilization>{_N})\),\s+[^()\n]{{1,40}} "
            rf"\(VLLM_GRAPH_RESERVED_MEM=(?P<graph_reserve_ratio>{_N})\)"
        ),
        _ratios,
    ),
    Pattern(_FREE, re.compile(rf"{_size('graph_reserve')} reserved for HPUGraphs(?= \()"), _sizes),
    Pattern(_FREE, re.compile(rf"{_size('dummy_block')} reserved for KV cache dummy block(?=\s)"), _sizes),
    Pattern(
        _FREE,
        re.compile(rf"{_size('kv_available')} reserved for (?:usable KV cache(?!\w)|KV cache(?=[.\s]*\n))"),
        _sizes,
    ),
    Pattern(
        "HPU hybrid cache",
        re.compile(
            rf"HPU hybrid cache: reducing available KV cache memory by {_N}% "
            r"\(factor=(?P<hybrid_factor>[01]\.[0-9]{3})\)",
        ),
        _ratios,
    ),
    Pattern(
        "Usable num_blocks",
        re.compile(
            rf"Usable num_blocks: (?P<kv_blocks>{_I}), actual allocated num_blocks(?: \(max across layers\))?: "
            rf"(?P<kv_blocks_allocated>{_I}) \(_PAD_BLOCK_ID"
        ),
        _counts,
    ),
)
_TAKEN = (
    rf" of device memory \({_size('device_used')}/{_size('pool_size')} used\)"
    rf"(?: and {_size('host_taken')} of host memory \({_size('host_used')}/{_size('host_size')} used\))?"
)
_TOOK = tuple(
    Pattern(
        step,
        re.compile(rf"{step}[^\n(]{{0,40}}? took (?:in total )?{_size(name)}{_TAKEN}"),
        _after(mark, phase),
        budget=False,
    )
    for step, name, mark, phase in _STEPS
)
_CAPTURED = tuple(
    Pattern(
        f"{kind} captured:",
        re.compile(
            rf"{kind} captured:(?P<{kind.lower()}_graphs>{_I})(?: \({_N}%\))? "
            rf"used_mem:{_size(kind.lower() + '_capture')}"
        ),
        _captured(kind.lower()),
    )
    for kind in ("Prompt", "Decode", "Multimodal")
)
_GRAPHS = (
    Pattern(
        "Generated ",
        re.compile(
            rf"Generated (?:(?P<prompt_buckets>{_I}) prompt|(?P<decode_buckets>{_I}) decode) buckets"
            r"(?: \[[a-z_, ]{1,60}\])?:"
        ),
        _generated,
        budget=False,
    ),
    Pattern(
        "of free device memory for HPUGraphs",
        re.compile(
            rf"Using {_size('graph_budget')}/{_size('free_after_kv')} of free device memory for HPUGraphs"
            rf"(?:, {_size('prompt_budget')}\s+for prompt and {_size('decode_budget')} for decode)?"
        ),
        _sizes,
    ),
    Pattern(
        r"\[Warmup\]\[",
        re.compile(
            rf"\[Warmup\]\[(?P<kind>(?:Graph/)?[A-Za-z]{{4,12}})\]\[(?P<bucket>{_I})/(?P<buckets>{_I})\]"
            rf"(?: batch_size:(?P<batch_size>{_I}))?(?: query_len:(?P<query_len>{_I}))?(?: seq_len:(?P<seq_len>{_I}))?"
            rf"(?: num_blocks:(?P<num_blocks>{_I}))?(?: [a-z_]{{2,24}}:\S{{1,40}}){{0,4}}? "
            rf"free_mem:{_size('free_in_warm_up')}"
        ),
        _warm_up,
    ),
    *_CAPTURED,
    Pattern(
        "Warmup finished in",
        re.compile(rf"Warmup finished in \d{{1,9}} secs, allocated {_size('warm_up')} of device memory"),
        _after("warmed", "warming_up"),
    ),
)
_DEATHS = (
    Pattern(
        "Allocation failed for size",
        re.compile(
            rf"(?:\[Rank:(?P<rank>[0-9]{{1,6}})\] )?FATAL ERROR :: MODULE:\w{{1,24}} "
            rf"Allocation failed for size::(?P<tried>{_I})(?=\s)"
        ),
        _failed,
        budget=False,
    ),
    Pattern(
        "workspace Allocation of size",
        re.compile(
            rf"(?:\[Rank:(?P<rank>[0-9]{{1,6}})\] )?FATAL ERROR :: MODULE:\w{{1,24}} "
            rf"workspace Allocation of size ::(?P<tried>{_I}) failed"
        ),
        _failed,
        budget=False,
    ),
)
PATTERNS = (*_BUDGET, *_TOOK, *_GRAPHS, *_DEATHS)
