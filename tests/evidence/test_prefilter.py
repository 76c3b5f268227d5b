from __future__ import annotations

import pytest

from budget_exporter.evidence.prefilter import needles, prefilter
from budget_exporter.evidence.sentences import INTEREST, TABLE


@pytest.mark.parametrize(
    ("lead", "expected"),
    [
        ("plain text", ["plain text"]),
        (r"one \(two\)|three: \d", ["one (two)", "three: "]),
        (r"^\W{0,20}row(?:\s{2,}|:)", ["row"]),
        (r"\bword \d+", ["word "]),
        (r"secs?, took", ["sec"]),
    ],
)
def test_a_needle_is_the_literal_an_alternative_begins_with(lead: str, expected: list[str]) -> None:
    assert needles(lead) == expected


def test_a_lead_without_a_literal_is_refused() -> None:
    with pytest.raises(ValueError, match="begins with no literal"):
        prefilter([r"(?:a|b) line"])


def test_every_lead_of_the_tables_is_let_pass() -> None:
    for _, pattern in TABLE:
        for needle in needles(pattern.lead):
            assert INTEREST.search(b"x" + needle.encode() + b"x"), needle


@pytest.mark.parametrize(
    "line",
    [
        b'INFO:     10.0.0.7:33822 - "GET /health HTTP/1.1" 200 OK',
        b"(EngineCore pid=12) INFO 02-03 10:00:12 [x.py:1] Using FlashAttention backend.",
        b"(APIServer pid=11) DEBUG 02-03 10:00:12 [v1/engine/async_llm.py:875] Called check_health.",
    ],
)
def test_lines_of_no_interest_do_not_pass(line: bytes) -> None:
    assert INTEREST.search(line) is None
