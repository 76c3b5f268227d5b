"""
What vLLM says of itself on AWS Neuron, and how its runtime and compiler say that memory ran out.

Formats are those of vllm-neuron 0.24 ``vllm/worker/neuron_worker.py`` (most of them at DEBUG), of the plugins 0.2 to
0.6 ``worker/neuron_worker.py``, of libnrt 2.21 and later, which prints binary sizes as ``GB``, and of the compiler.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

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
    sizes,
)

__all__ = ["PATTERNS"]

_N = NUMBER
_I = INTEGER
_SIGNED = r"(?<![^\s=(])-?[0-9]{1,15}(?![.,]?\w)"
_NRT = r"(?:[KMG]?B)(?![A-Za-z0-9]|[.,]+[0-9])"
_KINDS = (
    "total",
    "model code",
    "model constants",
    "tensors",
    "shared scratchpad",
    "scratchpad",
    "runtime",
    "dma rings",
    "collectives",
)


def _row(lead: str, body: str) -> Pattern:
    return Pattern(lead, re.compile(body), sizes)


def _measured(match: re.Match[str]) -> Iterable[Statement]:
    yield Mark("measured", "profiling")
    yield from sizes(match)


def _bytes(match: re.Match[str]) -> Iterable[Statement]:
    for name, number in match.groupdict().items():
        yield RankFact(name, figure(number, "B", 0))


def _contiguous(match: re.Match[str]) -> Iterable[Statement]:
    yield Mark("kv_available", "allocating_kv")
    yield RankFact("kv_available", figure(match["kv_available"], "B", 0))
    yield RankFact("kv_blocks", count(match["kv_blocks"]))


def _available(match: re.Match[str]) -> Iterable[Statement]:
    yield Mark("kv_available", "allocating_kv")
    yield from sizes(match)


def _fraction(match: re.Match[str]) -> Iterable[Statement]:
    yield BootFact("kv_cap_fraction", float(match["kv_cap_fraction"]))


def _refused(match: re.Match[str]) -> Iterable[Statement]:
    yield Death("root", "no_kv_room", "allocating_kv")
    yield from sizes(match)


def _unusable(match: re.Match[str]) -> Iterable[Statement]:
    """Read figures of the runtime that the worker refuses: -1 where it could not be asked, 0 free where it is full."""
    used, free = figure(match["used"], "B", 0), figure(match["free"], "B", 0)
    if used.bytes < 0 or free.bytes < 0:
        yield Death("root", "not_memory", "profiling")
    else:
        yield Death("root", "no_kv_room", "profiling", free=free)


def _tried(match: re.Match[str]) -> Iterable[Statement]:
    yield Death("root", tried=figure(match["tried"], match.groupdict().get("tried_u") or "B", 0))


def _status(match: re.Match[str]) -> Iterable[Statement]:
    """
    Read a call that failed with status 4, NRT_RESOURCE.

    It is device memory only where a tensor was to be allocated: a program also fails to load for want of DMA rings or
    of pages for temporary buffers.
    """
    yield Death("root") if match[1] == "nrt_tensor_allocate" else Death("root", "unknown")


def _usage(match: re.Match[str]) -> Iterable[Statement]:
    for name, number in match.groupdict().items():
        if not name.endswith("_u"):
            yield RankFact(name, figure(number, match[name + "_u"], 0))


def _compiled(match: re.Match[str]) -> Iterable[Statement]:
    """Read a program that does not fit into a bank; what is "available" is all of the bank, not what is free of it."""
    unit = match.groupdict().get("compile_limit_u")
    yield Death("root", "graph_capture_oom", tried=figure(match["needs"], "GB" if unit else "B", 0))
    yield RankFact("compile_limit", figure(match["compile_limit"], unit or "B", 0))


def _listed(kind: str) -> Pattern:
    name = "nrt_" + kind.replace(" ", "_")
    size = rf"(?P<{name}>{_N})(?P<{name}_u>{_NRT})"
    return Pattern(rf"\* {kind}: ", re.compile(rf"^\s*\* {kind}: {size}(?=\s*\n)"), _usage, budget=False)


def _tabled(lead: str, row: str, name: str) -> Pattern:
    size = rf"(?P<{name}>{_N})(?P<{name}_u>{_NRT})"
    return Pattern(lead, re.compile(rf"^\s*{row}\s*\|\s*{size}\s*\|"), _usage, budget=False)


_HEURISTIC = "KV cache heuristic:"
_SHARE = "% gpu_memory_utilization"
_BUDGET = (
    Pattern(
        "Neuron HBM:",
        re.compile(rf"Neuron HBM: (?P<hbm_used>{_N}) GiB used, (?P<free_at_init>{_N}) GiB free(?!\w)"),
        _measured,
    ),
    Pattern(
        "fair-share per worker",
        re.compile(
            rf"Host memory: (?P<free_at_init>{_N}) GiB available, \d{{1,6}} local worker\(s\), "
            rf"(?P<fair_share>{_N}) GiB fair-share"
        ),
        _measured,
    ),
    _row(_HEURISTIC, rf"user_budget=(?P<kv_user_budget>{_N}) GiB"),
    _row(_HEURISTIC, rf" cap=(?P<kv_cap>{_N}) GiB"),
    _row(_HEURISTIC, rf"total_budget=(?P<requested>{_N}) GiB"),
    _row(_HEURISTIC, rf"total_hbm=(?P<size_at_init>{_N}) GiB"),
    _row(_HEURISTIC, rf"bytes_used=(?P<weights>{_N}) GiB"),
    Pattern(_HEURISTIC, re.compile(r"cap_fraction=(?P<kv_cap_fraction>[0-9]\.[0-9]{2})(?=\))"), _fraction),
    Pattern(_HEURISTIC, re.compile(rf"effective=(?P<kv_available>{_N}) GiB"), _available),
    _row(_SHARE, rf"(?P<size_at_init>{_N}) GiB total \S {_N}% gpu"),
    _row(_SHARE, rf"gpu_memory_utilization - (?P<weights>{_N}) GiB used"),
    _row(_SHARE, rf"= (?P<kv_user_budget>{_N}) GiB user budget"),
    _row(_SHARE, rf"(?P<fair_share>{_N}) GiB free-share"),
    _row(_SHARE, rf"= (?P<requested>{_N}) GiB total budget"),
    Pattern(_SHARE, re.compile(rf"budget, (?P<kv_available>{_N}) GiB available"), _available),
    Pattern(
        "Device memory stats:",
        re.compile(
            rf"Device memory stats: (?P<hbm_used>{_SIGNED}) bytes used, (?P<free_at_init>{_SIGNED}) bytes free(?!\w)"
        ),
        _bytes,
    ),
    Pattern(
        "Contiguous KV cache:",
        re.compile(
            rf"Contiguous KV cache: (?P<kv_available>{_I}) bytes \([^)]{{1,40}}\) for (?P<kv_blocks>{_I}) blocks"
        ),
        _contiguous,
    ),
    _row("KV cache budget in neuron mode", rf" free=(?P<free_at_init>{_N}) GiB"),
    _row("KV cache budget in neuron mode", rf" graph need=(?P<graph_need>{_N}) GiB"),
    Pattern("KV cache budget in neuron mode", re.compile(rf" budget=(?P<kv_available>{_N}) GiB"), _available),
)
_MARKS = (
    Pattern(
        "Loading model on NeuronWorker",
        re.compile("Loading model on NeuronWorker"),
        lambda _: (Mark("loading", "loading"),),
        budget=False,
    ),
)
_DEATHS = (
    Pattern(
        "Computed KV cache budget is below",
        re.compile(
            rf"Computed KV cache budget is below minimum threshold\.\s+effective=(?P<kv_available>{_N}) GiB, "
            rf"minimum=(?P<kv_minimum>{_N}) GiB"
        ),
        _refused,
    ),
    Pattern(
        "reported unusable memory stats",
        re.compile(
            rf"reported unusable memory stats: used=(?P<used>{_SIGNED}), free=(?P<free>{_SIGNED})(?=[\s\"')]*\n)"
        ),
        _unusable,
        budget=False,
    ),
    Pattern(
        "Failed to alloc DEVICE",
        re.compile(rf"Failed to alloc DEVICE memory: (?P<tried>{_I})(?=\s*\n)"),
        _tried,
        budget=False,
    ),
    Pattern(
        "Failed to allocate",
        re.compile(rf"Failed to allocate DEVICE memory \((?P<tried>{_I}) bytes\)"),
        _tried,
        budget=False,
    ),
    Pattern(
        "Failed to allocate",
        re.compile(
            rf"Failed to allocate (?P<tried>{_N})\s?(?P<tried_u>{_NRT}) "
            rf"\((?:alignment: [\w.]{{1,24}}, )?usage: [a-z ]{{1,40}}\) on ND ?(?P<nd>[0-9]{{1,4}}):"
            rf"NC (?P<nc>{_I})(?=[\s,.)]|$)"
        ),
        _tried,
        budget=False,
    ),
    Pattern(
        "Failed to allocate",
        re.compile(rf"Failed to allocate (?P<tried>{_I}) bytes on DEVICE for tensor"),
        _tried,
        budget=False,
    ),
    Pattern(
        "status=4",
        re.compile(r"\b(nrt_\w{1,60}) status=4 message="),
        _status,
        budget=False,
    ),
    Pattern(r"Failure: NRT_RESOURCE", re.compile(r"Failure: NRT_RESOURCE in (nrt_\w{1,60})\("), _status, budget=False),
    Pattern(
        r"NCC_EVRF009",
        re.compile(
            rf"HBM limit(?: of\s+\w{{1,24}})?\.\s+Needed (?P<needs>{_I}) bytes \([^)]{{1,24}}\)\s+vs\.\s+available\s+"
            rf"(?P<compile_limit>{_I}) bytes"
        ),
        _compiled,
        budget=False,
    ),
    Pattern(
        r"Estimated peak HBM usage",
        re.compile(
            rf"Estimated peak HBM usage \((?P<needs>{_N})\) exceeds "
            rf"(?P<compile_limit>{_N})\s?(?P<compile_limit_u>{_NRT})"
        ),
        _compiled,
        budget=False,
    ),
)
_USAGE = (
    *(_listed(kind) for kind in _KINDS),
    _tabled(r" HBM \d+ +\|", r"ND \d{1,4} HBM \d{1,4}", "nrt_bank_used"),
    _tabled(r"Overall +\|", r"ND \d{1,4} Overall", "nrt_device_used"),
    _tabled(r"\\_NC \d+ +\|", r"\\_NC \d{1,4}", "nrt_core_used"),
)
"""What libnrt lists of a device when it ran out: one line each up to runtime 2.25, a table after."""
PATTERNS = (*_BUDGET, *_MARKS, *_DEATHS, *_USAGE)
