"""Whether vLLM charges its graph estimate, and how much, by release, platform, model runner and environment."""

from __future__ import annotations

from dataclasses import dataclass

from budget_exporter.budget.laws._vllm_rules import Rule, model_runner
from budget_exporter.budget.terms import printed
from budget_exporter.facts.boot import BootReport, RankFacts
from budget_exporter.facts.engine import Shape
from budget_exporter.facts.ledger import Term

__all__ = ["ESTIMATE_GRAPHS", "GraphCharge", "captures_none", "graph_charge"]

ESTIMATE_GRAPHS = "VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS"


@dataclass(frozen=True, slots=True)
class GraphCharge:
    """What is charged for graphs: ``term`` None with ``known`` is nothing, without it is not known."""

    term: Term | None = None
    known: bool = True
    note: str = ""
    """What must be said of it: an assumption, or why nothing is charged."""


def captures_none(shape: Shape) -> bool:
    """
    Return whether the flags forbid graphs.

    ``--enforce-eager``, the mode NONE or no size to capture in ``--compilation-config``, or ``-O0`` where that names no
    mode. Source: vLLM 0.12 to 0.33 ``config/compilation.py`` and ``config/vllm.py``.
    """
    if shape.enforce_eager or shape.cudagraph_capture_sizes == ():
        return True
    return shape.optimization_level == 0 if shape.cudagraph_mode is None else shape.cudagraph_mode == "NONE"


def graph_charge(rule: Rule, shape: Shape, report: BootReport, facts: RankFacts, platform: str) -> GraphCharge:
    """
    Return the graph charge of one rank on ``platform`` (empty where unknown).

    What the engine said counts, then whether its platform and model runner estimate at all, then the environment, then
    the release's default, which is an assumption.
    """
    if rule.charges_graphs is None or shape.enforce_eager:
        return GraphCharge()
    applied, assumption = report.graph_charge_applied, ""
    if applied is None:
        never = _never(rule, shape, report, facts, platform)
        if never is not None:
            return GraphCharge(note=never)
        if rule.peak_holds_estimate:
            return GraphCharge(known=False)
        applied = shape.estimate_graphs
    if applied is None:
        applied = rule.charges_graphs
        assumption = f"the graph estimate is assumed to be {'' if applied else 'not '}charged, the version's default"
    if not applied:
        return GraphCharge(note=assumption)
    term = printed("cuda_graphs", facts.graph_estimate, ESTIMATE_GRAPHS, assumption)
    return GraphCharge(term, term is not None, assumption)


def _never(rule: Rule, shape: Shape, report: BootReport, facts: RankFacts, platform: str) -> str | None:
    """Return why nothing can have been charged (empty where that needs no word), None where something may have been."""
    if facts.graph_estimate is not None:
        return None
    if captures_none(shape):
        return ""
    wanted = rule.charges_graphs if shape.estimate_graphs is None else shape.estimate_graphs
    if platform and platform not in rule.estimates:
        return "graphs are not estimated on this platform: their capture is not charged" if wanted else ""
    if not rule.v2_estimates and model_runner(rule, shape, report) == "V2":
        return "the V2 model runner estimates no graphs: their capture is not charged" if wanted else ""
    return None
