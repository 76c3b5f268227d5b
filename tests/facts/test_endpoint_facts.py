"""What the endpoint adds to the log, and where the two part."""

from __future__ import annotations

import pytest

from budget_exporter.facts.boot import BootReport
from budget_exporter.facts.endpoint import EndpointFacts, disagreements, heard

LOG = BootReport(version="0.28.0", kv_tokens=401_408, kv_concurrency=12.25, max_model_len=32_768, phase="serving")
TOLD = EndpointFacts(1, "0.28", 32_768, 25_088, 401_408, 12.2501, None, 16, 0.5, 3, 1, asleep=False)


def test_without_an_answer_the_log_stands() -> None:
    assert heard(LOG, None) is LOG
    assert heard(None, None) is None
    assert heard(LOG, EndpointFacts()) == LOG


def test_without_a_log_the_endpoint_tells() -> None:
    told = heard(None, TOLD)
    assert told is not None
    assert (told.version, told.kv_tokens, told.kv_concurrency, told.max_model_len) == ("0.28", 401_408, 12.2501, 32_768)
    assert told.phase == "unknown"


def test_the_endpoint_goes_before_the_log_but_for_the_version() -> None:
    told = heard(LOG, TOLD)
    assert told is not None
    assert (told.version, told.kv_concurrency, told.phase) == ("0.28.0", 12.2501, "serving")


@pytest.mark.parametrize(
    ("report", "facts"), [(None, TOLD), (LOG, None), (LOG, TOLD), (BootReport(), TOLD), (LOG, EndpointFacts())]
)
def test_no_disagreement(report: BootReport | None, facts: EndpointFacts | None) -> None:
    assert disagreements(report, facts) == ()


def test_each_disagreement_is_said() -> None:
    assert disagreements(LOG, EndpointFacts(kv_tokens=400_000, max_model_len=4096)) == (
        "tokens in the KV pool: 400,000 by the engine's endpoint, 401,408 by its log",
        "tokens in the longest sequence: 4,096 by the engine's endpoint, 32,768 by its log",
    )


def test_what_changes_is_forgotten_and_the_rest_kept() -> None:
    assert TOLD.quiet() == EndpointFacts(1, "0.28", 32_768, 25_088, 401_408, 12.2501, None, 16)
    assert TOLD.complete
    assert not EndpointFacts(version="0.28").complete
    assert not EndpointFacts(kv_blocks=1).complete
