"""
Numbers that people want to see of a log and no budget needs: one row per form, the name of the group is the figure's.

Only a whole log that is read once is searched for these; what a running engine is watched for is in the other tables.
"""

from __future__ import annotations

import re

from budget_exporter.evidence.statements import INTEGER, NUMBER, SIZE, Pattern

__all__ = ["PATTERNS"]

_N = NUMBER
_I = INTEGER
_U = SIZE
_SIGNED = r"(?<![\d.,])-?[0-9]{1,9}(?:\.[0-9]{1,9})?(?![.,]?\w)"


def _row(lead: str, body: str) -> Pattern:
    return Pattern(lead, re.compile(body), lambda _: (), budget=False)


def _size(name: str) -> str:
    return rf"(?P<{name}>{_N})\s?(?P<{name}_u>{_U})"


_ALLOCATOR = (
    _row("Tried to allocate", rf"Tried to allocate {_size('tried')}"),
    _row("total capac", rf"total capac?i?ty of {_size('total')}"),
    _row("total capacity", rf"; {_size('total')} total capacity"),
    _row("of which", rf"of\s+which {_size('free')} is free"),
    _row("total capacity", rf"; {_size('free')} free[;)]"),
    _row("memory in use", rf"this process has {_size('process')} memory in use"),
    _row("memory in use", rf"Process \d{{1,10}} has {_size('process')} memory in use"),
    _row("is allocated by PyTorch", rf"allocated memory {_size('allocated')} is allocated by PyTorch"),
    _row("already allocated", rf"; {_size('allocated')} already allocated"),
    _row("current active", rf"; {_size('active')} current active"),
    _row("in private pools", rf"with {_size('private_pools')} allocated in private pools"),
    _row("is reserved by PyTorch", rf"and {_size('reserved_unallocated')} is reserved by PyTorch but unallocated"),
    _row("reserved in total", rf"; {_size('reserved')} reserved in total"),
    _row("allowed", rf"is free\. {_size('allowed')} allowed"),
    _row("dummy requests", rf"warming up \w{{1,24}} with (?P<dummy_requests>{_I}) dummy requests"),
    _row("MiB / ", rf"(?P<device_used>{_I})(?P<device_used_u>MiB) / (?P<device_size>{_I})(?P<device_size_u>MiB)"),
)
"""What torch tells of a failed allocation in all its releases, and nvidia-smi's ``used / size``."""
_BUDGET = (
    _row("memory utilization", rf"esired \w{{3,4}} memory utilization (?:is )?\((?P<utilization>{_N}), "),
    _row("memory utilization", rf"utilization (?:is )?\({_N}, (?P<requested>{_N})\s?GiB\)"),
    _row("Requested memory:", rf"Requested memory: (?P<utilization>{_N}) \(util\)"),
    _row("x gpu_memory_utilization", rf"x gpu_memory_utilization \((?P<utilization>{_N})\)"),
    _row("gpu_memory_utilization=", rf"[\s,(]gpu_memory_utilization=(?P<utilization>{_N})(?=,?[\s)])"),
    _row("Total non KV cache memory", rf"Total non KV cache memory: {_size('non_kv')}"),
    _row("Free memory after profiling", rf"after profiling: {_size('free_after_profile')} \(total\)"),
    _row("Free memory after profiling", rf"\(total\), {_size('free_within_requested')} \(within requested\)"),
    _row("Memory profiling takes", rf"Memory profiling takes (?P<profile_seconds>{_N}) seconds"),
    _row("loading took", rf"loading took {_N}\s?{_U}(?: memory)? and (?P<load_seconds>{_N}) seconds"),
    _row("kv-cache-memory", rf"--kv-cache-memory(?:-bytes)?=(?P<kv_fit>{_I})`?(?: \({_N} GiB\))? to fit"),
    _row("kv-cache-memory", rf"--kv-cache-memory(?:-bytes)?={_I}`? \({_size('kv_fit')}\) to fit"),
    _row("kv-cache-memory", rf"--kv-cache-memory(?:-bytes)?=(?P<kv_full>{_I})`?(?: \({_N} GiB\))? to fully"),
    _row("kv-cache-memory", rf"--kv-cache-memory(?:-bytes)?={_I}`? \({_size('kv_full')}\) to fully"),
    _row("CPU offloaded parameters", rf"CPU offloaded parameters: (?P<cpu_offloaded>{_N})(?=\s)"),
    _row("init engine", rf"init engine \([^)]{{1,80}}\) took (?P<init_seconds>{_N}) s"),
)
_POOL = (
    _row("# CPU blocks: ", rf"# CPU blocks: (?P<cpu_blocks>{_I})(?=[\s,])"),
    _row(
        "estimated maximum model length",
        rf"estimated maximum model length is (?P<max_model_len_estimate>{_I})(?=\.?\s)",
    ),
    _row("Mamba cache blocks", rf"Mamba cache blocks \((?P<mamba_blocks>{_I}) blocks available\)"),
    _row("capture sizes from max", rf"from max (?P<capture_size>{_I}) to (?P<capture_size_capped>{_I}) to fit"),
    _row("KV cache ", rf"KV cache .{{0,60}}?(?P<kv_tokens_before>{_I}) (?:->|\u2192) (?P<kv_tokens>{_I}) tokens"),
    _row(
        "KV cache pool", rf"KV cache pool .{{0,60}}?(?P<kv_tokens_before>{_I}) (?:->|\u2192) (?P<kv_tokens>{_I}) tokens"
    ),
)
_PLAN = (
    _row(
        "overhead planned",
        rf"overhead planned {_N} GiB, measured {_N} GiB \((?:\+(?!-))?(?P<overhead_drift>{_SIGNED})\)",
    ),
    _row(
        "KV planned",
        rf"planned {_I} B/token, measured {_I} B/token \((?:\+(?!-))?(?P<kv_bytes_per_token_drift>{_SIGNED})\)",
    ),
    _row("torch reserved", rf"torch reserved {_size('torch_reserved')}, torch allocated {_size('torch_allocated')}"),
    _row("torch reserved", rf"torch allocated {_N} {_U}, non-torch {_size('non_torch')}"),
    _row("before load: non-torch", rf"before load: non-torch {_size('non_torch_before_load')}"),
    _row("registry ", rf"registry (?P<kv_bytes_per_token>{_I}) B/token"),
    _row(r"resident layers \[", rf"resident layers \[[\d, ]*\] (?P<resident_experts>{_N})(?=\s)"),
    _row("expert cache space", rf"(?P<slots>{_I}) slots\b"),
    _row("PLE ", rf"PLE (?P<ple>{_N})(?:\s?GiB)? excluded"),
    _row("host usable", rf"host usable (?P<host_usable>{_N}) of MemAvailable (?P<host_available>{_N})(?=\s)"),
)
"""Of the expert-offload fork: the notes of the plan's rows, and by how much the plan was missed."""
_GRAPHS = (
    _row("CUDA graph pool memory", rf"difference: {_size('graph_difference')} \((?P<graph_difference_percent>{_N})%\)"),
    _row("CUDA graph pool memory", rf"\(actual: {_size('graph_captured')} captured"),
    _row("CUDA graph pool memory", rf"captured \+ {_size('graph_retained')} retained"),
    _row("CUDA graph persistent memory", rf"persistent memory: {_size('graph_persistent')} \(estimated\)"),
    _row("Graph capturing", rf"Graph capturing for (?P<capture_tokens>{_I}) input tokens"),
    _row("finished in ", rf"finished in (?P<capture_seconds>{_N}) secs?, took"),
    _row("finished in ", rf"^\s*finished in {_N} secs?, took {_size('graph_one')}(?![A-Za-z])"),
    _row("Profiling CUDA graph memory", r"PIECEWISE=(?P<graphs_piecewise>[0-9]{1,6}) \("),
    _row("Profiling CUDA graph memory", r"FULL=(?P<graphs_full>[0-9]{1,6}) \("),
    _row(
        "Capturing CUDA graph",
        r"Capturing CUDA graphs?[^:\n]{0,80}:\s+\d{1,3}%\|[^|]{0,400}\|\s*"
        r"(?P<captured>[0-9]{1,6})/(?P<to_capture>[0-9]{1,6}) \[",
    ),
    _row("cuda graph addresses", rf"Registering (?P<graph_addresses>{_I}) cuda graph addresses"),
    _row("is equivalent to", rf"is equivalent to --gpu-memory-utilization=(?P<utilization_equivalent>{_N}) "),
    _row("current --gpu-memory", rf"current --gpu-memory-utilization=(?P<utilization>{_N}) is equivalent"),
    _row("increase --gpu-memory", rf"increase --gpu-memory-utilization to (?P<utilization_suggested>{_N})(?=\.?\s)"),
    _row(
        "ncreas",
        rf"ncreas(?:e|ing) --gpu-memory-utilization from (?P<utilization>{_N}) to "
        rf"(?P<utilization_suggested>{_N})(?=\.?\s)",
    ),
)
_RUNNING = (
    _row("sleep freed", rf"sleep freed {_size('sleep_freed')} memory in total"),
    _row("sleep freed", rf"of which {_size('sleep_backed_up')} is backed up"),
    _row("sleep freed", rf"the rest {_size('sleep_discarded')} is discarded"),
    _row(
        "Sleep mode freed", rf"Sleep mode freed {_size('sleep_freed')} memory, {_size('sleep_in_use')} memory is still"
    ),
    _row("to fall asleep", rf"It took (?P<sleep_seconds>{_N}) seconds to fall asleep"),
    _row("to wake up", rf"It took (?P<wake_seconds>{_N}) seconds to wake up"),
    _row("Running: ", rf"Running: (?P<requests_running>{_I}) reqs"),
    _row("Waiting: ", rf"Waiting: (?P<requests_waiting>{_I}) reqs"),
    _row("KV cache usage: ", rf"KV cache usage: (?P<kv_usage>{_N})%(?![\d.])"),
    _row("num_running_reqs=", rf"num_running_reqs=(?P<requests_running>{_I})(?=[,)])"),
    _row("num_waiting_reqs=", rf"num_waiting_reqs=(?P<requests_waiting>{_I})(?=[,)])"),
    _row("kv_cache_usage=", r"kv_cache_usage=(?P<kv_usage>[0-9](?:\.[0-9]{1,24})?)(?=[,)])"),
    _row("queries=", rf"prefix_cache_stats=[^()]{{1,40}}\([^()]{{0,200}}?\bqueries=(?P<prefix_queries>{_I})(?=[,)])"),
    _row("exit code: ", r"exit code: (?P<exit_code>-?[0-9]{1,5})(?=\D)"),
    _row(r"\(code: ", r"\(code: (?P<error_code>-?[0-9]{1,6})\)"),
    _row("with PID ", r"engine process with PID (?P<engine_pid>[0-9]{1,10})(?=\D)"),
    _row("local rank", r"local rank (?P<local_rank>[0-9]{1,5}) is out of bounds"),
)
PATTERNS = (*_ALLOCATOR, *_BUDGET, *_POOL, *_PLAN, *_GRAPHS, *_RUNNING)
