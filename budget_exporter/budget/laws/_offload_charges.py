"""
The charges of the expert-offload fork as flags, environment and registry give them, without a word of its plan block.

Source: the fork's ``expert_plan.py`` and ``expert_activation_registry.py`` as operators describe and measured them.
"""

from __future__ import annotations

from collections.abc import Mapping

from budget_exporter.budget import graphs
from budget_exporter.budget.experts import resident_layers
from budget_exporter.facts.boot import BootReport
from budget_exporter.facts.engine import Shape
from budget_exporter.facts.ledger import Constants, Term

__all__ = ["CHARGES", "PRECISE", "compile_headroom", "model_charges", "resident_experts"]

CHARGES = ("weights", "kv_reserve", "cuda_graphs", "runtime_overhead")
PRECISE = "--expert-precise-memory"
RESIDENT = "--expert-resident-layers"


def model_charges(
    shape: Shape, report: BootReport, constants: Constants | None, number: int | None
) -> Mapping[str, Term]:
    """Return the charges by name; ``number`` is how many graphs there are. What has no source is not there."""
    terms = [graphs.charge(shape, number, constants)]
    if constants is not None:
        terms += [_weights(constants), _kv_reserve(shape, report, constants), _overhead(shape, constants)]
    return {term.name: term for term in terms if term is not None}


def _weights(constants: Constants) -> Term | None:
    if constants.non_expert is None:
        return None
    note = "weights and mamba pages together" if constants.mamba_pages is None else ""
    return Term("weights", constants.non_expert, "registry", note=note)


def _kv_reserve(shape: Shape, report: BootReport, constants: Constants) -> Term | None:
    """
    Return ``price x max_model_len x factor x requests`` and the mamba pages of those requests where they are known.

    9190 B x 200704 tokens x 1.08 x 1 request = 1992027341 B.
    """
    price, factor, requests = constants.kv_bytes_per_token, constants.kv_reserve_factor, constants.kv_reserve_requests
    length = shape.max_model_len if shape.max_model_len is not None else report.max_model_len
    if price is None or factor is None or requests is None or length is None:
        return None
    pages = (constants.mamba_pages or 0) * requests
    notes = [f"{price} B x {length} tokens x {factor} x {requests} request"]
    if constants.mamba_pages is None:
        notes.append("mamba pages are in the weights")
    if shape.speculative:
        notes.append("the registry's price leaves a draft layer out")
    return Term(
        "kv_reserve",
        round(price * length * requests * factor) + pages,
        "registry",
        lever="--max-model-len",
        note="; ".join(notes),
    )


def _overhead(shape: Shape, constants: Constants) -> Term | None:
    """
    Return the runtime overhead: ``base + slope x max(0, (max_num_batched_tokens - anchor) / 1024)``.

    ``--expert-precise-memory`` takes the fitted base in place of the default, which adds headroom for the phases that
    allocate last, compilation and graph capture.
    """
    precise = shape.expert_precise_memory
    base = constants.overhead_precise if precise else constants.overhead_default
    if base is None:
        return None
    note = "fitted" if precise else "default, with headroom for compilation and capture"
    lever = PRECISE
    batched, anchor = shape.max_num_batched_tokens, constants.overhead_anchor_tokens
    slope = constants.overhead_slope_per_1024_tokens
    if anchor is None or slope is None:
        note += "; how it grows with --max-num-batched-tokens is not known"
    elif batched is None:
        note += f"; --max-num-batched-tokens is not given and taken to be at most {anchor}"
    elif batched > anchor:
        base += round(slope * (batched - anchor) / 1024)
        lever += ", --max-num-batched-tokens"
    return Term("runtime_overhead", base, "registry", lever, note)


def compile_headroom(constants: Constants | None) -> Term | None:
    """
    Return what the default overhead holds more than the fitted one, None where one of them is not known.

    7.60 - 5.25 = 2.35 GiB. No slack: it is the budget of the phases that allocate last, compilation and graph capture,
    which the profile never sees. With ``--expert-precise-memory`` the arena has it.
    """
    if constants is None or constants.overhead_default is None or constants.overhead_precise is None:
        return None
    size = constants.overhead_default - constants.overhead_precise
    return Term("compile_headroom", size, "registry", PRECISE, "for what allocates last: compilation, graph capture")


def resident_experts(shape: Shape, constants: Constants | None) -> Term | None:
    """
    Return what the resident layers take of the arena: ``layers x experts of a layer x bytes of one expert``.

    None where the registry lacks a figure. Three layers of 512 experts of 1.25 MiB: 1.87 GiB. Raise LawError for a flag
    that is no list of layers.
    """
    layers = resident_layers(shape.expert_resident_layers)
    if constants is None or constants.experts_per_layer is None or constants.expert_bytes is None:
        return None
    size = len(layers) * constants.experts_per_layer * constants.expert_bytes
    given = "" if shape.expert_resident_layers else ", the default"
    return Term("resident_experts", size, "registry", RESIDENT, f"of the arena: layers {list(layers)}{given}")
