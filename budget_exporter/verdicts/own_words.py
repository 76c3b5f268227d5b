"""Where an engine's own words mislead, or contradict what its flags were meant to do; sizes in bytes."""

from __future__ import annotations

from collections.abc import Iterable

from budget_exporter.facts.boot import BootReport, Phase, Printed, RankFacts
from budget_exporter.facts.endpoint import EndpointFacts
from budget_exporter.facts.engine import Shape
from budget_exporter.units import GIB, gib_text
from budget_exporter.verdicts.logic import any_known

__all__ = [
    "above_servable",
    "blocks_said",
    "kv_misleading",
    "uncharged",
    "unclosed",
    "unclosed_said",
    "utilization_misread",
]

_UNDERSTATED = 0.9
"""
Of concurrency times length, below which a pool's tokens were counted in another way.

Printed figures and the rounding to whole blocks stay within it: 0.99 to 1.01 on 40 healthy boots.
"""
_FOREIGN = 3 * GIB
_FOREIGN_PARTS = 4
"""
Memory outside of torch above 3 GiB and a quarter of the request is no library's.

Libraries and communication buffers of one rank took 0.2 to 2.5 GiB of 71, with wide expert parallelism 11 of 160.
"""
_MEANT_SHARE = 0.5
"""Utilization below which an engine that alone has a device was not meant to have so little of it."""
_UP: frozenset[Phase] = frozenset({"warming_up", "serving", "sleeping", "unknown"})


def kv_misleading(
    report: BootReport | None,
    facts: Iterable[RankFacts],
    endpoint: EndpointFacts | None = None,
    shape: Shape | None = None,
) -> bool | None:
    """
    Return whether the KV figures the engine printed are not what they seem.

    Either the tokens understate the pool of a model with several kinds of layers (vLLM up to 0.20 divides by groups),
    or blocks and their size do not make its tokens, or the pool is small because another process took memory while the
    engine measured its own.
    """
    own = [] if report is None else [_understated(report), *(_foreign(each) for each in facts)]
    return any_known([*own, _other_tokens(endpoint), _other_size(endpoint, shape)])


def _other_tokens(endpoint: EndpointFacts | None) -> bool | None:
    """Tell whether blocks times their size is another number of tokens than the pool holds: layers share blocks."""
    counted = _counted(endpoint)
    if endpoint is None or counted is None or not endpoint.kv_tokens:
        return None
    return not _UNDERSTATED <= counted / endpoint.kv_tokens <= 1 / _UNDERSTATED


def _counted(endpoint: EndpointFacts | None) -> int | None:
    """Return the tokens that all blocks of one replica would hold."""
    if endpoint is None or endpoint.kv_blocks is None or endpoint.block_size is None or not endpoint.replicas:
        return None
    return endpoint.kv_blocks * endpoint.block_size // endpoint.replicas


def _other_size(endpoint: EndpointFacts | None, shape: Shape | None) -> bool | None:
    """Tell whether blocks are not of the size that was asked for: recurrent layers make them larger."""
    if endpoint is None or endpoint.block_size is None or shape is None or shape.block_size is None:
        return None
    return endpoint.block_size != shape.block_size


def blocks_said(endpoint: EndpointFacts | None, shape: Shape | None) -> str:
    """Return how the blocks that the endpoint tells of mislead; nothing where they do not."""
    told: list[str] = []
    if endpoint is not None and shape is not None and _other_size(endpoint, shape):
        told.append(f"its blocks hold {endpoint.block_size} tokens, --block-size asked for {shape.block_size}")
    if endpoint is not None and _other_tokens(endpoint):
        told.append(
            f"its blocks times their size are {_counted(endpoint):,} tokens, its pool holds {endpoint.kv_tokens:,}"
        )
    return "; ".join(told)


def _understated(report: BootReport) -> bool | None:
    tokens, concurrency, longest = report.kv_tokens, report.kv_concurrency, report.max_model_len
    if tokens is None or not concurrency or longest is None:
        return None
    return tokens < _UNDERSTATED * concurrency * longest


def _foreign(facts: RankFacts) -> bool | None:
    """Tell whether what grew outside of torch can not be the engine's: more than its weights and than any library."""
    if facts.non_torch is None or facts.weights is None or facts.requested is None:
        return None
    grown = facts.non_torch.bytes
    return grown > max(_FOREIGN, facts.weights.bytes) and grown * _FOREIGN_PARTS > facts.requested.bytes


def utilization_misread(report: BootReport | None, facts: Iterable[RankFacts], shape: Shape | None) -> bool | None:
    """
    Return whether ``--gpu-memory-utilization`` was taken for something else than a cap on the whole engine.

    It is a share of the whole device for weights, activations and KV together. An engine that found no room for KV
    because its share is below its own weights, or a small part of a device it has alone, was given a share of KV.
    """
    if report is None:
        return None
    if report.failure is None or report.failure.cause != "no_kv_room":
        return False if report.failure is None and report.phase in _UP else None
    return any_known([*(_below_weights(each) for each in facts), _small_share(report, shape)])


def _below_weights(facts: RankFacts) -> bool | None:
    if facts.requested is None or facts.weights is None:
        return None
    return facts.requested.bytes + facts.requested.rounding < facts.weights.bytes


def _small_share(report: BootReport, shape: Shape | None) -> bool | None:
    if shape is None or shape.utilization is None:
        return None
    shared = any(each.size_at_init is not None for each in (report.common, *report.ranks.values()))
    # Where the engine printed what the device holds, figures decide and not the share.
    return None if shared else shape.utilization < _MEANT_SHARE


def uncharged(facts: RankFacts, report: BootReport | None, tolerance: int) -> bool | None:
    """
    Return whether graphs come on top of a budget that closes without them (releases that do not estimate them).

    Asked only where the engine printed every term and no estimate; a capture that has begun and has no figure yet
    takes more than nothing. ``tolerance`` in bytes.
    """
    if report is None or facts.graph_estimate is not None or report.graph_charge_applied:
        return None
    terms = (facts.weights, facts.activation, facts.non_torch, facts.kv_available)
    known = [term for term in terms if term is not None]
    if facts.requested is None or len(known) < len(terms) or not _closes(facts.requested, known):
        return None
    if facts.graph_capture is not None:
        return facts.graph_capture.bytes - facts.graph_capture.rounding > tolerance
    return True if report.phase == "capturing" else None


def unclosed(facts: RankFacts, report: BootReport | None) -> bool | None:
    """
    Return whether the terms the engine printed do not sum to its request, beyond their rounding.

    None where a term was not printed, and where the pool is not what the others leave: set by a flag, or a share of
    something else. Whether graphs were charged may be unknown: then it must close with or without them.
    """
    rests = _rests(facts, report)
    return None if rests is None else all(abs(rest) > tolerance for rest, tolerance in rests)


def _rests(facts: RankFacts, report: BootReport | None) -> list[tuple[int, int]] | None:
    """Return what the terms leave of the request and how much of it rounding explains: without graphs, with them."""
    terms = (facts.weights, facts.activation, facts.non_torch, facts.kv_available)
    known = [term for term in terms if term is not None]
    elsewhere = (facts.kv_reserved, facts.free_after_load, facts.kv_cap, facts.plan)
    if facts.requested is None or len(known) < len(terms) or any(told is not None for told in elsewhere):
        return None
    known += [facts.multimodal] if facts.multimodal is not None else []
    charged = None if report is None else report.graph_charge_applied
    ways = [known] if charged is not True or facts.graph_estimate is None else []
    ways += [[*known, facts.graph_estimate]] if charged is not False and facts.graph_estimate is not None else []
    return [
        (
            facts.requested.bytes - sum(term.bytes for term in way),
            facts.requested.rounding + sum(term.rounding for term in way),
        )
        for way in ways
    ]


def unclosed_said(facts: RankFacts, report: BootReport | None) -> str:
    """Return how the printed terms do not sum to the request; nothing where they do."""
    rests = _rests(facts, report)
    if facts.requested is None or not rests or not unclosed(facts, report):
        return ""
    rest = min((rest for rest, _ in rests), key=abs)
    words = "are missing from" if rest > 0 else "are more than"
    asked = gib_text(facts.requested.bytes)
    return f"the terms the engine printed do not close: {gib_text(abs(rest))} {words} the {asked} it asked for"


def _closes(whole: Printed, terms: list[Printed]) -> bool:
    rest = whole.bytes - sum(term.bytes for term in terms)
    return abs(rest) <= whole.rounding + sum(term.rounding for term in terms)


def above_servable(report: BootReport | None) -> bool | None:
    """
    Return whether the engine takes requests longer than its pool can hold: they are preempted, or never end.

    Asked of the concurrency, which knows of layers that keep only a window, and of the tokens where there is none.
    """
    if report is None or report.failure is not None or report.phase not in _UP:
        return None
    if report.kv_concurrency is not None:
        return report.kv_concurrency < 1.0
    if report.kv_tokens is None or report.max_model_len is None:
        return None
    return report.kv_tokens < report.max_model_len
