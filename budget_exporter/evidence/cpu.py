"""
What vLLM says of a boot on CPUs, where the memory of a NUMA node is the device.

Formats are those of vLLM 0.20 to 0.33 ``v1/worker/cpu_worker.py`` and of the executors of V0.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from budget_exporter.evidence.statements import (
    INTEGER,
    NUMBER,
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
_SET = "GiB for KV cache on node"
_SHORT = "Available memory on node"
_NODE = rf"{_SHORT} (?P<node>{_I}) \((?P<free>{_N})/(?P<size>{_N})\s?GiB\)"


def _node(match: re.Match[str]) -> Iterable[Statement]:
    yield RankFact("node", count(match["node"]))


def _available(match: re.Match[str]) -> Iterable[Statement]:
    yield Mark("kv_available", "allocating_kv")
    yield from sizes(match)


def _above_free(match: re.Match[str]) -> Iterable[Statement]:
    free = figure(match["free"], "GiB")
    yield Death("root", "budget_above_free", "starting", free=free)
    yield RankFact("free_at_init", free)
    yield from _of_node(match)


def _no_pool(match: re.Match[str]) -> Iterable[Statement]:
    """Read a KV pool that is not there: more than is available, or nothing left of the share by what was consumed."""
    tried = figure(match["tried"], "GiB")
    if tried.bytes <= 0:
        yield Death("root", "no_kv_room", "allocating_kv", free=figure(match["free"], "GiB"))
    else:
        yield Death("root", "kv_alloc_oom", "allocating_kv", tried, figure(match["free"], "GiB"))
    yield from _of_node(match)


def _of_node(match: re.Match[str]) -> Iterable[Statement]:
    yield RankFact("node", count(match["node"]))
    yield RankFact("size_at_init", figure(match["size"], "GiB"))
    if match["requested"] is not None:
        yield RankFact("requested", figure(match["requested"], "GiB"))


PATTERNS = (
    Pattern(_SET, re.compile(rf"Auto set \((?P<kv_available>{_N})/(?P<size_at_init>{_N})\) {_SET}"), _available),
    Pattern(_SET, re.compile(rf"Explicitly set \((?P<kv_reserved>{_N})/(?P<size_at_init>{_N})\) {_SET}"), _available),
    Pattern(_SET, re.compile(rf"with (?P<requested>{_N}) GiB requested memory for the worker"), sizes),
    Pattern(_SET, re.compile(rf"(?P<consumed>{_N}) GiB memory was consumed by non-kv usages"), sizes),
    Pattern(_SET, re.compile(rf"{_SET} (?P<node>{_I})(?=[.,]?\s)"), _node),
    Pattern(
        _SHORT,
        re.compile(
            rf"{_NODE} on startup(?: is less than desired CPU memory utilization "
            rf"\((?P<utilization>{_N}), (?P<requested>{_N})\s?GiB\))?"
        ),
        _above_free,
    ),
    Pattern(
        _SHORT,
        re.compile(
            rf"{_NODE} on kv cache allocation is less than requested memory for kv "
            rf"\((?P<tried>{_N})(?:/(?P<requested>{_N}))?\s?GiB\)"
        ),
        _no_pool,
    ),
)
