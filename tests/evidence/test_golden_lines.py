from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from budget_exporter.evidence import Record
from budget_exporter.evidence.boot import BootReader
from budget_exporter.evidence.sentences import INTEREST
from budget_exporter.facts.boot import BootReport, GraphProfile, Printed
from budget_exporter.units import printed_bytes

LINES = Path(__file__).parents[1] / "lines"
GOLDEN: list[dict[str, Any]] = [json.loads(line) for line in (LINES / "facts.jsonl").read_text("utf-8").splitlines()]
FALSE_FRIENDS = (LINES / "false_friends.txt").read_text("utf-8").splitlines()
NOW = 1770200000.0
RATIOS = ("phase", "phase_at", "unparsed", "failure", "common", "ranks", "args", "version")


def report_of(data: bytes, *, cut: bool = False) -> BootReport:
    reader = BootReader(clock=lambda: NOW)
    reader.feed([Record(data, cut=cut)])
    return reader.report()


def size(printed: list[str]) -> int:
    return printed_bytes(*printed)


def plain(facts: object) -> dict[str, Any]:
    """Return the facts that are there, sizes as bytes."""
    values = {name: getattr(facts, name) for name in facts.__dataclass_fields__}  # type: ignore[attr-defined]
    return {name: in_bytes(value) for name, value in values.items() if value is not None}


def in_bytes(value: Any) -> Any:
    if isinstance(value, GraphProfile):
        return plain(value)
    return value.bytes if isinstance(value, Printed) else value


def expected(golden: dict[str, Any]) -> dict[str, Any]:
    made = {name: expected(value) if isinstance(value, dict) else value for name, value in golden.items()}
    return {name: size(value) if isinstance(value, list) else value for name, value in made.items()}


@pytest.mark.parametrize("golden", GOLDEN, ids=[golden["line"][:60] for golden in GOLDEN])
def test_a_line_gives_its_facts_and_no_others(golden: dict[str, Any]) -> None:
    report = report_of(golden["line"].encode())

    common = {name: value for name, value in plain(report.common).items() if name != "plan"}
    assert common == expected(golden.get("common", {}))
    assert {str(rank): plain(facts) for rank, facts in report.ranks.items()} == {
        rank: expected(facts) for rank, facts in golden.get("ranks", {}).items()
    }
    assert ({} if report.common.plan is None else plain(report.common.plan)) == expected(golden.get("plan", {}))
    for name, value in golden.get("boot", {}).items():
        assert getattr(report, name) == value, name
    assert ({} if report.chips is None else plain(report.chips)) == expected(golden.get("chips", {}))
    for name, value in golden.get("printed", {}).items():
        assert getattr(report, name).bytes == size(value), name
    if "args" in golden:
        assert report.args == golden["args"]
    assert (report.failure is not None) == ("failure" in golden)
    assert report.unparsed == 0


@pytest.mark.parametrize("golden", [golden for golden in GOLDEN if "failure" in golden])
def test_a_dying_sentence_gives_cause_rank_and_sizes(golden: dict[str, Any]) -> None:
    failure = report_of(golden["line"].encode()).failure

    assert failure is not None
    said = {name: value for name, value in plain(failure).items() if name in ("rank", "tried", "free")}
    want = expected(golden["failure"])
    assert failure.cause == want.pop("cause", "unknown")
    assert said == want


@pytest.mark.parametrize("golden", GOLDEN, ids=[golden["line"][:60] for golden in GOLDEN])
def test_a_line_cut_anywhere_gives_the_right_figure_or_none(golden: dict[str, Any]) -> None:
    data = golden["line"].encode()
    whole = asdict(report_of(data))
    for end in range(len(data)):
        part = asdict(report_of(data[:end], cut=True))
        for name, value in part.items():
            if name in ("phase", "phase_at", "unparsed", "failure", "common", "ranks"):
                continue
            assert value in (None, {}, whole[name]) or value.items() <= whole[name].items(), (name, data[:end])
        for rank, facts in {None: part["common"], **part["ranks"]}.items():
            known = whole["common"] if rank is None else whole["ranks"][rank]
            same_figures(facts, known, data[:end])
        if part["failure"] is not None:
            same_figures(
                {name: part["failure"][name] for name in ("tried", "free")}, whole["failure"] or {}, data[:end]
            )


def same_figures(part: dict[str, Any], whole: dict[str, Any], data: bytes) -> None:
    for name, value in part.items():
        if name == "plan" and value is not None:
            same_figures(value, whole["plan"] or {}, data)
        else:
            assert value is None or value == whole.get(name), (name, data)


@pytest.mark.parametrize("line", FALSE_FRIENDS)
def test_a_false_friend_is_neither_a_fact_nor_a_death_nor_unparsed(line: str) -> None:
    report = report_of(line.encode())

    assert report.failure is None
    assert report.unparsed == 0
    assert plain(report.common) == {}
    assert report.ranks == {}
    assert (report.kv_tokens, report.kv_concurrency, report.max_model_len, report.graphs) == (None,) * 4


@pytest.mark.parametrize("golden", GOLDEN, ids=[golden["line"][:60] for golden in GOLDEN])
def test_the_pre_filter_lets_every_golden_line_pass(golden: dict[str, Any]) -> None:
    assert INTEREST.search(golden["line"].encode())


@pytest.mark.parametrize(
    "line",
    [
        "(Worker_TP0 pid=30) INFO 02-03 10:00:22 [gpu_worker.py:436] Available KV cache memory: a lot",
        "(Worker_TP0 pid=30) INFO 02-03 10:00:22 [x.py:1] Graph capturing finished in 3 secs, took 0.4 furlongs",
        "(EngineCore pid=12) INFO 02-03 10:00:22 [x.py:1] GPU KV cache size: 12,34 tokens",
        "expert cache space                             17.7x7 GiB   7,762 slots",
    ],
)
def test_a_figure_that_cannot_be_read_is_counted_when_its_sentence_has_ended(line: str) -> None:
    reader = BootReader(clock=lambda: NOW)
    reader.feed([Record(line.encode()), *[Record(b"(X pid=1) INFO 02-03 10:00:22 [x.py:1] something else")] * 8])

    assert reader.report().unparsed == 1
    assert plain(reader.report().common) == {}
    assert reader.report().ranks == {}
    assert reader.report().kv_tokens is None


def test_the_rounding_of_a_figure_is_that_of_the_engine_and_not_of_dropped_zeros() -> None:
    facts = report_of(b"(Worker_TP0 pid=3) INFO 02-03 10:00:22 [x.py:1] worker requested memory: 24.0GiB").ranks[0]

    assert facts.requested == Printed(24 << 30, 5368709)


@pytest.mark.parametrize(
    ("line", "capture"),
    [
        ("took -0.19 GiB", "-0.19"),
        ("took \N{MINUS SIGN}0.19 GiB", "-0.19"),
        ("took \x1b[31m-0.\x1b[0m19 GiB", "-0.19"),
        ("took \N{EN DASH}0.19 GiB", None),
        ("took 1\x1b[A0.19 GiB", None),
        ("took 0.19 Gi", None),
        ("took 1,23.4 GiB", None),
        ("took \N{ARABIC-INDIC DIGIT ONE}.19 GiB", None),
    ],
)
def test_a_sign_is_never_lost_and_a_torn_number_never_read(line: str, capture: str | None) -> None:
    report = report_of(
        f"(Worker_TP0 pid=3) INFO 02-03 10:00:30 [r.py:1] Graph capturing finished in 3 secs, {line}".encode()
    )

    found = report.ranks[0].graph_capture if report.ranks else None
    assert (found and found.bytes) == (printed_bytes(capture) if capture else None)


def test_a_count_with_decimals_is_none() -> None:
    report = report_of(b"KV planned 8937 B/token, measured 1.0125 B/token (+1188)")

    assert plain(report.common) == {}


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("ExpertPlanError: the architecture has no config-time KV specs", "not_memory"),
        ("ExpertPlanError: plan does not fit: 3.2 GiB missing", "unknown"),
    ],
)
def test_a_refused_plan_is_a_death_at_the_start(text: str, cause: str) -> None:
    failure = report_of(f"(EngineCore pid=12) ERROR 02-03 10:00:30 [core.py:1] {text}".encode()).failure

    assert failure is not None
    assert (failure.cause, failure.phase) == (cause, "starting")
