"""What vLLM writes over its worker processes' command lines."""

from __future__ import annotations

import re
from collections.abc import Sequence

__all__ = ["is_ray_worker", "parts_of", "rank_of", "title_of"]

_WORKER = re.compile(r".*(?:::Worker|::EngineCore|--multiprocessing-fork)((?:_[A-Z]+\d+)+)", re.DOTALL)
_PART = re.compile(r"_([A-Z]+)(\d+)")
_SPAWNED = re.compile(r".* --multiprocessing-fork_\S+", re.DOTALL)
"""A worker of vLLM 0.10.1 that was spawned: it appends its part to the command line it was started with."""
_RAY_WORKER = re.compile(r"ray::(?:RayWorkerWrapper|RayWorkerProc|\w*EngineCoreActor)(?:\.\w+)?(?:\(\))?")
_WITHIN_TP = {"EP", "DCP"}
"""Parts of a title that say what a tensor-parallel rank does besides, and move it nowhere."""


def title_of(cmdline: Sequence[str], comm: str) -> str:
    """
    Return the title a process gave itself, else its name.

    setproctitle leaves the title followed by NULs in ``cmdline``; ``comm`` is cut to 15 bytes.
    """
    words = [word for word in cmdline if word]
    return words[0] if len(words) == 1 and ("::" in words[0] or _SPAWNED.fullmatch(words[0])) else comm


def rank_of(title: str) -> int | None:
    """
    Return the rank inside its engine that a worker's title tells, None where it tells none.

    ``VLLM::Worker_TP1`` is 1 and ``VLLM::Worker_PP1``, without a tensor part, too: a part is only there if its size is
    above one. With both the size of the tensor group would be needed, with ``DP`` the rank is one of a replica.
    Source: vLLM 0.10.2 to 0.32, ``v1/executor/multiproc_executor.py``; in 0.10.1 a worker appends its part to the title
    it has from the engine core it was forked from (``VLLM::EngineCore_TP1``), or to the command line of its spawning.
    """
    parts = parts_of(title)
    return parts[next(iter(parts))] if parts.keys() in ({"TP"}, {"PP"}) else None


def parts_of(title: str) -> dict[str, int]:
    """
    Return a process's place in each group it is in, by ``DP``, ``PP``, ``PCP``, ``TP``; empty where it tells none.

    ``VLLM::Worker_DP1_TP0`` is 1 of ``DP`` and 0 of ``TP``; ``VLLM::EngineCore_DP1`` is 1 of ``DP``.
    """
    match = _WORKER.fullmatch(title)
    found = _PART.findall(match[1]) if match is not None else []
    return {name: int(index) for name, index in found if name not in _WITHIN_TP}


def is_ray_worker(title: str) -> bool:
    """
    Return whether the title is one that Ray gives to a process of vLLM's, by the class of the actor in it.

    Source: vLLM 0.9 to 0.32: ``RayWorkerWrapper`` (``executor/ray_utils.py``), ``RayWorkerProc``
    (``v1/executor/ray_executor_v2.py``), ``EngineCoreActor`` and its kin (``v1/engine/core.py``). Ray puts ``ray::``
    before the class, and the method that runs behind it.
    """
    return _RAY_WORKER.fullmatch(title) is not None
