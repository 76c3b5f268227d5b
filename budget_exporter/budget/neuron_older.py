"""The ledger of older workers on AWS Neuron, which ask for no share of the device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from budget_exporter.budget.kv_settings import settings
from budget_exporter.budget.kv_uniform import attention, element_bytes
from budget_exporter.budget.neuron_kv import FALLBACK, PLACEHOLDER, contiguous, free_or_fallback, sequence_blocks
from budget_exporter.budget.terms import facts_of, printed
from budget_exporter.errors import LawError
from budget_exporter.facts.boot import BootReport, RankFacts
from budget_exporter.facts.engine import Shape
from budget_exporter.facts.ledger import RankInput, RankLedger, Term
from budget_exporter.facts.model import ModelFiles
from budget_exporter.units import gib_text

__all__ = ["Older", "ranks"]

OVERRIDE = "--num-gpu-blocks-override"


@dataclass(frozen=True, slots=True)
class Older:
    """What can be said of the ranks."""

    ledgers: tuple[RankLedger, ...] = ()
    tokens: int | None = None
    notes: tuple[str, ...] = ()


def ranks(
    worker: Literal["sequences", "placeholder", "free", "layout", "capped"],
    shape: Shape,
    given: Sequence[RankInput],
    report: BootReport,
    model: ModelFiles | None = None,
) -> Older:
    """
    Return the ledger of the one worker process, which holds all cores, and the tokens of its pool where known.

    It is shown for the first rank: the process asks for the memory of its cores once, and which core's figure it is
    given is not documented, so it is no figure of each of them.
    """
    if worker == "sequences":
        return _sequences(shape, report)
    if not given:
        return Older()
    first = given[0]
    pool, note = _pool(worker, shape, facts_of(report, first.rank))
    if pool is None and worker == "layout" and shape.neuron is not None and shape.neuron.is_block_kv_layout is False:
        pool, note = _one_piece(shape, report, model)
    notes = [note] if note else []
    if len(given) > 1:
        notes.append(f"one worker process holds all {len(given)} ranks: its KV pool is shown for rank {first.rank}")
    if shape.num_gpu_blocks_override is not None:
        notes.append(f"{OVERRIDE} stands in place of the KV pool, whose bytes are not known")
        return Older(notes=tuple(notes))
    if pool is None:
        return Older(notes=tuple(notes))
    weights = printed("weights", facts_of(report, first.rank).weights)
    outside = () if weights is None else (weights,)
    ledger = RankLedger(first.rank, first.size, pool.bytes, (), pool, kv_pool=pool, outside=outside)
    return Older((ledger,), notes=tuple(notes))


def _sequences(shape: Shape, report: BootReport) -> Older:
    """Return the pool of vLLM's own worker in tokens: as many blocks as sequences and one more, each of full length."""
    length = shape.max_model_len if shape.max_model_len is not None else report.max_model_len
    note = "no memory is requested: the worker takes one block of max_model_len tokens a sequence, and one more"
    if length is None or shape.max_num_seqs is None:
        return Older(notes=(note,))
    return Older(tokens=sequence_blocks(shape.max_num_seqs) * length, notes=(note,))


def _one_piece(shape: Shape, report: BootReport, model: ModelFiles | None) -> tuple[Term | None, str]:
    """Return the pool where each sequence lies in one piece of full length, which the model and the flags decide."""
    length = shape.max_model_len if shape.max_model_len is not None else report.max_model_len
    config = None if model is None else model.config
    if config is None or length is None or shape.max_num_seqs is None:
        return None, "each sequence lies in one piece: config.json, max_model_len and --max-num-seqs give its size"
    try:
        head, element = attention(config).head_size, element_bytes(config, settings(shape))
    except LawError as error:
        return None, f"each sequence lies in one piece, whose size is not known: {error}"
    block = length if shape.block_size is None else shape.block_size
    size = contiguous(len(config.layers), block, head, element, shape.tensor_parallel_size, shape.max_num_seqs)
    note = f"{shape.max_num_seqs} sequences and one more, each in one piece"
    return Term("kv_pool", size, "geometry", "--max-num-seqs", note), ""


def _pool(worker: str, shape: Shape, facts: RankFacts) -> tuple[Term | None, str]:
    if worker == "placeholder":
        return Term("kv_pool", PLACEHOLDER, "default", OVERRIDE), "the worker takes 1 GiB for KV: nothing is measured"
    available = facts.kv_available
    if available is not None:
        constant = f"{gib_text(FALLBACK)} is what the worker takes where the runtime could not be asked"
        term = Term("kv_pool", available.bytes, "log", OVERRIDE, rounding=available.rounding)
        return term, constant if available.bytes == FALLBACK else ""
    layout = None if shape.neuron is None else shape.neuron.is_block_kv_layout
    if worker == "layout" and layout is not True:
        return None, "how the KV cache lies is not known, or each sequence lies in one piece: its size is the model's"
    free = facts.free_at_init
    if free is None:
        fallback = gib_text(FALLBACK)
        return None, f"what the runtime says is free is not known; where it says nothing the worker takes {fallback}"
    if free.bytes < 0:
        note = "the runtime could not be asked: a constant of the worker"
        return Term("kv_pool", free_or_fallback(None), "default", OVERRIDE, note), note
    return Term("kv_pool", free_or_fallback(free.bytes), "log", OVERRIDE, "all that is free", free.rounding), ""
