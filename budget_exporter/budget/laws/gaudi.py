"""
The budget of vLLM on Gaudi: a share of what is free after loading, split between HPU graphs and KV.

    usable  = free after load x utilization         free: the bridge's pool less what the allocator holds, not the size
    graphs  = usable x R                            R: VLLM_GRAPH_RESERVED_MEM, 0 under --enforce-eager
    KV pool = usable x (1 - R) - dummy block        the dummy block only in V1: one block, kept for padding
    margin  = free x (1 - utilization)

R is 0.4 by default to 1.18, 0.1 from 1.19. In 1.16 the line prints ``free x R`` for graphs, though KV gets no less.
Where a model has attention and recurrent layers the plugin scales what it reports from 0.18.1 on, as each kind of layer
gets tensors of its own. Graphs are captured within a budget to 1.21.3 (``budget/capture.py``) and without one from
1.22: there the reserve only keeps the KV pool small.

Source: ``determine_num_available_blocks`` and ``determine_available_memory`` of HabanaAI/vllm-fork 1.16 to 1.22
(``habana_worker.py``, ``hpu_worker.py``; the split is pull request 147's, R's default 292's) and of vllm-gaudi 0.10.0
to 0.27.0rc0 ``v1/worker/hpu_worker.py``. The profile run does nothing from the plugin's 0.14.1 on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from budget_exporter.budget.buckets import Release, release_of
from budget_exporter.budget.checks import check
from budget_exporter.budget.gaudi_parts import blocks_of, graphs_of, host_of, loaded, prices_of, shares
from budget_exporter.budget.gaudi_settings import RESERVE, SKIP_WARM_UP, block_size, reserve, skips_warm_up, v1
from budget_exporter.budget.gaudi_split import Split, divide, scaled
from budget_exporter.budget.laws import Version
from budget_exporter.budget.terms import facts_of, kv_minimum, printed, rank_notes, size_note
from budget_exporter.facts.boot import BootReport, RankFacts
from budget_exporter.facts.engine import Shape
from budget_exporter.facts.ledger import Constants, Ledger, Origin, RankInput, RankLedger, Term
from budget_exporter.facts.model import ModelFiles

__all__ = ["LAWS", "Gaudi"]

UTILIZATION = "--gpu-memory-utilization"
OVERRIDE = "--num-gpu-blocks-override"


@dataclass(frozen=True, slots=True)
class Gaudi:
    """One row of the table: what holds from ``since`` to before ``until``."""

    since: Version
    until: Version | None
    default_reserve: float = 0.1
    default_utilization: float = 0.9
    of_free: bool = False
    """Whether the line prints the graph reserve as a share of what is free, not of what is usable."""
    generation: Literal["V0", "V1", "either"] = "V0"
    """V0, V1, or ``either``, which log or environment must tell."""
    bounded: bool = True
    """Whether the capture of graphs has a budget."""
    prompt_ratio: float | None = None
    """The prompt's share of that budget by default; None where it is not the reserve that is divided."""
    profiles: bool = True
    """Whether the profile run takes what a run will take."""
    forgiving: bool = False
    hybrid: bool = False
    examined_until: Version | None = None
    name: str = "gaudi"
    flavour: Literal["gaudi", "gaudi_plugin"] = "gaudi"

    def ledger(
        self,
        shape: Shape,
        ranks: Sequence[RankInput],
        report: BootReport,
        constants: Constants | None,
        model: ModelFiles | None = None,
    ) -> Ledger:
        """
        Return the budget of all ranks that said what was free after loading; the others are named in the notes.

        Of ``constants`` only the price of a token counts, which gives the KV blocks and the dummy block; without one
        the geometry of ``model`` gives it. Raise LawError for an impossible flag, setting or size.
        """
        check(shape, ranks, constants)
        utilization = self.default_utilization if shape.utilization is None else shape.utilization
        share = reserve(shape, self.default_reserve, forgiving=self.forgiving)
        prices, price_notes = prices_of(shape, constants, model)
        origin: Origin = "registry" if "registry" in prices else "geometry"
        price = prices.get(origin)
        ledgers, splits, notes = {}, [], self._notes(shape) + price_notes
        said: dict[str, list[str]] = {}
        if share.source == "default" and share.note.startswith(RESERVE):
            notes.append(share.note)
        for rank in ranks:
            facts = facts_of(report, rank.rank)
            if facts.free_after_load is None:
                said[rank.rank] = ["free memory after loading is not known, and all else is a share of it"]
                continue
            dummy, missing = self._dummy(shape, report, facts, price, origin)
            split = divide(facts.free_after_load, utilization, share, dummy, facts, of_free=self.of_free)
            splits.append(split)
            ledgers[rank.rank] = self._rank(shape, rank, facts, split, price, closed=not missing)
            said[rank.rank] = [*missing, *split.notes, *size_note(rank, facts)]
        known = list(ledgers.values()) if len(ledgers) == len(ranks) else []
        blocks = blocks_of(shape, known, price)
        facts_said = [facts_of(report, rank.rank) for rank in ranks]
        graphs, about = graphs_of(self._release(report), shape, report, facts_said, blocks)
        swaps = all(self._v1(shape, report, facts) is False for facts in facts_said)
        return Ledger(
            law=self.name,
            version=report.version or "",
            assumed=False,
            ranks=ledgers,
            kv_pool_tokens=None if blocks is None else blocks * block_size(shape),
            kv_bytes_per_token=prices,
            kv_min_tokens=kv_minimum(shape, report),
            utilization=_utilization(shape, splits),
            utilization_ratio=utilization,
            graphs=graphs,
            host=host_of(shape, len(ranks), price) if swaps else (),
            notes=(*notes, *rank_notes(said), *about),
        )

    def _v1(self, shape: Shape, report: BootReport, facts: RankFacts) -> bool | None:
        known = v1(shape, report, dummy_printed=facts.dummy_block is not None)
        return known if self.generation == "either" or known else self.generation == "V1"

    def _dummy(
        self, shape: Shape, report: BootReport, facts: RankFacts, price: int | None, origin: Origin
    ) -> tuple[Term | None, list[str]]:
        """Return the dummy block as a charge, and what to say where it should be there and is not known."""
        is_v1 = self._v1(shape, report, facts)
        if is_v1 is None:
            return None, ["neither log nor environment tells V0 from V1: whether there is a dummy block is not known"]
        if not is_v1:
            return None, []
        if facts.dummy_block is not None:
            return printed("dummy_block", facts.dummy_block, "--block-size"), []
        if price is None:
            return None, ["the size of the dummy block is not known: the partition is open"]
        return Term("dummy_block", price * block_size(shape), origin, "--block-size"), []

    def _rank(
        self,
        shape: Shape,
        rank: RankInput,
        facts: RankFacts,
        split: Split,
        price: int | None,
        *,
        closed: bool,
    ) -> RankLedger:
        override = shape.num_gpu_blocks_override
        pool = split.pool if closed and override is None else None
        kv_pool = pool
        if override is not None and price is not None:
            kv_pool = Term("kv_pool", override * block_size(shape) * price, "flag", OVERRIDE)
        elif pool is not None and self.hybrid and facts.hybrid_factor is not None:
            kv_pool = scaled(pool, facts.hybrid_factor)
        return RankLedger(
            rank=rank.rank,
            size=rank.size,
            requested=split.requested,
            requested_rounding=split.rounding,
            charges=split.charges,
            pool=pool,
            kv_pool=kv_pool,
            within=self._shares(shape, split, price) if pool is not None else (),
            outside=loaded(rank, facts, split.free),
            margin=self._margin(shape, facts, split) if override is None else None,
        )

    def _shares(self, shape: Shape, split: Split, price: int | None) -> tuple[Term, ...]:
        """Return what prompt and decode may take of the graph reserve, where the release divides it so."""
        if self.prompt_ratio is None or split.graphs is None:
            return ()
        return shares(shape, split.graphs, split.pool, price, self.prompt_ratio)

    def _margin(self, shape: Shape, facts: RankFacts, split: Split) -> int | None:
        """
        Return ``free - requested``, and with it what the captured graphs left of their reserve.

        Where the capture is not known yet: all of the reserve is taken to be used up while the capture has a budget,
        None where it has none or the warm-up is skipped.
        """
        left = split.free.bytes - split.requested
        if shape.enforce_eager:
            return left
        if facts.graph_capture is None:
            return left if self.bounded and not skips_warm_up(shape) else None
        reserved = 0 if split.graphs is None else split.graphs.bytes
        return left + reserved - facts.graph_capture.bytes

    def _release(self, report: BootReport) -> Release:
        """Return the release itself where the report names one this law holds for, else the first of them."""
        for release in (release_of(text) for text in (report.release, report.version) if text is not None):
            if release is None or release.flavour != self.flavour or release.version < self.since:
                continue
            if self.until is None or release.version < self.until:
                return release
        return Release(self.flavour, self.since)

    def _notes(self, shape: Shape) -> list[str]:
        found = []
        if shape.kv_cache_memory_bytes is not None:
            found.append("Gaudi's worker takes no notice of --kv-cache-memory-bytes")
        if shape.num_gpu_blocks_override is not None:
            found.append(f"{OVERRIDE} stands in place of the KV pool")
        if skips_warm_up(shape):
            found.append(f"{SKIP_WARM_UP}: no graph is captured before a request needs it")
        elif not self.bounded and not shape.enforce_eager:
            found.append("graphs are captured without a budget: the reserve only keeps the KV pool small")
        if not self.profiles:
            found.append("the profile run takes nothing: activation has to fit in margin and graph reserve")
        return found


LAWS = (
    Gaudi((1, 16), (1, 17), default_reserve=0.4, of_free=True),
    Gaudi((1, 17), (1, 19), default_reserve=0.4, prompt_ratio=0.5),
    Gaudi((1, 19), (1, 21), prompt_ratio=0.3),
    Gaudi((1, 21), (1, 22), prompt_ratio=0.3, generation="either"),
    Gaudi((1, 22), None, generation="either", bounded=False, examined_until=(1, 23)),
    *(
        Gaudi(
            since,
            until,
            generation="V1",
            bounded=False,
            profiles=since < (0, 14, 1),
            forgiving=since >= (0, 17, 1),
            hybrid=since >= (0, 18, 1),
            default_utilization=0.92 if since >= (0, 20) else 0.9,
            examined_until=(0, 28) if until is None else None,
            name="gaudi_plugin",
            flavour="gaudi_plugin",
        )
        for since, until in (
            ((0, 10), (0, 14, 1)),
            ((0, 14, 1), (0, 17, 1)),
            ((0, 17, 1), (0, 18, 1)),
            ((0, 18, 1), (0, 20)),
            ((0, 20), None),
        )
    ),
)


def _utilization(shape: Shape, splits: Sequence[Split]) -> Term | None:
    """Return the largest request over ranks, None where no rank's is known."""
    if not splits:
        return None
    largest = max(splits, key=lambda split: split.requested)
    source: Origin = "default" if shape.utilization is None else "flag"
    return Term("utilization", largest.requested, source, UTILIZATION, "of what is free", largest.rounding)
