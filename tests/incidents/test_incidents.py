"""Every incident raises its pages in time, what else it should, and nothing more."""

from __future__ import annotations

import pytest

from tests.incidents.conftest import Outcome
from tests.incidents.expected import INCIDENTS, Incident

pytestmark = [
    pytest.mark.real_part("promtool"),
    pytest.mark.real_part("prometheus"),
    pytest.mark.real_part("prometheus-alertmanager"),
]
LIVE = [incident for incident in INCIDENTS if incident.live is not None]


@pytest.mark.parametrize("incident", INCIDENTS, ids=lambda incident: incident.name)
def test_the_rules_make_of_it_what_they_should(incident: Incident, outcome: Outcome) -> None:
    raised = outcome.raised[incident.name]
    assert raised.keys("critical") == set(incident.pages)
    assert raised.keys("warning") == set(incident.warnings)
    assert raised.keys("info") == set(incident.infos)
    due = {**incident.pages, **incident.warnings}
    late = {name: raised.after(name) for name, by in due.items() if raised.after(name) > by}
    assert not late


@pytest.mark.parametrize("incident", LIVE, ids=lambda incident: incident.name)
def test_its_pages_reach_a_person_in_time_and_no_other_does(incident: Incident, outcome: Outcome) -> None:
    played = outcome.live.played[incident.name]
    assert played.failure is None
    pages = outcome.live.pages(played)
    assert pages.keys() == incident.live.keys()  # type: ignore[union-attr]  # only those that are live
    late = {name: at for name, at in pages.items() if at > incident.live[name]}  # type: ignore[index]
    assert not late


@pytest.mark.parametrize("incident", LIVE, ids=lambda incident: incident.name)
def test_its_exporter_was_scraped_to_the_end(incident: Incident, outcome: Outcome) -> None:
    """Where nobody answers, nobody is paged either."""
    assert outcome.scraped[incident.name] > 0.95
