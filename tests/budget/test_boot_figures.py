"""
What real starts printed, through the real log reader into the law: requested, KV pool, graph estimate, suggested sizes.

The figures are those of 18 starts of vLLM 0.19.0, the lines are written here. What the law makes of the printed terms
may differ from the printed result by the rounding of all that was printed, and no more.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml

from budget_exporter import budget
from budget_exporter.budget import graphs
from budget_exporter.budget.limits import utilization_limit
from budget_exporter.budget.suggestion import suggest
from budget_exporter.evidence import Record
from budget_exporter.evidence.boot import BootReader
from budget_exporter.facts.boot import BootReport, GraphProfile, Printed
from budget_exporter.facts.engine import Shape
from budget_exporter.facts.ledger import Ledger, RankInput
from budget_exporter.units import GIB, printed_bytes
from budget_exporter.verdicts.mismatch import comparisons

GOLDENS = Path(__file__).parent / "goldens"
STARTS: list[dict[str, Any]] = yaml.safe_load((GOLDENS / "boots_0_19.yaml").read_text("utf-8"))
SIZE = 85_028_896_768
"""What an 80 GB card of that kind has: 79.19 GiB."""
each_start = pytest.mark.parametrize(
    "start", STARTS, ids=[f"{s['model']}-tp{s['tp']}-{s['max_model_len']}" for s in STARTS]
)


def head(level: str, second: int) -> str:
    return f"(EngineCore pid=12) {level} 02-03 10:00:{second:02} [worker.py:1] "


def lines(start: dict[str, Any]) -> Iterable[str]:
    """Write the lines of one rank that hold the figures, in the order of a boot."""
    yield "(APIServer pid=11) INFO 02-03 10:00:00 [utils.py:1]   █  version 0.19.0"
    yield head("DEBUG", 5) + (
        f"worker init memory snapshot: torch_peak=0.0GiB, free_memory={start['free']}GiB, "
        f"total_memory={start['size']}GiB, cuda_memory=0.51GiB"
    )
    yield head("DEBUG", 5) + f"worker requested memory: {start['requested']}GiB"
    yield head("INFO", 9) + f"Model loading took {start['weights']} GiB memory and 4.5 seconds"
    for mode, first, per_graph, number in start["profile"]:
        yield head("DEBUG", 14) + (
            f"Estimated {mode} CUDA graph memory: {first} MiB first-capture + ({number}-1) × {per_graph} MiB per-graph"  # noqa: RUF001 - vLLM prints the sign
        )
    yield head("INFO", 15) + f"Estimated CUDA graph memory: {start['estimate']} GiB total"
    yield head("DEBUG", 16) + (
        f"Memory profiling takes 5.1 seconds. Total non KV cache memory: 9.9GiB; torch peak memory increase: "
        f"{start['activation']}GiB; non-torch forward increase memory: {start['non_torch']}GiB; "
        f"weights memory: {start['weights']}GiB."
    )
    yield head("INFO", 16) + f"Available KV cache memory: {start['available']} GiB"
    yield (
        head("INFO", 16)
        + "In v0.19, CUDA graph memory profiling will be enabled by default (to try it now, set the variable)."
    )
    yield head("INFO", 17) + f"GPU KV cache size: {start['tokens']:,} tokens"
    yield (
        head("INFO", 17)
        + f"Maximum concurrency for {start['max_model_len']:,} tokens per request: {start['concurrency']}x"
    )
    yield head("INFO", 20) + f"Graph capturing finished in 3 secs, took {start['capture']} GiB"


def report_of(start: dict[str, Any]) -> BootReport:
    reader = BootReader(clock=lambda: 1770200000.0)
    reader.feed([Record(line.encode()) for line in lines(start)])
    return reader.report()


def ledger_of(start: dict[str, Any], report: BootReport) -> Ledger:
    shape = Shape(
        utilization=start["utilization"], max_model_len=start["max_model_len"], tensor_parallel_size=start["tp"]
    )
    return budget.compute(shape, [RankInput("0", SIZE, platform="nvidia")], report, None)


def known(figure: Printed | None) -> Printed:
    assert figure is not None
    return figure


@each_start
def test_every_figure_reaches_the_report(start: dict[str, Any]) -> None:
    report = report_of(start)
    facts = report.common
    said = {
        "free": facts.free_at_init,
        "size": facts.size_at_init,
        "requested": facts.requested,
        "weights": facts.weights,
        "activation": facts.activation,
        "non_torch": facts.non_torch,
        "estimate": facts.graph_estimate,
        "capture": facts.graph_capture,
        "available": facts.kv_available,
    }
    assert {name: known(figure).bytes for name, figure in said.items()} == {
        name: printed_bytes(start[name]) for name in said
    }
    assert (report.version, report.kv_tokens, report.graph_charge_applied) == ("0.19.0", start["tokens"], False)
    assert report.kv_concurrency == float(start["concurrency"])


@each_start
def test_requested_and_pool_are_what_was_printed(start: dict[str, Any]) -> None:
    report = report_of(start)
    rank = ledger_of(start, report).ranks["0"]
    facts = report.common
    requested, available = known(facts.requested), known(facts.kv_available)
    assert abs(rank.requested - requested.bytes) <= requested.rounding
    assert rank.pool is not None
    assert abs(rank.pool.bytes - available.bytes) <= rank.pool.rounding + available.rounding <= GIB // 50 + 4
    assert sum(term.bytes for term in rank.charges) + rank.pool.bytes == rank.requested
    assert [comparison.name for comparison in comparisons(rank, facts)] == ["kv_pool", "requested"]
    assert not any(comparison.apart for comparison in comparisons(rank, facts))


@each_start
def test_the_graph_estimate_follows_from_the_profile_of_the_modes(start: dict[str, Any]) -> None:
    facts = report_of(start).common
    profiles = [profile for profile in (facts.graph_full, facts.graph_piecewise) if profile is not None]
    assert len(profiles) == len(start["profile"])
    made, printed = graphs.estimate(profiles), known(facts.graph_estimate)
    assert made is not None
    assert abs(made.bytes - printed.bytes) <= made.rounding + printed.rounding


@each_start
def test_the_suggested_sizes_follow_from_the_printed_terms(start: dict[str, Any]) -> None:
    report = report_of(start)
    rank, facts = ledger_of(start, report).ranks["0"], report.common
    free, capture = known(facts.free_at_init), known(facts.graph_capture)
    sizes = suggest(
        requested=rank.requested,
        free=free.bytes,
        used=sum(term.bytes for term in rank.charges),
        estimate=0,
        capture=capture.bytes,
        peak_holds_estimate=False,
    )
    rounding = sum(term.rounding for term in rank.charges) + capture.rounding
    assert abs(sizes.fit - start["fit_bytes"]) <= rounding
    assert abs(sizes.full - start["full_bytes"]) <= rounding + free.rounding


@each_start
def test_the_limit_is_what_was_free_at_init(start: dict[str, Any]) -> None:
    rank = ledger_of(start, report_of(start)).ranks["0"]
    assert rank.bootable is True
    assert rank.limit == utilization_limit(SIZE, printed_bytes(start["free"]), GIB // 200, "log")
    assert rank.limit.low >= start["utilization"]


def test_an_estimate_needs_a_profile_and_takes_the_largest_first_capture_once() -> None:
    assert graphs.estimate([]) is None
    one = GraphProfile(Printed(100, 1), Printed(10, 2), 1)
    two = GraphProfile(Printed(300, 5), Printed(20, 3), 4)
    assert graphs.estimate([one]) == Printed(100, 1)
    assert graphs.estimate([one, two]) == graphs.estimate([two, one]) == Printed(300 + 3 * 20, 5 + 3 * 3)


def test_a_figure_that_is_off_by_more_than_its_rounding_would_be_seen() -> None:
    start = STARTS[0] | {"available": f"{float(STARTS[0]['available']) + 0.05:.2f}"}
    report = report_of(start)
    assert any(comparison.apart for comparison in comparisons(ledger_of(start, report).ranks["0"], report.common))
