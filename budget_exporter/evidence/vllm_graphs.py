"""
What vLLM says of its graphs: how many, what they are estimated to take, whether that is charged, what they took.

Formats are those of ``v1/worker/gpu_model_runner.py`` and ``v1/worker/gpu_worker.py`` of vLLM 0.8.5 to 0.33.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from budget_exporter.evidence.statements import (
    NUMBER,
    SIZE,
    BootFact,
    Mark,
    Pattern,
    RankFact,
    Statement,
    count,
    figure,
    sizes,
)
from budget_exporter.facts.boot import GraphProfile

__all__ = ["PATTERNS"]

_N = NUMBER


def _graphs(match: re.Match[str]) -> Iterable[Statement]:
    yield Mark("profiling_graphs", "profiling")
    yield BootFact("graphs", sum(int(number) for number in re.findall(r"=([0-9]+) \(", match[0])))


def _pool(match: re.Match[str]) -> Iterable[Statement]:
    yield Mark("captured", "warming_up")
    yield from sizes(match)


def _capture(match: re.Match[str]) -> Iterable[Statement]:
    yield Mark("captured", "warming_up")
    yield RankFact("graph_capture", figure(match["graph_capture"], match["graph_capture_u"]))


def _charge(match: re.Match[str]) -> Iterable[Statement]:
    yield BootFact("graph_charge_applied", "is enabled" in match[0])


def _profiled(match: re.Match[str]) -> Iterable[Statement]:
    first, per_graph = figure(match["first"], match["first_u"]), figure(match["per"], match["per_u"])
    yield RankFact(f"graph_{match['mode'].lower()}", GraphProfile(first, per_graph, count(match["graphs"])))


PATTERNS = (
    Pattern(
        "Profiling CUDA graph memory",
        re.compile(r"Profiling CUDA graph memory: (?:\w{1,24}=\d{1,6} \(largest=\d{1,9}\)(?:, |\s*\n))+(?<=\n)"),
        _graphs,
    ),
    Pattern(
        "Estimated FULL CUDA|Estimated PIECEWISE CUDA",
        re.compile(
            rf"Estimated (?P<mode>FULL|PIECEWISE) CUDA graph memory: (?P<first>{_N})\s?(?P<first_u>{SIZE}) "
            rf"first-capture \+ \((?P<graphs>[0-9]{{1,6}})-1\) \S (?P<per>{_N})\s?(?P<per_u>{SIZE}) per-graph"
        ),
        _profiled,
    ),
    Pattern(
        "Estimated CUDA graph memory",
        re.compile(rf"Estimated CUDA graph memory: (?P<graph_estimate>{_N})\s?GiB"),
        sizes,
    ),
    Pattern(
        "CUDA graph memory profiling (?:is|will be) (?:en|dis)abled",
        re.compile(
            r"CUDA graph memory profiling is enabled|CUDA graph memory profiling is disabled|"
            r"In v0\.19, CUDA graph memory profiling will be enabled"
        ),
        _charge,
    ),
    Pattern(
        "Graph capturing finished",
        re.compile(
            rf"Graph capturing finished in \d{{1,9}} secs?, took "
            rf"(?P<graph_capture>{_N})\s?(?P<graph_capture_u>GiB|MiB)(?![A-Za-z])"
        ),
        _capture,
    ),
    Pattern(
        "CUDA graph pool memory",
        # Newer releases tell within the brackets what was captured and what the profiler left behind.
        re.compile(
            rf"CUDA graph pool memory: (?P<graph_pool>{_N})\s?GiB \(actual(?:\)|:[^)\n]{{0,160}}\))"
            rf"(?:, (?P<graph_estimate>{_N})\s?GiB \(estimated\))?"
        ),
        _pool,
    ),
)
