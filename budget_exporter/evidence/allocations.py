"""
How allocators say that there is no memory: torch on every device, drivers, compilers, and other runtimes.

None of them knows what the engine was doing; what the failure is called follows from the phase.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from budget_exporter.evidence.statements import (
    NUMBER,
    SIZE,
    Allocation,
    Death,
    Mark,
    Pattern,
    Statement,
    figure,
)
from budget_exporter.facts.boot import Cause, Phase

__all__ = ["PATTERNS"]

_N = NUMBER
_U = SIZE
_TRIED = re.compile(rf"Tried to allocate (?P<n>{_N})\s?(?P<u>{_U})")
_FREE = (
    re.compile(rf"capac?i?ty of {_N}\s?{_U} of\s+which (?P<n>{_N})\s?(?P<u>{_U}) is free"),
    re.compile(rf"(?P<n>{_N})\s?(?P<u>{_U}) free(?![\w])"),
)
_TOTAL = (
    re.compile(rf"total capac?i?ty of (?P<n>{_N})\s?(?P<u>{_U})"),
    re.compile(rf"(?P<n>{_N})\s?(?P<u>{_U}) total capacity"),
)
_ALLOCATED = (
    re.compile(rf"allocated memory (?P<n>{_N})\s?(?P<u>{_U}) is allocated by"),
    re.compile(rf"(?P<n>{_N})\s?(?P<u>{_U}) already allocated"),
)
_SLACK = re.compile(rf"(?P<n>{_N})\s?(?P<u>{_U}) is reserved by PyTorch but unallocated")
_RESERVED = re.compile(rf"(?P<n>{_N})\s?(?P<u>{_U}) reserved in total")
_XLA = {letter: letter + "iB" for letter in "KMGT"} | {letter + "B": letter + "iB" for letter in "KMGT"}
"""XLA's units of 2**10 and so on."""
_DEVICE = re.compile(
    r"(?:GPU|NPU|XPU|HPU|MLU|SDAA) ([0-9]{1,4})(?: has a total|;)|\bcuda:([0-9]{1,4})(?=[\s();]|,\s|$)"
)


def _first(text: str, *patterns: re.Pattern[str]) -> re.Match[str] | None:
    return next((match for match in (pattern.search(text) for pattern in patterns) if match), None)


def _bytes(match: re.Match[str] | None) -> int | None:
    return None if match is None else figure(match["n"], match["u"], 0).bytes


def _torch(match: re.Match[str]) -> Iterable[Statement]:
    text = match[0]
    tried, free, device = _TRIED.search(text), _first(text, *_FREE), _DEVICE.search(text)
    allocated, reserved = _bytes(_first(text, *_ALLOCATED)), _bytes(_RESERVED.search(text))
    slack = _bytes(_SLACK.search(text))
    if slack is None and allocated is not None and reserved is not None:
        slack = reserved - allocated
    yield Death(
        "root",
        tried=figure(tried["n"], tried["u"], 0) if tried else None,
        free=figure(free["n"], free["u"], 0) if free else None,
        local_rank=int(device[1] or device[2]) if device else None,
        allocation=Allocation(
            _bytes(tried), _bytes(_first(text, *_TOTAL)), allocated, slack, pools="in private pools" in text
        ),
    )


def _sized(match: re.Match[str]) -> Iterable[Statement]:
    groups = match.groupdict()
    tried, free = groups.get("tried"), groups.get("free")
    tried_u = groups.get("tried_u") or "B"
    yield Death(
        "root",
        tried=None if tried is None else figure(tried, _XLA.get(tried_u, tried_u), 0),
        free=None if free is None else figure(free, groups.get("free_u") or "B", 0),
    )


def _root(lead: str, body: str | None = None, cause: Cause | None = None) -> Pattern:
    return Pattern(lead, re.compile(body or lead), lambda _: (Death("root", cause),), budget=False)


def _refined(lead: str, cause: Cause, phase: Phase, kind: str = "refine") -> Pattern:
    return Pattern(lead, re.compile(lead), lambda _: (Death(kind, cause, phase),), budget=False)


_TORCH = (
    Pattern(r"Tried to allocate", re.compile(rf"(?:out of memory\W+)?Tried to allocate {_N}\s?{_U}[^\n]*"), _torch),
    Pattern(
        "CUDA Error: out of memory at",
        re.compile(r"CUDA Error: out of memory at \S{0,300}cumem_allocator\S{0,20}?:(?P<source_line>[0-9]{1,6})?"),
        lambda _: (Death("root"), Mark("cumem")),
        budget=False,
    ),
    _root("error: out of memory", r"(?:CUDA|HIP|MUSA|MACA) error: out of memory"),
    # Triton's launcher: CUDA's form, and HIP's as it spells it.
    _root(r"Triton Error \[CUDA\]: out of memory|Code: 2, Messsage: out of memory"),
    # Sentences of the engine that are printed beside the allocator's and tell where it was.
    _refined("out of memory occurred when warming up", "warmup_oom", "warming_up"),
    _refined("Capture cuda graph failed", "graph_capture_oom", "capturing", "place"),
)
_DRIVERS = (
    _root("CUBLAS_STATUS_ALLOC_FAILED|CUDNN_STATUS_ALLOC_FAILED|HIPBLAS_STATUS_ALLOC_FAILED|hipErrorOutOfMemory"),
    _root("cudaErrorMemoryAllocation|CUDA_ERROR_OUT_OF_MEMORY|HSA_STATUS_ERROR_OUT_OF_RESOURCES"),
    # NCCL names the driver's error by its number, in some releases without it.
    _root("Cuda failure", r"Cuda failure (?:2 )?'out of memory'"),
    _root("UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY|ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY"),
)
_OTHERS = (
    # XLA: the memories of a core (smem, vmem) are no device memory, and no budget reaches them. The same word is gRPC's
    # for a message that is too large and for a quota.
    _root(
        "RESOURCE_EXHAUSTED",
        r"(?<!StatusCode\.)RESOURCE_EXHAUSTED"
        r"(?!.{0,400}(?:memory space [svc]mem|Exceeded [svc]mem|message larger|message too large|[Qq]uota))",
    ),
    # Neuron's runtime says for what it asks: the tensors that come first and stay are the weights.
    Pattern("usage: tensors", re.compile("usage: tensors"), lambda _: (Mark("hint", "loading"),), budget=False),
    # Gaudi's runtime.
    _root("synOutOfDeviceMemory|Device memory allocation failed"),
    # Ascend.
    _root("alloc device memory failed|Memory_Allocation_Failure"),
    # Rebellions.
    _root("Lack of device memory"),
    Pattern(
        "Not enough memory for",
        re.compile(rf"Not enough memory for (?P<kv_blocks_wanted>{_N}) blocks of KV cache"),
        lambda _: (Death("refine", "kv_alloc_oom", "allocating_kv"),),
        budget=False,
    ),
    # XLA: of a program's own memory it does not tell what is free.
    Pattern(
        "That was not possible",
        re.compile(
            rf"Attempting to (?:allocate|reserve) (?P<tried>{_N})(?P<tried_u>[KMGT]B?|B)"
            r"(?: at the bottom of memory)?\.\s+That was not possible\.(?!\s+There are)"
        ),
        _sized,
        budget=False,
    ),
    # Tenstorrent: one buffer over all banks; the largest free block of a bank decides.
    Pattern(
        "Not enough space to allocate",
        re.compile(
            rf"Not enough space to allocate (?P<tried>{_N}) B \w{{1,12}} buffer"
            rf"(?:.{{0,200}}?\bfree: (?P<free>{_N}) B)?"
        ),
        _sized,
        budget=False,
    ),
    Pattern(
        "Allocating TT kv caches",
        re.compile("Allocating TT kv caches"),
        lambda _: (Mark("allocating", "allocating_kv"),),
        budget=False,
    ),
    # llama.cpp and its kin: the size, then what it was for.
    Pattern(
        "cudaMalloc failed: out of memory",
        re.compile(rf"(?:allocating (?P<tried>{_N}) (?P<tried_u>MiB) on device \d{{1,3}}: )?cudaMalloc failed: out of"),
        _sized,
        budget=False,
    ),
    _refined("unable to allocate CUDA0 buffer", "weights_oom", "loading"),
    _refined("nable to load model|failed to load model", "weights_oom", "loading", "place"),
    _refined("failed to allocate buffer for kv cache", "kv_alloc_oom", "allocating_kv"),
    _refined("failed to allocate compute", "profile_oom", "profiling"),
    # SGLang: what its share leaves for the pool.
    _root("Not enough memory. Please try to increase", cause="no_kv_room"),
)
PATTERNS = (*_TORCH, *_DRIVERS, *_OTHERS)
