"""What the page and the series say of an engine's endpoint."""

from __future__ import annotations

from dataclasses import replace

import pytest

from budget_exporter.facts.endpoint import HEALTH_STATES, EndpointFacts, EndpointState, HealthState
from budget_exporter.facts.snapshot import Snapshot
from budget_exporter.publish import metrics, page
from tests.publish import snapshots
from tests.publish.snapshots import AT

LINKS = page.Links("/metrics", "/api/v1/snapshot", "/-/healthy", "/-/ready")


def told(endpoint: EndpointState | None, **changes: object) -> Snapshot:
    before = snapshots.healthy()
    engine = replace(before.engines[0], endpoint=endpoint, **changes)  # type: ignore[arg-type]
    return replace(before, engines=(engine,))


def text(snapshot: Snapshot) -> str:
    return page.render(snapshot, links=LINKS, now=AT + 65).decode()


def series(snapshot: Snapshot) -> dict[str, float]:
    return {
        sample.labels["state"]: sample.value
        for family in metrics.families(snapshot)
        if family.name == "budget_engine_health"
        for sample in family.samples
    }


@pytest.mark.parametrize("health", HEALTH_STATES)
def test_one_state_holds_and_is_told_in_words(health: HealthState) -> None:
    snapshot = told(EndpointState(health, since=AT))
    assert series(snapshot) == dict.fromkeys(HEALTH_STATES, 0) | {health: 1}
    assert f"<dt>health</dt><dd>{health}" in text(snapshot)
    assert ", for 1 min (since " in text(snapshot)


def test_why_it_is_unknown_is_told() -> None:
    page_text = text(told(EndpointState(why="its network is its own")))
    assert "<dd>unknown: its network is its own</dd>" in page_text


def test_an_endpoint_nobody_asks_has_no_series_and_no_line() -> None:
    assert series(told(None)) == {}
    assert "<dt>health</dt>" not in text(told(None))
    assert "<dt>KV use</dt>" not in text(told(None))


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        (
            EndpointFacts(kv_usage=0.1234, running=3, waiting=1200),
            "12.3% of the pool, 3 running, 1,200 waiting (5 s ago)",
        ),
        (EndpointFacts(running=0), "0 running (5 s ago)"),
        (EndpointFacts(kv_tokens=9), None),
        (None, None),
    ],
)
def test_how_full_the_pool_is(facts: EndpointFacts | None, words: str | None) -> None:
    page_text = text(told(EndpointState("ok", facts=facts, told_at=AT + 60)))
    if words is None:
        assert "<dt>KV use</dt>" not in page_text
    else:
        assert f"<dt>KV use</dt><dd>{words}</dd>" in page_text


def test_where_log_and_endpoint_part_is_a_note() -> None:
    assert "<li>two figures part</li>" in text(told(None, disagreements=("two figures part",)))
