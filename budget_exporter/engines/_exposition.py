"""Pick the few lines of interest out of an engine's metrics, however long they are."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from budget_exporter.facts.endpoint import EndpointFacts

__all__ = ["Sample", "Scanner", "facts"]

_CONFIG = "vllm:cache_config_info"
_USAGE = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")
"""The newer name first: 0.9.2 to 0.11 may show both. Source: vLLM 0.8.5 to 0.33, ``v1/metrics/loggers.py``."""
_RUNNING = "vllm:num_requests_running"
_WAITING = "vllm:num_requests_waiting"
_SLEEP = "vllm:engine_sleep_state"
_NAMES = (_CONFIG, *_USAGE, _RUNNING, _WAITING, _SLEEP)
_INTEREST = re.compile(b"(?m)^(?:" + b"|".join(name.encode() for name in _NAMES) + b")[{ ].*")
_LONGEST = 16 << 10
"""Bytes of a line; the one with all settings of the cache has 1,000 to 2,000."""
_MOST = 4096
"""Lines kept; eight for each replica are of interest."""
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')
_SAMPLE = re.compile(r'([a-z:_]+)(?:\{((?:[^"{}]|"(?:[^"\\]|\\.)*")*)\})? (\S+)(?: -?\d+)?\s*')
_WHOLE = re.compile(r"[0-9]{1,18}")
_N = TypeVar("_N", int, float)


@dataclass(frozen=True, slots=True)
class Sample:
    """One line."""

    name: str
    labels: Mapping[str, str]
    value: float


@dataclass(slots=True)
class Scanner:
    """Take an answer in pieces and keep the lines of interest; needs as much memory as they have and one line more."""

    _rest: bytes = b""
    _kept: list[bytes] = field(default_factory=list)
    _dropping: bool = False
    """Whether the line whose beginning was too long goes on."""
    _last: bytes = b""

    def feed(self, piece: bytes) -> None:
        """Take the next piece, wherever it was cut."""
        data = self._rest + piece
        if self._dropping:
            _, end, data = data.partition(b"\n")
            self._dropping = not end
        whole, end, self._rest = data.rpartition(b"\n")
        if end:
            self._take(whole)
        if len(self._rest) > _LONGEST:
            self._rest, self._dropping = b"", True

    def _take(self, lines: bytes) -> None:
        # One search for all of them: most lines, and in a hostile answer millions, are of no interest.
        for match in _INTEREST.finditer(lines):
            if len(match[0]) <= _LONGEST and len(self._kept) < _MOST:
                self._kept.append(match[0])
        self._last = lines.rstrip().rpartition(b"\n")[2] or self._last

    def close(self, *, cut: bool = False) -> list[Sample]:
        """
        Return what the kept lines say; lines that make no sense say nothing.

        Of an answer that was ``cut`` the last family may lack samples, so it is left out.
        """
        if not self._dropping and not cut:
            self._take(self._rest)
        samples = [sample for line in self._kept if (sample := _sample(line)) is not None]
        if cut:
            last = re.split(rb"[{ ]", self._last, maxsplit=1)[0].decode(errors="replace")
            samples = [sample for sample in samples if sample.name != last]
        return samples


def _sample(line: bytes) -> Sample | None:
    match = _SAMPLE.fullmatch(line.decode(errors="replace"))
    if match is None:
        return None
    try:
        value = float(match[3])
    except ValueError:
        return None
    return Sample(match[1], dict(_LABEL.findall(match[2] or "")), value)


def facts(samples: Sequence[Sample], *, version: str | None = None) -> EndpointFacts:
    """
    Return what ``samples`` say; ``version`` is the engine's, None where it is not known.

    ``num_gpu_blocks`` is the sum over data-parallel replicas on each one's row, tokens and concurrency are per replica.
    Sources: vLLM ``v1/metrics/loggers.py`` and ``v1/engine/core_client.py`` (the sum, 0.9.2 and later);
    ``kv_cache_size_tokens`` and ``kv_cache_max_concurrency`` are there from 0.24 on, ``kv_cache_memory_bytes`` from
    0.10.2.
    """
    rows = [sample.labels for sample in samples if sample.name == _CONFIG]
    usage = next((found for name in _USAGE if (found := _by_replica(samples, name))), {})
    awake = [s.value for s in samples if s.name == _SLEEP and s.labels.get("sleep_state") == "awake"]
    return EndpointFacts(
        replicas=len({row.get("engine", "") for row in rows}),
        version=version,
        kv_blocks=_blocks(rows, version),
        kv_tokens=_smallest(_whole(row, "kv_cache_size_tokens") for row in rows),
        kv_concurrency=_smallest(_number(row, "kv_cache_max_concurrency") for row in rows),
        kv_bytes=_agreed(_whole(row, "kv_cache_memory_bytes") for row in rows),
        block_size=_agreed(_whole(row, "block_size") for row in rows),
        kv_usage=max(usage.values(), default=None),
        running=_total(_by_replica(samples, _RUNNING)),
        waiting=_total(_by_replica(samples, _WAITING)),
        # Only where all sleep: what holds for one replica does not hold for the engine.
        asleep=not any(awake) if awake else None,
    )


def _blocks(rows: Sequence[Mapping[str, str]], version: str | None) -> int | None:
    """Return the blocks of all replicas; before 0.9.2 it is not known whether each row has the sum or its own."""
    if len(rows) > 1 and _release(version) < (0, 9, 2):
        return None
    return _agreed(_whole(row, "num_gpu_blocks") for row in rows)


def _release(version: str | None) -> tuple[int, ...]:
    match = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", version or "")
    return tuple(int(part or 0) for part in match.groups()) if match else ()


def _by_replica(samples: Iterable[Sample], name: str) -> dict[str, float]:
    """
    Return the value of each replica by its label.

    Several processes of one server may show one each (label ``pid``); where they part, whose is right cannot be told.
    """
    found: dict[str, set[float]] = {}
    for sample in samples:
        if sample.name == name and math.isfinite(sample.value):
            found.setdefault(sample.labels.get("engine", ""), set()).add(sample.value)
    if any(len(values) > 1 for values in found.values()):
        return {}
    return {replica: next(iter(values)) for replica, values in found.items()}


def _smallest(values: Iterable[_N | None]) -> _N | None:
    """Return the smallest if all are known: that of some is not that of all."""
    every = list(values)
    known = [value for value in every if value is not None]
    return min(known) if known and len(known) == len(every) else None


def _agreed(values: Iterable[int | None]) -> int | None:
    every = set(values)
    return every.pop() if len(every) == 1 else None


def _total(values: Mapping[str, float]) -> int | None:
    return int(sum(values.values())) if values else None


def _whole(row: Mapping[str, str], label: str) -> int | None:
    text = row.get(label, "")
    return int(text) if _WHOLE.fullmatch(text) else None


def _number(row: Mapping[str, str], label: str) -> float | None:
    try:
        value = float(row.get(label, ""))
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 else None
