"""What vLLM writes over its worker processes' command lines."""

from __future__ import annotations

import re
from collections.abc import Sequence

__all__ = ["rank_of", "title_of"]

_WORKER = re.compile(r".*::Worker((?:_[A-Z]+\d+)+)")
_PART = re.compile(r"_([A-Z]+)(\d+)")
_WITHIN_TP = {"EP", "DCP"}
"""Parts of a title that say what a tensor-parallel rank does besides, and move it nowhere."""


def title_of(cmdline: Sequence[str], comm: str) -> str:
    """
    Return the title a process gave itself, else its name.

    setproctitle leaves the title followed by NULs in ``cmdline``; ``comm`` is cut to 15 bytes.
    """
    words = [word for word in cmdline if word]
    return words[0] if len(words) == 1 and "::" in words[0] else comm


def rank_of(title: str) -> int | None:
    """
    Return the rank inside its engine that a worker's title tells, None where it tells none.

    ``VLLM::Worker_TP1`` is 1 and ``VLLM::Worker_PP1``, without a tensor part, too: a part is only there if its size is
    above one. With both the size of the tensor group would be needed, with ``DP`` the rank is one of a replica.
    Source: vLLM 0.10.2 and later, ``v1/executor/multiproc_executor.py``.
    """
    match = _WORKER.fullmatch(title)
    if match is None:
        return None
    parts = {name: int(index) for name, index in _PART.findall(match[1])}
    dimensions = parts.keys() - _WITHIN_TP
    return parts[next(iter(dimensions))] if dimensions in ({"TP"}, {"PP"}) else None
