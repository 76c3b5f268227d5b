"""The ``non-default args`` line: a Python dict of which only allow-listed names are kept."""

from __future__ import annotations

import re
from collections.abc import Iterator

__all__ = ["ALLOWED", "named_args", "without_credentials"]

ALLOWED = frozenset(
    {
        "api_server_count",
        "block_size",
        "cpu_offload_gb",
        "cudagraph_capture_sizes",
        "data_parallel_size",
        "decode_context_parallel_size",
        "dtype",
        "enable_expert_offload",
        "enable_expert_parallel",
        "enable_prefix_caching",
        "enable_sleep_mode",
        "enforce_eager",
        "expert_offload_mem",
        "expert_precise_memory",
        "expert_resident_layers",
        "gpu_memory_utilization",
        "kv_cache_dtype",
        "kv_cache_memory_bytes",
        "max_cudagraph_capture_size",
        "max_model_len",
        "max_num_batched_tokens",
        "max_num_seqs",
        "model",
        "num_gpu_blocks_override",
        "pipeline_parallel_size",
        "ple_cache_gb",
        "ple_nvme_offload",
        "port",
        "quantization",
        "served_model_name",
        "swap_space",
        "tensor_parallel_size",
    }
)
# A quote ends an address: a list of names is printed as Python does.
_ADDRESS = re.compile(r"(://)(?:[^/\s]*@)?([^\s?#'\"]*)(?:[?#][^\s'\"]*)?")
_OPEN, _CLOSE = "([{<", ")]}>"


def named_args(text: str) -> dict[str, str]:
    """
    Return the allow-listed entries of a printed dict as text, quotes off.

    ``text`` begins with ``{``. Only entries at the outermost level count (``speculative_config`` has a model and a
    tensor_parallel_size of its own), and only those followed by a comma or the closing brace: the last entry of a line
    cut short is not known to be whole.
    """
    found = {}
    for entry in _entries(text):
        name, colon, value = entry.partition(":")
        name = name.strip().strip("'\"")
        if colon and name in ALLOWED:
            found[name] = _plain(value.strip())
    return found


def without_credentials(text: str) -> str:
    """Return ``text`` with its URLs without user, password and query: a model may be named by one, and is kept."""
    return _ADDRESS.sub(r"\1\2", text) if "://" in text else text


def _plain(value: str) -> str:
    return value[1:-1] if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"" else value


def _entries(text: str) -> Iterator[str]:
    """Split at the commas of the outermost level, aware of quotes, escapes and brackets."""
    depth, quote, start, escaped = 0, "", 1, False
    for position, char in enumerate(text):
        if escaped:
            escaped = False
        elif quote:
            escaped = char == "\\"
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        elif char in _OPEN:
            depth += 1
        elif char in _CLOSE:
            depth -= 1
            if depth == 0:
                yield text[start:position]
                return
        elif char == "," and depth == 1:
            yield text[start:position]
            start = position + 1
