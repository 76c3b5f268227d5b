"""Everything advice is drawn from, and what follows from it for all ranks at once: they share their flags."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from budget_exporter.budget.limits import STEPS, requested_bytes
from budget_exporter.facts.boot import BootReport
from budget_exporter.facts.engine import Shape
from budget_exporter.facts.ledger import Ledger, RankLedger
from budget_exporter.facts.verdict import Policy, Verdict

__all__ = ["BLOCK", "Case"]

BLOCK = 16
"""Tokens a length is rounded down to: the smallest block of vLLM's attention kernels on GPUs (0.8 to 0.33)."""


@dataclass(frozen=True, slots=True)
class Case:
    """One engine that something is said of."""

    verdict: Verdict
    policy: Policy
    ledger: Ledger | None = None
    report: BootReport | None = None
    shape: Shape | None = None

    @property
    def ranks(self) -> Mapping[str, RankLedger]:
        """Return the ledgers of the ranks; none without a law."""
        return {} if self.ledger is None else self.ledger.ranks

    @property
    def offload(self) -> bool:
        """Return whether what the charges leave is an arena, and KV is capped by a reserve of its own."""
        return any(rank.pool is not None and rank.pool.name == "arena" for rank in self.ranks.values())

    @property
    def explicit(self) -> int | None:
        """Return the size of the KV pool where a flag gives it, in bytes."""
        return None if self.shape is None else self.shape.kv_cache_memory_bytes

    @property
    def tokens(self) -> int | None:
        """Return the tokens of the KV pool: the engine's own, else the law's."""
        own = None if self.report is None else self.report.kv_tokens
        return own if own is not None or self.ledger is None else self.ledger.kv_pool_tokens

    def pools(self) -> dict[str, int] | None:
        """Return what each rank can give up or take, in bytes: its pool or arena; None where one is not known."""
        known = {name: rank.pool.bytes for name, rank in self.ranks.items() if rank.pool is not None}
        return known if known and len(known) == len(self.ranks) else None

    def margins(self) -> dict[str, int] | None:
        """Return the bytes left on each rank's device at its fullest, None where one is not known."""
        known = {
            name: rank.margin_high_water
            for name, rank in self.verdict.ranks.items()
            if rank.margin_high_water is not None
        }
        return known if known and known.keys() >= self.ranks.keys() else None

    def lowered(self, shortfalls: Mapping[str, int]) -> float | None:
        """Return the largest utilization, in thousandths, that gives every rank its bytes back; None where none can."""
        ratios = [
            math.floor(STEPS * (self.ranks[name].requested - shortfall) / self.ranks[name].size) / STEPS
            for name, shortfall in shortfalls.items()
            if name in self.ranks
        ]
        return min(ratios) if ratios and min(ratios) > 0 else None

    def raised(self, needs: Mapping[str, int]) -> float | None:
        """Return the smallest utilization, in thousandths, that gives every rank its bytes; None above its limit."""
        ratios: list[float] = []
        for name, need in needs.items():
            rank = self.ranks[name]
            ratio = math.ceil(STEPS * (rank.requested + need) / rank.size) / STEPS
            if ratio > (rank.limit.low if rank.limit is not None else 0.0):
                return None
            ratios.append(ratio)
        return max(ratios) if ratios else None

    def freed(self, ratio: float) -> dict[str, int]:
        """Return the bytes each rank's request loses at utilization ``ratio``."""
        return {name: rank.requested - requested_bytes(rank.size, ratio) for name, rank in self.ranks.items()}

    def spares(self, needs: Mapping[str, int]) -> bool:
        """Return whether every device has ``needs`` bytes to spare above its warning floor."""
        margins = self.margins()
        floor = self.policy.floors.warning
        return margins is not None and all(margins[name] - need >= floor for name, need in needs.items())

    def servable(self) -> int | None:
        """Return the longest sequence the pool holds, in whole blocks; None where nothing tells."""
        if self.report is None:
            return None
        concurrency, longest, tokens = self.report.kv_concurrency, self.report.max_model_len, self.report.kv_tokens
        if concurrency is not None and longest is not None:
            tokens = math.floor(concurrency * longest)
        return None if tokens is None or tokens < BLOCK else tokens // BLOCK * BLOCK
