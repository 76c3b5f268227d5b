"""
The budget of vLLM on AWS Neuron: a share of a logical core's memory, of which KV may take only a part.

    requested = whole bytes of (memory of the core x utilization)
    KV pool   = min(requested - weights, whole bytes of (requested x cap fraction))         on a device
    KV pool   = whole bytes of (requested x cap fraction), of the host's share              VLLM_NEURON_CPU_MODE
    headroom  = requested - weights - KV pool       what the cap leaves for the compiled programs

The worker refuses to start with less KV than VLLM_NEURON_MIN_KV_BUDGET_GIB. Weights are the model's parameters and
buffers with those of the drafting model, not what the runtime says is used; with VLLM_NEURON_CPU_COMPILE the memory of
the core is the platform's by name. A core's memory is a whole bank, also where two logical cores share it, to before
0.29; from then on each has its part of it. What the compiled programs take is not known, so no margin is predicted.

Older workers ask for no share: from 0.11 they take all that the runtime says is free, or 20 GiB where it says nothing;
the first plugin takes 1 GiB; vLLM's own worker takes a block of ``max_model_len`` tokens for each sequence.

Source: vllm-neuron 0.24 (whose version begins with vLLM's) ``vllm/worker/neuron_worker.py`` and ``envs.py``; its design
document in the AWS Neuron SDK 2.31 to 2.33, of which the last is all there is for 0.29; ``worker/neuron_worker.py`` of
the plugins 0.1.0 (for vLLM 0.10.2), 0.2 (0.11), 0.3 to 0.6 (0.12 to 0.16) and of vLLM 0.8.5 to 0.10. Read, not run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from budget_exporter.budget import neuron_older
from budget_exporter.budget.checks import check
from budget_exporter.budget.kv_ledger import with_geometry
from budget_exporter.budget.kv_uniform import with_price
from budget_exporter.budget.laws import Version
from budget_exporter.budget.neuron_platforms import PLATFORMS
from budget_exporter.budget.neuron_ranks import CpuRank, DeviceRank
from budget_exporter.budget.neuron_settings import COMPILE, TARGET, NeuronSettings, described, settings
from budget_exporter.budget.terms import kv_minimum, rank_notes
from budget_exporter.facts.boot import BootReport
from budget_exporter.facts.engine import Shape
from budget_exporter.facts.ledger import Constants, Ledger, RankInput, RankLedger, Term
from budget_exporter.facts.model import ModelFiles

__all__ = ["LAWS", "Neuron"]

UTILIZATION = "--gpu-memory-utilization"
DEFAULT_UTILIZATION = 0.92
"""vLLM's default from 0.20 on (``config/cache.py``)."""


@dataclass(frozen=True, slots=True)
class Neuron:
    """One row of the table: what holds from ``since`` to before ``until``, by vLLM's version."""

    since: Version
    until: Version | None
    changed: str
    worker: Literal["sequences", "placeholder", "free", "layout", "capped"]
    divides_banks: bool = False
    """Whether logical cores that share a bank each count only their part of it."""
    examined_until: Version | None = None
    name: str = "neuron"
    flavour: str = "neuron"

    def ledger(
        self,
        shape: Shape,
        ranks: Sequence[RankInput],
        report: BootReport,
        constants: Constants | None,
        model: ModelFiles | None = None,
    ) -> Ledger:
        """
        Return the budget of all ranks; ``constants`` are of no use to this law, ``model`` gives the price of a token.

        A rank's size is the memory of the bank of its logical core. Ranks of which nothing can be said are named in the
        notes. Raise LawError for an impossible flag, setting or size.
        """
        del constants
        check(shape, ranks)
        if self.worker == "capped":
            return self._capped(shape, ranks, report, model)
        found = neuron_older.ranks(self.worker, shape, ranks, report, model)
        ledger = Ledger(
            law=self.name,
            version=report.version or "",
            assumed=False,
            ranks={ledger.rank: ledger for ledger in found.ledgers},
            kv_pool_tokens=found.tokens,
            kv_min_tokens=kv_minimum(shape, report),
            notes=(*found.notes, *_described(shape)),
        )
        return with_price(ledger, model, shape)

    def _capped(self, shape: Shape, ranks: Sequence[RankInput], report: BootReport, model: ModelFiles | None) -> Ledger:
        set_to = settings(shape.environ)
        utilization = DEFAULT_UTILIZATION if shape.utilization is None else shape.utilization
        worker: DeviceRank | CpuRank
        if set_to.mode == "cpu":
            worker = CpuRank(shape, set_to, utilization)
        else:
            worker = DeviceRank(shape, set_to, utilization, divides_banks=self.divides_banks)
        results = {rank.rank: worker.ledger(rank, report) for rank in ranks}
        ledgers = {rank: ledger for rank, (ledger, _) in results.items() if ledger is not None}
        ledger = Ledger(
            law=self.name,
            version=report.version or "",
            assumed=False,
            ranks=ledgers,
            kv_min_tokens=kv_minimum(shape, report),
            kv_min_bytes=None if set_to.mode == "cpu" else set_to.minimum,
            utilization=_utilization(shape, list(ledgers.values())),
            utilization_ratio=utilization,
            notes=(
                *_mode_notes(shape, set_to),
                *rank_notes({rank: sentences for rank, (_, sentences) in results.items()}),
                *(["a headroom that is set in place of the cap is not known here"] if self.divides_banks else []),
                *_described(shape),
            ),
        )
        # The plugin's default block size is not known: without the flag there are no blocks to count.
        if shape.block_size is None:
            return with_price(ledger, model, shape)
        return with_geometry(ledger, shape, ranks, report, model, "neuron")


LAWS = (
    Neuron((0, 8, 5), (0, 10, 2), "vLLM's own worker: one block of max_model_len tokens a sequence", "sequences"),
    Neuron((0, 10, 2), (0, 11), "the first plugin takes 1 GiB, whatever the device has", "placeholder"),
    Neuron((0, 11), (0, 12), "all that the runtime says is free, or 20 GiB where it says nothing", "free"),
    Neuron((0, 12), (0, 21), "computed from the model where each sequence lies in one piece", "layout"),
    Neuron((0, 21), (0, 29), "utilization, a cap and a minimum", "capped"),
    Neuron(
        (0, 29),
        None,
        "logical cores that share a bank each count only their part of it; a headroom can be set in place of the cap",
        "capped",
        divides_banks=True,
        # Only its design document was read, which does not name the setting of the headroom.
        examined_until=(0, 29),
    ),
)


def _utilization(shape: Shape, ledgers: Sequence[RankLedger]) -> Term | None:
    if not ledgers:
        return None
    requested = max(ledger.requested for ledger in ledgers)
    return Term("utilization", requested, "default" if shape.utilization is None else "flag", UTILIZATION)


def _mode_notes(shape: Shape, set_to: NeuronSettings) -> list[str]:
    notes = []
    if set_to.target is not None:
        bank = PLATFORMS[set_to.target].bank >> 30
        notes.append(f"{COMPILE}: compiles for {set_to.target} by {TARGET}, {bank} GiB a core, on no device")
    if set_to.mode == "cpu":
        notes.append("runs on the host's CPU: the KV pool is host memory")
    if set_to.cap_source == "default":
        notes.append(f"the cap on KV is {set_to.cap_fraction:g} of the request, the worker's default")
    if shape.kv_cache_memory_bytes is not None:
        notes.append("the Neuron worker takes no notice of --kv-cache-memory-bytes")
    return notes


def _described(shape: Shape) -> list[str]:
    return [] if shape.neuron is None else described(shape.neuron)
