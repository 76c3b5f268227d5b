"""
What CUDA graphs are charged, and what charge would cover a capture.

Source of the charge: the expert-offload fork's ``v1/worker/gpu/cudagraph_mem.py`` as operators describe it: 256 MiB and
52 MiB a graph by default, each of the two set by an environment name, both beaten by an explicit total, which does not
follow a change in the number of graphs. Source of the estimate: vLLM, see ``estimate``.
"""

from __future__ import annotations

from collections.abc import Iterable

from budget_exporter.facts.boot import GraphProfile, Printed
from budget_exporter.facts.engine import Shape
from budget_exporter.facts.ledger import Constants, Origin, Term
from budget_exporter.units import MIB

__all__ = ["BASE", "ESTIMATE", "PER_GRAPH", "charge", "count", "estimate", "mib_to_cover", "per_graph_mib_to_cover"]

BASE = "VLLM_CUDAGRAPH_MEM_BASE_MB"
PER_GRAPH = "VLLM_CUDAGRAPH_MEM_PER_GRAPH_MB"
ESTIMATE = "VLLM_CUDAGRAPH_MEM_ESTIMATE_MB"


def count(shape: Shape, reported: int | None, constants: Constants | None) -> int | None:
    """
    Return how many graphs the engine captures: what it said, else the registry's number for the shape.

    None under ``--enforce-eager`` without a word of the engine: what the fork charges then is not known.
    """
    if reported is not None:
        return reported
    if constants is None or shape.enforce_eager:
        return None
    return constants.graphs_speculative if shape.speculative else constants.graphs_piecewise


def charge(shape: Shape, graphs: int | None, constants: Constants | None) -> Term | None:
    """
    Return the graph charge: the explicit total, else ``base + per graph x graphs``; None where a part is unknown.

    The environment's figures win over the registry's; MiB are 2**20 bytes.
    """
    if shape.graph_estimate_mib is not None:
        return Term("cuda_graphs", shape.graph_estimate_mib * MIB, "env", lever=ESTIMATE)
    base, per_graph = shape.graph_base_mib, shape.graph_per_graph_mib
    if constants is not None:
        base = constants.graph_base_mib if base is None else base
        per_graph = constants.graph_per_graph_mib if per_graph is None else per_graph
    if base is None or per_graph is None or graphs is None:
        return None
    given = shape.graph_base_mib is not None or shape.graph_per_graph_mib is not None
    source: Origin = "env" if given else "registry"
    note = f"{base} MiB + {graphs} graphs of {per_graph} MiB"
    return Term("cuda_graphs", (base + per_graph * graphs) * MIB, source, lever=f"{BASE}, {PER_GRAPH}", note=note)


def estimate(profiles: Iterable[GraphProfile]) -> Printed | None:
    """
    Return vLLM's graph estimate from what its profiler measured of each mode, None without any.

    ``largest first capture + sum over modes of per graph x (graphs - 1)``: the modes share one pool, which the largest
    capture sizes. 266 MiB, and 50 further graphs of 10 MiB in each of two modes: 1.24 GiB. Source: vLLM 0.18 to 0.33
    ``v1/worker/gpu_model_runner.py`` ``profile_cudagraph_memory``; from 0.23 graphs of an encoder come on top.
    """
    modes = tuple(profiles)
    if not modes:
        return None
    first = max((mode.first for mode in modes), key=lambda printed: printed.bytes)
    further = [(mode.per_graph, mode.graphs - 1) for mode in modes]
    return Printed(
        first.bytes + sum(each.bytes * number for each, number in further),
        first.rounding + sum(each.rounding * number for each, number in further),
    )


def mib_to_cover(capture: int) -> int:
    """Return the smallest total in MiB that covers a capture of ``capture`` bytes; 0 for a negative one."""
    return max(0, -(-capture // MIB))


def per_graph_mib_to_cover(capture: int, base_mib: int, graphs: int) -> int:
    """
    Return the smallest charge per graph in MiB with which ``graphs`` graphs and the base cover ``capture`` bytes.

    ``graphs`` is at least 1.
    """
    return max(0, -(-(mib_to_cover(capture) - base_mib) // graphs))
