"""
How an engine says that it dies: the sentence that names the cause, the frames that tell where, and the cascade.

One death is told in up to eight sentences, by several processes and twice by some. Which of them is the cause is for
boot.py to decide; here each sentence is only read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from budget_exporter.evidence import allocations, frames
from budget_exporter.evidence.frames import FRAMES, STAGES
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

__all__ = ["PATTERNS"]

_N = NUMBER
_I = INTEGER
_DEVICE = re.compile(r"\bcuda:([0-9]{1,4})(?=[\s();]|,\s|$)")


def _local_rank(text: str) -> int | None:
    device = _DEVICE.search(text)
    return int(device[1]) if device else None


def _budget(match: re.Match[str]) -> Iterable[Statement]:
    free = match["free"] or match["said"]
    yield Death("root", "budget_above_free", "starting", free=figure(free, "GiB"), local_rank=_local_rank(match[0]))


def _too_long(match: re.Match[str]) -> Iterable[Statement]:
    yield Death("root", "kv_below_max_len", "allocating_kv")
    yield BootFact("max_model_len", count(match["max_model_len"]))
    yield RankFact("kv_available", figure(match["kv_available"], "GiB"))


def _too_few_tokens(match: re.Match[str]) -> Iterable[Statement]:
    yield Death("root", "kv_below_max_len", "allocating_kv")
    yield BootFact("max_model_len", count(match["max_model_len"]))
    yield BootFact("kv_tokens", count(match["kv_tokens"]))


def _assert(match: re.Match[str]) -> Iterable[Statement]:
    yield Death("root", "profile_assert", "profiling", free=figure(match["free"], match["free_u"]))
    yield RankFact("free_at_init", figure(match["free_at_init"], match["free_at_init_u"] or match["free_u"]))


def _always(*said: Statement) -> Callable[[re.Match[str]], Iterable[Statement]]:
    return lambda _: said


def _method(match: re.Match[str]) -> Iterable[Statement]:
    phase = STAGES.get(match["method"]) or FRAMES.get(match["method"])
    if phase is not None:
        yield Mark("method", phase)


def _gone(match: re.Match[str]) -> Iterable[Statement]:
    """Name the rank of a worker that its parent found dead: ``VllmWorker-1`` is global rank 1 (multiproc_executor)."""
    yield Death("end", local_rank=None if match["rank"] is None else int(match["rank"]))


def _simple(lead: str, *said: Statement, body: str | None = None) -> Pattern:
    return Pattern(lead, re.compile(body or lead), _always(*said), budget=False)


_CASCADE = (
    r"Engine core init|Worker failed with|Engine(?:Core)? |Engine loop|Engine process|Executor failed|cancelled|"
    r"WorkerProc init|To serve at least one request|The model's max seq len|max_num_seqs \(|No available memory|"
    r"Error in memory profiling"
)
"""What exceptions say that only pass a death on, or that have a pattern of their own."""
_MEMORY = r".*(?:out of memory|memory on (?:device|node))"
"""What an exception says that is one of memory."""
_NOT = r"(?!EngineDead|BrokenPipe|ConnectionReset|Timeout|EOF|Cancelled|OutOfMemory|MQEngineDead)"
"""Exceptions that pass a death on, or that are read elsewhere."""
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
        "To serve at least one request with",
        re.compile(
            rf"max seq len \((?P<max_model_len>{_I})\),?\s*\(?(?P<kv_needed>{_N})\s?(?:GiB|GB)\s+KV cache\s*is needed, "
            rf"which is larger than\s*the available KV cache memory \((?P<kv_available>{_N})\s?(?:GiB|GB)\)"
        ),
        _too_long,
    ),
    Pattern(
        r"model's max seq len \(\d+\) is larger",
        re.compile(
            rf"max seq len \((?P<max_model_len>{_I})\) is larger than\s*"
            rf"the maximum number of tokens that can be stored in KV cache \((?P<kv_tokens>{_I})\)"
        ),
        _too_few_tokens,
    ),
    Pattern(
        r"max_num_seqs \(\d+\) exceeds",
        re.compile(
            rf"max_num_seqs \((?P<max_num_seqs>{_I})\) exceeds available Mamba cache blocks \((?P<mamba_blocks>{_I})\)"
        ),
        _always(Death("root", "kv_below_max_len", "allocating_kv")),
    ),
    _simple("blocks: 0,", Death("root", "no_kv_room", "allocating_kv"), body=r"# \w{2,8} blocks: 0,"),
    # Up to 0.6 without figures; where the sentence stands in a traceback's code, its name does not stand before it.
    _simple(
        "Error in memory profiling",
        Death("root", "profile_assert", "profiling"),
        body=r"AssertionError: Error in memory profiling\.\s+This happens when",
    ),
    _simple("No available memory for the cache blocks", Death("root", "no_kv_room", "allocating_kv")),
    Pattern(
        "Error in memory profiling",
        re.compile(
            rf"Error in memory profiling\. Initial free memory (?P<free_at_init>{_N})"
            r"(?:\s?(?P<free_at_init_u>GiB|bytes))?,\s+"
            rf"current free memory (?P<free>{_N})\s?(?P<free_u>GiB|bytes)(?=\.?\s)"
        ),
        _assert,
    ),
    # V0 names the worker's method: after the failure (0.6 and later), or before it.
    Pattern(
        "while processing method|Error executing method",
        re.compile(r"(?:while processing|Error executing) method '?(?P<method>\w{1,80})"),
        _method,
        budget=False,
    ),
)


_ENDS = (
    _simple("Engine core initialization failed", Death("end"), Mark("boot_failed"), Mark("last_word")),
    _simple("EngineCore failed to start|Engine process failed to start", Death("end"), Mark("boot_failed")),
    _simple("WorkerProc failed to start|WorkerProc initialization failed", Mark("trouble"), Mark("boot_failed")),
    # The call in which an engine is made, in the traceback of one that could not be.
    _simple(
        r"EngineCoreProc\(|LLMEngine\.from_|AsyncLLM\.from_",
        Mark("boot_failed"),
        body=r"^\s*[\w.]{1,80} = (?:EngineCoreProc\(|\w*LLMEngine\.from_|AsyncLLM\.from_)",
    ),
    _simple("ot fatal signal from worker processes", Death("end")),
    _simple("Engine has failed, terminating|is already dead, terminating", Death("end")),
    _simple("EngineCore encountered a fatal error", Death("end")),
    _simple(r"EngineCore encountered a fatal error|Engine loop is not running", Mark("running", "serving")),
    _simple(r"EngineDeadError|Engine loop is not running", Death("end")),
    # A handler of a request tells of the dead engine in its own traceback: as often as requests were under way.
    _simple(r"EngineDeadError: Engine loop is not running", Mark("handler")),
    _simple(r"num_running_reqs=", Mark("one_running"), body=r"num_running_reqs=1, num_waiting_reqs=0,"),
    _simple(r"WorkerProc hit an exception|EngineCore hit an exception|Exception in worker ", Mark("trouble")),
    _simple(r"Error executing method ", Mark("trouble")),
    Pattern(
        r"died unexpectedly|died, exit code",
        re.compile(r"(?:\bWorker proc VllmWorker-(?P<rank>[0-9]{1,6}) )?died unexpectedly|died, exit code"),
        _gone,
        budget=False,
    ),
    _simple(r"Application shutdown complete|Finished server process", Mark("last_word")),
    _simple(r"Traceback \(most recent call last\)", Mark("traceback")),
    _simple(
        r"Error: |Exception: ",
        Death("other", "not_memory"),
        body=rf"^(?:[\w.]+\.)?{_NOT}\w*(?:Error|Exception): (?!{_CASCADE}|{_MEMORY})",
    ),
    # V0 up to 0.5: what a worker failed of, in one line.
    _simple(
        "while processing method",
        Death("other", "not_memory"),
        body=rf"while processing method '?\w{{1,80}}'?: (?!{_CASCADE}|{_MEMORY})",
    ),
    _simple(
        r"Error\(|Exception\(",
        Death("other", "not_memory"),
        # As Python shows an exception itself, which the engine of V0 logs first.
        body=rf"^{_NOT}\w*(?:Error|Exception)\((?:\)|[\x22'](?!{_CASCADE}|{_MEMORY}))",
    ),
)
PATTERNS = (*_ROOTS, *allocations.PATTERNS, *frames.PATTERNS, *_ENDS)
