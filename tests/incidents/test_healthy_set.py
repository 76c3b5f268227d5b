"""What is well raises no page, no warning, and only the note that somebody restarted the engine."""

from __future__ import annotations

import pytest

from tests.incidents.conftest import Outcome
from tests.incidents.healthy import BOOTS, WEEK, boot_name

pytestmark = [pytest.mark.real_part("promtool")]


@pytest.mark.parametrize("number", range(len(BOOTS)))
def test_graphs_larger_than_an_estimate_that_was_not_charged_are_no_drift(number: int, outcome: Outcome) -> None:
    assert BOOTS[number].capture > BOOTS[number].estimate
    assert outcome.raised[boot_name(number)].alerts == []


def test_a_week_of_serving_raises_nothing_but_notes(outcome: Outcome) -> None:
    raised = outcome.raised[WEEK]
    assert {alert.name for alert in raised.alerts} == {"BudgetEngineRestarted"}
    assert raised.keys("info") == {"BudgetEngineRestarted"}
