"""The ledger of a rank on AWS Neuron where its worker asks for a share and caps what KV may take of it."""

from __future__ import annotations

from dataclasses import dataclass

from budget_exporter.budget.checks import LARGEST_COUNT, number
from budget_exporter.budget.neuron_kv import KvBudget, budget, cpu_budget, fair_share
from budget_exporter.budget.neuron_platforms import PLATFORMS, bank_platforms, cores_on_bank, whole_device
from budget_exporter.budget.neuron_settings import CAP, LNC, MINIMUM, NeuronSettings
from budget_exporter.budget.terms import facts_of, free_of, printed, size_note
from budget_exporter.errors import LawError
from budget_exporter.facts.boot import BootReport
from budget_exporter.facts.engine import Shape
from budget_exporter.facts.ledger import RankInput, RankLedger, Term
from budget_exporter.units import gib_text

__all__ = ["CpuRank", "DeviceRank"]

UTILIZATION = "--gpu-memory-utilization"
REFUSAL = "Computed KV cache budget is below minimum threshold"
"""How the worker's error begins."""
Found = tuple[RankLedger | None, list[str]]


@dataclass(frozen=True, slots=True)
class DeviceRank:
    """How a worker splits the memory of a logical core, also where it only compiles for one."""

    shape: Shape
    settings: NeuronSettings
    utilization: float
    divides_banks: bool

    def ledger(self, rank: RankInput, report: BootReport) -> Found:
        """Return the rank's partition, None where its memory is not that of a core's bank, and what to say of it."""
        facts = facts_of(report, rank.rank)
        bank, wrong = self._bank(rank)
        if wrong:
            return None, [wrong]
        sharing = cores_on_bank(bank, self.settings.lnc)
        total = bank // sharing if self.divides_banks else bank
        weights = printed("weights", facts.weights, note=self._drafter())
        split = budget(total, 0 if weights is None else weights.bytes, self.utilization, self.settings.cap_fraction)
        notes = size_note(rank, facts) if self.settings.target is None else []
        notes += self._sharing(bank, sharing, split.requested)
        free = facts.free_at_init
        unusable = self.settings.mode == "device" and free is not None and free.bytes <= 0
        if unusable:
            notes.append("the runtime reports no free memory: the worker refuses to start")
        if weights is None:
            notes.append(f"the log does not tell weights: the partition is open, KV is at most {gib_text(split.cap)}")
            return self._open(rank, total, split, bootable=False if unusable else None), notes
        pool = self._pool(split, weights)
        refused = self._refused(pool)
        if refused:
            notes.append(self._refusal(pool))
        ledger = RankLedger(
            rank=rank.rank,
            size=total,
            requested=split.requested,
            charges=(weights, *self._headroom(split, weights)),
            pool=pool,
            kv_pool=pool,
            bootable=False if unusable else None if refused is None else not refused,
            kv_cap=split.cap,
        )
        return self._overridden(ledger, notes)

    def _bank(self, rank: RankInput) -> tuple[int, str]:
        """Return the bytes of the core's bank, and a sentence where the rank's size cannot be a bank's."""
        if self.settings.target is not None:
            return PLATFORMS[self.settings.target].bank, ""
        devices = whole_device(rank.size)
        if devices:
            bank = gib_text(PLATFORMS[devices[0]].bank)
            return rank.size, f"{gib_text(rank.size)} is a whole {devices[0]} device, of which a core's bank is {bank}"
        return rank.size, ""

    def _drafter(self) -> str:
        drafts = self.shape.speculative and self.shape.speculative_method != "ngram"
        return "with those of the drafting model" if drafts else ""

    def _sharing(self, bank: int, sharing: int, requested: int) -> list[str]:
        if self.settings.target is None and not bank_platforms(bank):
            return [f"{gib_text(bank)} is no bank of a known platform"]
        if sharing == 1:
            return []
        if self.divides_banks:
            return [f"{LNC} {self.settings.lnc}: two logical cores share a bank, each counts half of it"]
        both = gib_text(sharing * requested)
        note = f"{LNC} {self.settings.lnc}: two logical cores share a bank of {gib_text(bank)}, each counts all of it"
        return [f"{note}: two ranks on one bank request {both}"]

    def _pool(self, split: KvBudget, weights: Term) -> Term:
        """Return the KV pool, signed: the cap, or what the weights leave, with the roundings of either."""
        if split.user - weights.rounding >= split.cap:
            return Term("kv_pool", split.cap, self.settings.cap_source, CAP, "the cap")
        lever = CAP if split.user > split.cap else UTILIZATION
        return Term("kv_pool", split.available, "log", lever, "what the weights leave", weights.rounding)

    def _headroom(self, split: KvBudget, weights: Term) -> tuple[Term, ...]:
        left = split.user - split.available
        note = "what the cap leaves for the compiled programs"
        return (Term("headroom", left, self.settings.cap_source, CAP, note, weights.rounding),) if left else ()

    def _refused(self, pool: Term) -> bool | None:
        """Return whether the guard refuses the pool, None where its rounding leaves that open."""
        # Without the guard vLLM's core still refuses a pool that holds nothing.
        least = 1 if self.settings.minimum is None else self.settings.minimum
        if pool.bytes + pool.rounding < least:
            return True
        return False if pool.bytes - pool.rounding >= least else None

    def _refusal(self, pool: Term) -> str:
        effective = gib_text(max(pool.bytes, 0))
        if self.settings.minimum is None:
            return "no memory is left for KV: the engine refuses to start"
        return f'"{REFUSAL}": effective {effective}, {MINIMUM} {gib_text(self.settings.minimum)}'

    def _open(self, rank: RankInput, total: int, split: KvBudget, *, bootable: bool | None) -> RankLedger:
        return RankLedger(rank.rank, total, split.requested, (), None, bootable=bootable, kv_cap=split.cap)

    def _overridden(self, ledger: RankLedger, notes: list[str]) -> Found:
        if self.shape.num_gpu_blocks_override is None:
            return ledger, notes
        notes.append("the log does not tell the bytes of --num-gpu-blocks-override: the KV pool is not known")
        return RankLedger(
            rank=ledger.rank,
            size=ledger.size,
            requested=ledger.requested,
            charges=tuple(term for term in ledger.charges if term.name == "weights"),
            pool=None,
            bootable=ledger.bootable,
            kv_cap=ledger.kv_cap,
        ), notes


@dataclass(frozen=True, slots=True)
class CpuRank:
    """How a worker splits its share of the host's memory."""

    shape: Shape
    settings: NeuronSettings
    utilization: float

    def ledger(self, rank: RankInput, report: BootReport) -> Found:
        """Return the rank's partition, None where what the host had available is not known."""
        free, coarse, source = free_of(rank, facts_of(report, rank.rank))
        if free is None:
            return None, ["what the host had available is not known, and all else is a share of it"]
        share = fair_share(free, self._workers())
        split = cpu_budget(share, self.utilization, self.settings.cap_fraction)
        note = "what the cap leaves: the weights are in it too"
        headroom = Term("headroom", split.user - split.cap, source, CAP, note, rounding=coarse)
        pool = Term("kv_pool", split.cap, source, CAP, "the cap", coarse)
        ledger = RankLedger(
            rank=rank.rank,
            size=rank.size,
            requested=split.requested,
            requested_rounding=coarse,
            charges=(headroom,),
            pool=pool,
            kv_pool=pool,
            kv_cap=split.cap,
        )
        return ledger, [f"{gib_text(share)} is the worker's share of what the host had available"]

    def _workers(self) -> int:
        """
        Return the workers that share the host: tensor and pipeline ranks of one node.

        Source: ``parallel_config.local_world_size`` of vLLM.
        """
        text = self.shape.given.get("nnodes", "1")
        if not (text.isascii() and text.isdecimal() and len(text) <= len(str(LARGEST_COUNT))):
            raise LawError(f"--nnodes must be a whole number, not {text[:40]}")
        number("--nnodes", int(text), above=0, most=LARGEST_COUNT)
        return self.shape.tensor_parallel_size * self.shape.pipeline_parallel_size // int(text)
