"""
What ``--max-num-seqs`` and ``--max-num-batched-tokens`` are for an OpenAI server that does not give them.

Source: vLLM 0.10.2 to 0.32 ``engine/arg_utils.py`` (``get_batch_defaults`` in 0.32); 0.32 also for ``--performance-mode
throughput``, which doubles what is not given. A model that cannot prefill in chunks takes more tokens, its longest
sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from budget_exporter.budget.laws import Version
from budget_exporter.facts.engine import Shape
from budget_exporter.facts.ledger import RankInput
from budget_exporter.units import GIB

__all__ = ["Batch", "batch_defaults", "note_of"]

_OLDEST: Version = (0, 10, 2)
_GPUS = ("amd", "nvidia")


@dataclass(frozen=True, slots=True)
class Batch:
    """Tokens of one step and requests of one batch, and why they are what they are."""

    tokens: int
    sequences: int
    why: str


@dataclass(frozen=True, slots=True)
class _Row:
    """Holds for devices of at least ``size`` bytes, from release ``since`` on; ``but`` names devices it leaves out."""

    since: Version
    size: int
    batch: Batch
    but: str = ""


_ROWS = (
    # For B200 and B300.
    _Row((0, 32), 160 * GIB, Batch(16384, 1024, "a device of 160 GiB or more")),
    # For H100 and H200; larger batches made an A100 slower.
    _Row(_OLDEST, 70 * GIB, Batch(8192, 1024, "a device of 70 GiB or more that is no A100"), but="a100"),
    _Row(_OLDEST, 0, Batch(2048, 256, "a device of less than 70 GiB, or an A100")),
)
"""The first row that fits counts."""
_CPU = Batch(2048, 128, "a CPU, by the number of ranks")


def batch_defaults(shape: Shape, version: Version | None, platform: str, size: int, model: str) -> Batch | None:
    """
    Return the defaults on a device of ``size`` bytes and the name ``model``; None where they are not known.

    ``platform`` is amd, nvidia or host. What releases before 0.10.2 take was not read.
    """
    if version is None or version < _OLDEST or platform not in (*_GPUS, "host"):
        return None
    factor = 2 if shape.given.get("performance-mode") == "throughput" else 1
    if platform == "host":
        factor *= shape.tensor_parallel_size * shape.pipeline_parallel_size
        found = _CPU
    else:
        name = model.lower()
        found = next(
            row.batch
            for row in _ROWS
            if row.since <= version and size >= row.size and not (row.but and row.but in name)
        )
    return Batch(found.tokens * factor, found.sequences * factor, found.why)


def note_of(shape: Shape, version: Version | None, ranks: Sequence[RankInput]) -> str | None:
    """Return a sentence with the flags that are not given and their defaults, None where there is none to name."""
    first = next(iter(ranks), None)
    found = None if first is None else batch_defaults(shape, version, first.platform, first.size, first.model)
    if found is None:
        return None
    missing = [f"--max-num-seqs {found.sequences}"] if shape.max_num_seqs is None else []
    # The engine takes no more tokens than its requests can have, which depends on the longest of them.
    missing += [f"--max-num-batched-tokens at most {found.tokens}"] if shape.max_num_batched_tokens is None else []
    return f"not given, so by default: {', '.join(missing)} ({found.why})" if missing else None
