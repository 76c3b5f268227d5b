"""
The budget of vLLM on TPUs: a share of what a chip may hold, less what it holds after loading.

    requested = whole bytes of (limit x utilization)
    KV pool   = requested - in use                          tpu-inference; the engine adds up all local chips
    KV pool   = requested - 1.02 x in use                   torch_xla (V1); the 2 % are headroom
    KV pool   = requested - peak                            V0, in blocks whose number is a multiple of 8

torch_xla runs a profile first; from 0.9.2 it reports less KV in proportion where heads are padded to 128. Under
tpu-inference there is no profile run, and what compiled programs reserve is not part of what is in use. A chip's limit
is what its runtime says, not its nominal memory.

Source: vLLM 0.8.5 to 0.9.2 ``worker/tpu_worker.py`` (V0) and 0.8.5 to 0.12 ``v1/worker/tpu_worker.py``; tpu-inference
0.11.1 to 0.32 ``worker/tpu_worker.py``, whose versions are vLLM's. Read in source and held to printed figures; not run
on a TPU.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from budget_exporter.budget import host
from budget_exporter.budget.checks import check, switch
from budget_exporter.budget.kv_uniform import attention
from budget_exporter.budget.laws import Version
from budget_exporter.budget.terms import closing, facts_of, kv_minimum, printed, rank_notes
from budget_exporter.budget.tpu_kv import pad_pool, profiled, tpu_inference, v0_blocks
from budget_exporter.errors import LawError
from budget_exporter.facts.boot import BootReport, RankFacts
from budget_exporter.facts.engine import Shape
from budget_exporter.facts.ledger import Constants, Ledger, RankInput, RankLedger, Term
from budget_exporter.facts.model import ModelFiles
from budget_exporter.units import gib_text

__all__ = ["LAWS", "Tpu"]

UTILIZATION = "--gpu-memory-utilization"
BLOCK_SIZE = 16
"""Tokens of a KV block of V0 unless --block-size says otherwise."""


@dataclass(frozen=True, slots=True)
class _Cut:
    """What a token and a head of the model take: bytes and elements, None where that is not known, and why."""

    price: int | None
    head: int | None
    why: str = ""


@dataclass(frozen=True, slots=True)
class Tpu:
    """One row of the table: what holds from ``since`` to before ``until``."""

    since: Version
    until: Version | None
    changed: str
    name: Literal["tpu_xla", "tpu_inference"]
    has_v0: bool = False
    """Whether the release has both generations of the engine, which log or environment must tell apart."""
    pads_heads: bool = False
    stages: bool = False
    """Whether an offload connector takes a staging buffer out of the pool."""
    default_utilization: float = 0.9
    examined_until: Version | None = None
    flavour: str = "tpu"

    def ledger(
        self,
        shape: Shape,
        ranks: Sequence[RankInput],
        report: BootReport,
        constants: Constants | None,
        model: ModelFiles | None = None,
    ) -> Ledger:
        """
        Return the budget of all ranks, a rank's size being its chip's limit.

        What a chip held after loading is the log's ``consumed``, or what it tells of all local chips together where
        there is only one. Of ``constants`` only the price of a token counts, for V0's blocks, of ``model`` the size of
        a head. Raise LawError for an impossible flag, setting or size.
        """
        check(shape, ranks, constants)
        report = _of_one(report) if len(ranks) == 1 else report
        utilization = self.default_utilization if shape.utilization is None else shape.utilization
        core = self._core(shape, report)
        cut = _Cut(None if constants is None else constants.kv_bytes_per_token, *_head(model))
        results = {rank.rank: self._rank(shape, rank, report, utilization, core, cut) for rank in ranks}
        ledgers = {name: ledger for name, (ledger, _) in results.items()}
        together: list[str] = []
        if self.name == "tpu_inference":
            ledgers, together = _together(ledgers, utilization)
        requested = max((ledger.requested for ledger in ledgers.values()), default=0)
        source: Literal["default", "flag"] = "default" if shape.utilization is None else "flag"
        return Ledger(
            law=self.name,
            version=report.version or "",
            assumed=False,
            ranks=ledgers,
            kv_min_tokens=kv_minimum(shape, report),
            utilization=Term("utilization", requested, source, UTILIZATION),
            utilization_ratio=utilization,
            host=(host.swap(shape, len(ranks)),) if core == "V0" else (),
            notes=(
                *rank_notes({rank: sentences for rank, (_, sentences) in results.items()}),
                *(together or _said_together(report, ranks)),
                *self._notes(shape),
            ),
        )

    def _core(self, shape: Shape, report: BootReport) -> str | None:
        """Return ``V0`` or ``V1``, None where the release has both and nothing tells."""
        if not self.has_v0:
            return "V1"
        asked = switch(shape.environ, "VLLM_USE_V1")
        if report.core is not None or asked is None:
            return report.core
        return "V1" if asked else "V0"

    def _rank(
        self,
        shape: Shape,
        rank: RankInput,
        report: BootReport,
        utilization: float,
        core: str | None,
        cut: _Cut,
    ) -> tuple[RankLedger, list[str]]:
        consumed = printed("consumed", facts_of(report, rank.rank).consumed)
        requested = int(rank.size * utilization)
        notes = self._missing(shape, consumed, core)
        charges = [] if consumed is None else [consumed]
        if consumed is not None and core == "V1" and self.name == "tpu_xla":
            more = math.ceil(profiled(consumed.bytes)) - consumed.bytes
            coarse = math.ceil(profiled(consumed.rounding)) - consumed.rounding
            note = "2 % of what is in use, for activations"
            charges.append(Term("headroom", more, "default", note=note, rounding=coarse))
        pool = None if notes else closing("kv_pool", requested, charges, UTILIZATION)
        ledger = RankLedger(
            rank=rank.rank,
            size=rank.size,
            requested=requested,
            charges=tuple(charges),
            pool=pool,
            kv_pool=pool,
            bootable=None if pool is None else _holds(pool),
            margin=rank.size - requested,
        )
        kv_pool, said = self._kv_pool(shape, ledger, utilization, core, cut)
        return replace(ledger, kv_pool=kv_pool), notes + said

    def _missing(self, shape: Shape, consumed: Term | None, core: str | None) -> list[str]:
        """Return a sentence for each reason why the partition is open."""
        notes = []
        if consumed is None:
            notes.append("what the chip held after loading is not known: the partition is open")
        if core is None:
            notes.append("neither log nor environment tells V0 from V1: the partition is open")
        if self.stages and "kv-transfer-config" in shape.layout_flags:
            notes.append("what an offload connector stages (TPU_OFFLOAD_NUM_STAGING_BLOCKS) comes out of the KV pool")
        return notes

    def _kv_pool(
        self, shape: Shape, ledger: RankLedger, utilization: float, core: str | None, cut: _Cut
    ) -> tuple[Term | None, list[str]]:
        """Return the KV pool that a pool of the partition gives, None where that is not known, and why."""
        pool = ledger.pool
        if pool is None:
            return None, []
        if shape.num_gpu_blocks_override is not None:
            return None, ["the log does not tell the bytes of --num-gpu-blocks-override: the KV pool is not known"]
        if core == "V0" and cut.price:
            block = cut.price * (BLOCK_SIZE if shape.block_size is None else shape.block_size)
            peak = sum(term.bytes for term in ledger.charges)
            blocks = v0_blocks(ledger.size, peak, utilization, block)
            return Term("kv_pool", blocks * block, "registry", UTILIZATION, f"{blocks} blocks", pool.rounding), []
        if core == "V0":
            return None, ["the KV pool has a multiple of 8 blocks, whose size is not known"]
        return _padded(pool, cut) if self.pads_heads else (pool, [])

    def _notes(self, shape: Shape) -> list[str]:
        notes = []
        if shape.kv_cache_memory_bytes is not None:
            notes.append("the TPU worker takes no notice of --kv-cache-memory-bytes")
        if self.name == "tpu_xla":
            notes.append("with tpu-commons in its place KV is a share of what is free after loading")
        return notes


LAWS = (
    Tpu((0, 8, 5), (0, 9, 2), "V0, and torch_xla's V1 with 2 % for activations", "tpu_xla", has_v0=True),
    Tpu((0, 9, 2), (0, 10), "V1 reports less KV where heads are padded", "tpu_xla", has_v0=True, pads_heads=True),
    Tpu((0, 10), (0, 11, 1), "V0 is gone", "tpu_xla", pads_heads=True),
    Tpu((0, 11, 1), (0, 20), "tpu-inference: no profile run, all local chips together", "tpu_inference"),
    Tpu(
        (0, 20),
        None,
        "an offload connector's staging buffer comes out of the pool; the default utilization is 0.92",
        "tpu_inference",
        stages=True,
        default_utilization=0.92,
        examined_until=(0, 33),
    ),
)


def _head(model: ModelFiles | None) -> tuple[int | None, str]:
    """Return the size of a head, None where it is not known or differs from layer to layer, and why."""
    if model is None or model.config is None:
        return None, "" if model is None else "; ".join(model.notes)
    try:
        return attention(model.config).head_size, ""
    except LawError as error:
        return None, str(error)


def _padded(pool: Term, cut: _Cut) -> tuple[Term | None, list[str]]:
    """Return the part of the pool that is reported, None where the size of a head is not known, and why."""
    if cut.head is not None:
        part = pad_pool(max(pool.bytes, 0), cut.head)
        return replace(pool, bytes=part, note=f"for heads of {cut.head}, padded to whole 128"), []
    why = f" ({cut.why})" if cut.why else ""
    return None, [f"the KV pool is {gib_text(pool.bytes)} for heads of 128, less in proportion where padded{why}"]


def _holds(pool: Term) -> bool | None:
    """Return whether a pool holds anything, without which the engine refuses to start; None within its rounding."""
    if pool.bytes + pool.rounding <= 0:
        return False
    return True if pool.bytes - pool.rounding > 0 else None


def _of_one(report: BootReport) -> BootReport:
    """Return the report with what all local chips together held as that of the only chip."""
    used = None if report.chips is None else report.chips.used
    return replace(report, common=report.common.over(RankFacts(consumed=used)))


def _said_together(report: BootReport, ranks: Sequence[RankInput]) -> list[str]:
    """Return what the engine says of all chips together, for where it does not say what each of them holds."""
    said = report.chips
    if len(ranks) == 1 or said is None or said.used is None or said.requested is None:
        return []
    sizes = f"{gib_text(said.used.bytes)} in use of {gib_text(said.requested.bytes)} requested"
    return [f"the engine says of all local chips together: {sizes}"]


def _together(ledgers: Mapping[str, RankLedger], utilization: float) -> tuple[dict[str, RankLedger], list[str]]:
    """Return the ledgers judged by what the engine looks at: the pool of all chips together, which must be above 0."""
    pools = [ledger.pool for ledger in ledgers.values() if ledger.pool is not None]
    if not ledgers or len(pools) < len(ledgers):
        return dict(ledgers), []
    used = [sum(term.bytes for term in ledger.charges) for ledger in ledgers.values()]
    size = tpu_inference([ledger.size for ledger in ledgers.values()], used, utilization)
    bootable = _holds(Term("kv_pool", size, "log", rounding=sum(pool.rounding for pool in pools)))
    verdict = ": the engine refuses to start" if bootable is False else ""
    note = f"the engine adds up all local chips: {gib_text(size)} of KV pool{verdict}"
    return {name: replace(ledger, bootable=bootable) for name, ledger in ledgers.items()}, [note]
