"""
The budget of vLLM on TPUs: what the chips may hold, less what they hold after loading.

    KV pool = int(sum of limits x utilization - sum of bytes in use)            tpu-inference, all local chips together
    KV pool = int((sum of limits - sum of bytes in use) x utilization)          the same before its pull request 734
    KV pool = max(int(size x utilization) - used x 1.02, 0) x head / padded     torch_xla (V1), heads padded to 128
    KV pool = max(int(limit x utilization) - peak, 0)                           V0, blocks floored to a multiple of 8

Source: vLLM ``worker/tpu_worker.py`` (V0) and ``v1/worker/tpu_worker.py`` (pull requests 15671 and 20048);
vllm-project/tpu-inference ``worker/tpu_worker.py`` at b8692ff0 (0.32.0) and before 6d0a9c190 (2025-09-25). There is no
profile run in tpu-inference, and ``--kv-cache-memory-bytes`` is not read. Read in source and held to printed figures;
not run on a TPU.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from budget_exporter.budget.checks import check
from budget_exporter.budget.laws import Version
from budget_exporter.budget.terms import closing, facts_of, kv_minimum, printed, rank_notes
from budget_exporter.errors import LawError
from budget_exporter.facts.boot import BootReport
from budget_exporter.facts.engine import Shape
from budget_exporter.facts.ledger import Constants, Ledger, RankInput, RankLedger, Term
from budget_exporter.units import gib_text

__all__ = ["LAWS", "TpuInference", "torch_xla", "tpu_inference", "tpu_inference_before", "v0_blocks"]

UTILIZATION = "--gpu-memory-utilization"
DEFAULT_UTILIZATION = 0.92
"""vLLM's default from 0.20 on (``config/cache.py``); 0.9 before."""
_LANES = 128
_PROFILE_FACTOR = 1.02


def tpu_inference(limits: Sequence[int], used: Sequence[int], utilization: float) -> int:
    """
    Return the KV pool in bytes of all local devices together, signed: at or below 0 the engine refuses to start.

    ``limits`` and ``used`` are the devices' ``bytes_limit`` and ``bytes_in_use``.
    """
    return int(sum(limits) * utilization - sum(used))


def tpu_inference_before(limits: Sequence[int], used: Sequence[int], utilization: float) -> int:
    """Return the same as tpu-inference computed it before pull request 734: a share of what is free."""
    return int((sum(limits) - sum(used)) * utilization)


def torch_xla(size: int, used: int, utilization: float, head_size: int = _LANES) -> int:
    """
    Return the KV pool in bytes of one chip under torch_xla's V1 worker; heads are padded to 128.

    Raise LawError for a head size that is not above 0.
    """
    if head_size <= 0:
        raise LawError(f"head_size must be above 0, not {head_size}")
    padded = math.ceil(head_size / _LANES) * _LANES
    return int(max(int(size * utilization) - used * _PROFILE_FACTOR, 0) * (head_size / padded))


def v0_blocks(limit: int, peak: int, utilization: float, block_bytes: int) -> int:
    """Return the KV blocks of V0's worker, a multiple of 8; raise LawError for a block that is not above 0 bytes."""
    if block_bytes <= 0:
        raise LawError(f"block_bytes must be above 0, not {block_bytes}")
    return max(int(limit * utilization) - peak, 0) // block_bytes // 8 * 8


@dataclass(frozen=True, slots=True)
class TpuInference:
    """The law of tpu-inference, whose versions are vLLM's."""

    since: Version = (0, 11)
    until: Version | None = None
    examined_until: Version | None = (0, 33)
    name: str = "tpu_inference"
    flavour: str = "tpu"

    def ledger(
        self, shape: Shape, ranks: Sequence[RankInput], report: BootReport, constants: Constants | None
    ) -> Ledger:
        """
        Return the budget of all ranks, a rank's size being its chip's ``bytes_limit``; ``constants`` are of no use.

        What a chip held after loading is the log's ``consumed``. Raise LawError for an impossible flag or size.
        """
        del constants
        check(shape, ranks)
        utilization = DEFAULT_UTILIZATION if shape.utilization is None else shape.utilization
        results = {rank.rank: _rank(rank, report, utilization) for rank in ranks}
        ledgers = {name: ledger for name, (ledger, _) in results.items()}
        requested = max((ledger.requested for ledger in ledgers.values()), default=0)
        notes = rank_notes({rank: sentences for rank, (_, sentences) in results.items()})
        return Ledger(
            law=self.name,
            version=report.version or "",
            assumed=False,
            ranks=ledgers,
            kv_min_tokens=kv_minimum(shape, report),
            utilization=Term("utilization", requested, "default" if shape.utilization is None else "flag", UTILIZATION),
            utilization_ratio=utilization,
            notes=(*notes, *_pool_note(list(ledgers.values()), utilization)),
        )


LAWS = (TpuInference(),)


def _rank(rank: RankInput, report: BootReport, utilization: float) -> tuple[RankLedger, list[str]]:
    consumed = printed("consumed", facts_of(report, rank.rank).consumed)
    requested = int(rank.size * utilization)
    charges = () if consumed is None else (consumed,)
    pool = closing("kv_pool", requested, charges, UTILIZATION) if charges else None
    notes = [] if charges else ["what the chip held after loading is not known: the partition is open"]
    ledger = RankLedger(
        rank=rank.rank,
        size=rank.size,
        requested=requested,
        charges=charges,
        pool=pool,
        kv_pool=pool,
        bootable=None,
        margin=rank.size - requested,
    )
    return ledger, notes


def _pool_note(ledgers: Sequence[RankLedger], utilization: float) -> list[str]:
    """Return what the engine itself looks at: the pool of all chips together, which must be above 0."""
    used = [term.bytes for ledger in ledgers for term in ledger.charges]
    if not ledgers or len(used) < len(ledgers):
        return []
    pool = tpu_inference([ledger.size for ledger in ledgers], used, utilization)
    verdict = "" if pool > 0 else ": the engine refuses to start"
    return [f"the engine adds up all local chips: {gib_text(pool)} of KV pool{verdict}"]
