"""The ranks an engine has on this host: their names, their places among its devices, which process is which."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from budget_exporter.engines._titles import parts_of
from budget_exporter.facts.engine import Shape, Worker

__all__ = ["LocalRank", "local_ranks", "rank_name", "stray"]

_MOST_RANKS = 1024
"""No host has as many: flags that ask for more are a mistake, and no reason for as many series."""
_COUNT = re.compile(r"[0-9]{1,9}")


@dataclass(frozen=True, slots=True)
class LocalRank:
    """One rank: its name, and ``at``, its place in the list of devices the engine has on this host."""

    name: str
    at: int


def local_ranks(shape: Shape) -> list[LocalRank]:
    """
    Return the ranks of this host, ``0``, ``1``, … or with data parallelism ``d0.0``, ``d0.1``, …; none above 1024.

    A rank's place is its local replica's times the ranks of one, and its own behind: tensor ranks next to each other,
    then prefill-context, then pipeline ranks.
    Source: vLLM 0.11.1 to 0.32 ``v1/worker/gpu_worker.py`` ``init_device``; before, ``v1/engine/utils.py`` cut the same
    slice out of the list for each replica.
    """
    inside, replicas = _inside(shape), _replicas(shape)
    if inside * _number(replicas) > _MOST_RANKS:
        return []
    if shape.data_parallel_size == 1:
        return [LocalRank(str(rank), rank) for rank in range(inside)]
    return [
        LocalRank(f"d{replica}.{rank}", place * inside + rank)
        for place, replica in enumerate(replicas)
        for rank in range(inside)
    ]


def rank_name(worker: Worker, shape: Shape) -> str | None:
    """
    Return the name of the rank that a process is by its title, None where that does not tell.

    A part of a title is there only where its group has more than one member. Workers of a dense model's replicas do
    not name the replica; where a replica is one rank, its engine core is the rank.
    Source: vLLM 0.10.2 to 0.32, ``v1/executor/multiproc_executor.py``, ``v1/engine/core.py``.
    """
    parts = parts_of(worker.title)
    rank = 0
    for name, size in _groups(shape):
        if (name in parts) != (size > 1) or parts.get(name, 0) >= size:
            return None
        rank = rank * size + parts.get(name, 0)
    if shape.data_parallel_size == 1:
        return str(rank) if parts and "DP" not in parts else None
    replicas = _replicas(shape)
    replica = parts.get("DP", replicas[0] if _number(replicas) == 1 and parts else None)
    return f"d{replica}.{rank}" if replica is not None and replica in replicas else None


def stray(shape: Shape, workers: Sequence[Worker]) -> str:
    """
    Return the title of a process whose place in its groups the flags do not tell of; else nothing.

    A worker names each group of more than one member; a title without any place says nothing.
    """
    sizes = dict(_groups(shape))
    for worker in workers:
        parts = parts_of(worker.title)
        replica = parts.pop("DP", 0)
        unknown = any(place >= sizes.get(name, 1) for name, place in parts.items())
        unnamed = bool(parts) and any(size > 1 and name not in parts for name, size in sizes.items())
        if unknown or unnamed or (replica > 0 and replica >= shape.data_parallel_size):
            return worker.title
    return ""


def _groups(shape: Shape) -> tuple[tuple[str, int], ...]:
    """Return the groups inside a replica and their sizes, the slowest first."""
    return (
        ("PP", shape.pipeline_parallel_size),
        ("PCP", _context(shape)),
        ("TP", shape.tensor_parallel_size),
    )


def _inside(shape: Shape) -> int:
    return shape.tensor_parallel_size * shape.pipeline_parallel_size * _context(shape)


def _context(shape: Shape) -> int:
    """Return the prefill-context parallel size, which multiplies the ranks as the other two do (vLLM 0.12 on)."""
    return _count(shape, "prefill-context-parallel-size") or 1


def _replicas(shape: Shape) -> range:
    """
    Return which replicas run on this host; none for a server whose engines are all elsewhere.

    Source: vLLM 0.9 to 0.32, ``engine/arg_utils.py``: with a rank of its own a server has that replica, else so many
    from the first on as are said to be local, by default all.
    """
    rank, local, start = (_count(shape, f"data-parallel-{name}") for name in ("rank", "size-local", "start-rank"))
    if rank is not None:
        return range(rank, rank + 1)
    if local is None:
        return range(shape.data_parallel_size)
    return range(start or 0, (start or 0) + local)


def _number(replicas: range) -> int:
    """Return how many there are; flags may ask for more than ``len`` can count."""
    return replicas.stop - replicas.start


def _count(shape: Shape, flag: str) -> int | None:
    text = shape.given.get(flag, "")
    return int(text) if _COUNT.fullmatch(text) else None
