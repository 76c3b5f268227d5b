"""
How an engine says that it dies: the sentence that names the cause, the frames that tell where, and the cascade.

One death is told in up to eight sentences, by several processes and twice by some. Which of them is the cause is for
boot.py to decide; here each sentence is only read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping

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
from budget_exporter.facts.boot import Cause, Phase

__all__ = ["CAUSE_OF_PHASE", "PATTERNS"]

_N = NUMBER
_I = INTEGER
_U = r"(?:[KMGT]iB|bytes)(?![A-Za-z])"
CAUSE_OF_PHASE: Mapping[Phase, Cause] = {
    "loading": "weights_oom",
    "profiling": "profile_oom",
    "allocating_kv": "kv_alloc_oom",
    "capturing": "graph_capture_oom",
    "warming_up": "warmup_oom",
    "serving": "runtime_oom",
    "sleeping": "wakeup_oom",
}
"""What an allocation that fails in a phase is called; a phase that is not here does not tell the cause."""
_FRAMES: Mapping[str, Phase] = {
    "load_model": "loading",
    "load_weights": "loading",
    "process_weights_after_loading": "loading",
    "determine_available_memory": "profiling",
    "determine_num_available_blocks": "profiling",
    "profile_run": "profiling",
    "profile_cudagraph_memory": "capturing",
    "capture_model": "capturing",
    "capture_end": "capturing",
    "initialize_cache": "allocating_kv",
    "initialize_from_config": "allocating_kv",
    "initialize_kv_cache": "allocating_kv",
    "initialize_kv_cache_tensors": "allocating_kv",
    "_allocate_kv_cache": "allocating_kv",
    "_allocate_kv_cache_tensors": "allocating_kv",
    "allocate_gpu_cache": "allocating_kv",
    "_init_cache_engine": "allocating_kv",
    "compile_or_warm_up_model": "warming_up",
    "_dummy_sampler_run": "warming_up",
    "kernel_warmup": "warming_up",
    "wake_up": "sleeping",
}
"""Functions of vLLM (0.5 to 0.33) whose frame in a traceback tells the phase; the innermost one known counts."""
_RUNNING = ("run_busy_loop", "run_engine_loop", "engine_step", "execute_model", "sample_tokens")
_TRIED = re.compile(rf"Tried to allocate (?P<n>{_N})\s?(?P<u>{_U})")
_FREE = (
    re.compile(rf"capac?i?ty of {_N}\s?{_U} of\s+which (?P<n>{_N})\s?(?P<u>{_U}) is free"),
    re.compile(rf"(?P<n>{_N})\s?(?P<u>{_U}) free(?![\w])"),
)
_DEVICE = re.compile(r"(?:GPU|NPU|XPU) (\d{1,4})(?: has a total|;)|\bcuda:(\d{1,4})\b")


def _local_rank(text: str) -> int | None:
    device = _DEVICE.search(text)
    return int(device[1] or device[2]) if device else None


def _first(text: str, *patterns: re.Pattern[str]) -> re.Match[str] | None:
    return next((match for match in (pattern.search(text) for pattern in patterns) if match), None)


def _out_of_memory(match: re.Match[str]) -> Iterable[Statement]:
    text = match[0]
    tried, free = _TRIED.search(text), _first(text, *_FREE)
    yield Death(
        "root",
        tried=figure(tried["n"], tried["u"], 0) if tried else None,
        free=figure(free["n"], free["u"], 0) if free else None,
        local_rank=_local_rank(text),
    )


def _budget(match: re.Match[str]) -> Iterable[Statement]:
    free = match["free"] or match["said"]
    yield Death("root", "budget_above_free", "starting", free=figure(free, "GiB"), local_rank=_local_rank(match[0]))


def _cpu_pool(match: re.Match[str]) -> Iterable[Statement]:
    yield Death("root", "kv_alloc_oom", "allocating_kv", figure(match["tried"], "GiB"), figure(match["free"], "GiB"))


def _too_long(match: re.Match[str]) -> Iterable[Statement]:
    yield Death("root", "kv_below_max_len", "allocating_kv")
    yield BootFact("max_model_len", count(match["length"]))
    yield RankFact("kv_available", figure(match["available"], "GiB"))


def _too_few_tokens(match: re.Match[str]) -> Iterable[Statement]:
    yield Death("root", "kv_below_max_len", "allocating_kv")
    yield BootFact("max_model_len", count(match[1]))
    yield BootFact("kv_tokens", count(match[2]))


def _assert(match: re.Match[str]) -> Iterable[Statement]:
    yield Death("root", "profile_assert", "profiling", free=figure(match["free"], match["u"]))
    yield RankFact("free_at_init", figure(match["initial"], match["u"]))


def _always(*said: Statement) -> Callable[[re.Match[str]], Iterable[Statement]]:
    return lambda _: said


def _frame(match: re.Match[str]) -> Iterable[Statement]:
    name = match[1]
    if name in _FRAMES:
        yield Mark("frame", _FRAMES[name])
    elif name in _RUNNING:
        yield Mark("running", "serving")


def _method(match: re.Match[str]) -> Iterable[Statement]:
    if match[1] in _FRAMES:
        yield Mark("method", _FRAMES[match[1]])


def _simple(lead: str, *said: Statement, body: str | None = None) -> Pattern:
    return Pattern(lead, re.compile(body or lead), _always(*said), budget=False)


_CASCADE = (
    r"Engine core init|Worker failed with|Engine(?:Core)? |Engine loop|Engine process|Executor failed|cancelled|"
    r"WorkerProc init|To serve at least one request|The model's max seq len|max_num_seqs \(|No available memory|"
    r"Error in memory profiling"
)
"""What exceptions say that only pass a death on, or that have a pattern of their own."""
_ROOTS = (
    Pattern(
        "Free memory on device",
        re.compile(
            rf"Free memory on device(?: \S{{1,40}})? \((?P<free>{_N})/{_N}\s?GiB\) on startup is less than|"
            rf"ValueError: Free memory on device(?: \S{{1,40}})? \((?P<said>{_N})/{_N}\s?GiB"
        ),
        _budget,
    ),
    Pattern(
        r"Available memory on node",
        re.compile(
            rf"Available memory on node \S{{1,12}} \((?P<free>{_N})/{_N}\s?GiB\) on startup is less than|"
            rf"ValueError: Available memory on node \S{{1,12}} \((?P<said>{_N})/{_N}\s?GiB\) on startup"
        ),
        _budget,
    ),
    Pattern(
        r"Available memory on node",
        re.compile(
            rf"Available memory on node \S{{1,12}} \((?P<free>{_N})/{_N}\s?GiB\) on kv cache allocation is less than "
            rf"requested memory for kv \((?P<tried>{_N})\s?GiB\)"
        ),
        _cpu_pool,
    ),
    Pattern(
        "To serve at least one request with",
        re.compile(
            rf"max seq len \((?P<length>{_I})\),?\s*\(?{_N}\s?(?:GiB|GB)\s+KV cache\s*is needed, "
            rf"which is larger than\s*the available KV cache memory \((?P<available>{_N})\s?(?:GiB|GB)\)"
        ),
        _too_long,
    ),
    Pattern(
        r"model's max seq len \(\d+\) is larger",
        re.compile(
            rf"max seq len \(({_I})\) is larger than\s*"
            rf"the maximum number of tokens that can be stored in KV cache \(({_I})\)"
        ),
        _too_few_tokens,
    ),
    Pattern(
        r"max_num_seqs \(\d+\) exceeds",
        re.compile(rf"max_num_seqs \({_N}\) exceeds available Mamba cache blocks \({_N}\)"),
        _always(Death("root", "kv_below_max_len", "allocating_kv")),
    ),
    _simple("blocks: 0,", Death("root", "no_kv_room", "allocating_kv"), body=r"# (?:GPU|cuda|CUDA) blocks: 0,"),
    _simple("No available memory for the cache blocks", Death("root", "no_kv_room", "allocating_kv")),
    Pattern(
        r"Error in memory profiling",
        re.compile(
            rf"Error in memory profiling\. Initial free memory (?P<initial>{_N})(?:\s?(?:GiB|bytes))?,\s+"
            rf"current free memory (?P<free>{_N})\s?(?P<u>GiB|bytes)(?=[.\s])"
        ),
        _assert,
    ),
    Pattern(
        r"Tried to allocate",
        re.compile(rf"(?:out of memory\W+)?Tried to allocate {_N}\s?{_U}[^\n]*"),
        _out_of_memory,
    ),
    Pattern(
        "CUDA Error: out of memory at",
        re.compile(r"CUDA Error: out of memory at \S{0,300}cumem_allocator"),
        _always(Death("root"), Mark("cumem")),
        budget=False,
    ),
    _simple("error: out of memory", Death("root"), body=r"(?:CUDA|HIP) error: out of memory"),
    _simple(r"out of memory occurred when warming up sampler", Death("refine", "warmup_oom", "warming_up")),
    Pattern(r"while processing method", re.compile(r"while processing method '?(\w{1,80})"), _method, budget=False),
)


_ENDS = (
    _simple("Engine core initialization failed", Death("end"), Mark("last_word")),
    _simple("EngineCore failed to start|EngineCore encountered a fatal error", Death("end")),
    _simple(r"EngineCore encountered a fatal error|Engine loop is not running", Mark("running", "serving")),
    _simple(r"EngineDeadError|Engine loop is not running|Engine process failed to start", Death("end")),
    _simple(r"died unexpectedly|died, exit code", Death("end")),
    _simple(r"Application shutdown complete|Finished server process", Mark("last_word")),
    _simple(r"Traceback \(most recent call last\)", Mark("traceback")),
    Pattern(
        rf", in (?:{'|'.join((*_FRAMES, *_RUNNING))})(?!\w)", re.compile(r", in (\w{1,80})\s*\n"), _frame, budget=False
    ),
    _simple(r"capture_end\(\)|torch\.cuda\.graph\(", Mark("frame", "capturing")),
    _simple(
        r"Error: |Exception: ",
        Death("other", "not_memory"),
        body=rf"^(?:[\w.]+\.)?(?!EngineDead|BrokenPipe|ConnectionReset|Timeout|EOF|Cancelled|OutOfMemory|MQEngineDead)"
        rf"\w*(?:Error|Exception): (?!{_CASCADE}|.*(?:out of memory|memory on (?:device|node)))",
    ),
)
PATTERNS = (*_ROOTS, *_ENDS)
