"""Each death counts once, whether the log or the supervisor tells of it first, and a planned stop is none."""

from __future__ import annotations

import pytest

from budget_exporter.facts.boot import BootReport, Failure, Phase
from budget_exporter.facts.engine import Supervision, UnitState
from budget_exporter.sidecar.deaths import EARLY, KEPT, PATIENCE, PATIENCE_LOG, Deaths, died

OOM = Failure(99.0, "serving", "runtime_oom")


def total(deaths: Deaths) -> int:
    return sum(deaths.counts.values())


def test_a_death_told_before_the_process_is_gone_counts_once() -> None:
    deaths = Deaths()
    deaths.tell(OOM, present=True)
    deaths.ended(100.0, "failing")
    deaths.unasked(100.5)
    deaths.judge(100.0 + PATIENCE, troubled=False)
    assert (total(deaths), deaths.counts["runtime_oom"], deaths.last) == (1, 1, OOM)


def test_a_death_told_after_the_process_is_gone_counts_once() -> None:
    deaths = Deaths()
    deaths.ended(100.0, "failing")
    deaths.unasked(100.5)
    deaths.judge(100.0 + PATIENCE, troubled=True)
    deaths.tell(OOM, present=False)
    deaths.judge(100.0 + PATIENCE_LOG, troubled=False)
    assert (total(deaths), deaths.counts["runtime_oom"]) == (1, 1)


def test_a_death_the_supervisor_told_first_is_explained_and_not_counted_again() -> None:
    deaths = Deaths()
    deaths.ended(100.0, "serving")
    deaths.unasked(100.5)
    deaths.judge(100.0 + PATIENCE, troubled=False)
    deaths.tell(OOM, present=False)
    assert (total(deaths), deaths.counts["unknown"], deaths.last) == (1, 1, OOM)


def test_a_silent_death_counts_though_the_engine_is_back_at_once() -> None:
    """RestartSec is 100 ms by default: the counter has gone up before anybody saw the process gone."""
    deaths = Deaths()
    deaths.unasked(99.5)
    deaths.ended(100.0, "serving")
    deaths.judge(100.0 + PATIENCE, troubled=False)
    assert deaths.counts["unknown"] == 1
    assert deaths.last == Failure(100.0, "serving", "unknown")


def test_a_silent_death_after_one_that_the_log_told_counts_too() -> None:
    deaths = Deaths()
    deaths.ended(100.0, "failing")
    deaths.tell(OOM, present=False)  # told by the first line of the next boot
    deaths.ended(200.0, "serving")
    deaths.unasked(200.0)
    deaths.judge(200.0 + PATIENCE, troubled=False)
    assert (deaths.counts["runtime_oom"], deaths.counts["unknown"]) == (1, 1)


def test_what_was_asked_for_is_no_death_and_no_later_death_makes_it_one() -> None:
    deaths = Deaths()
    deaths.ended(100.0, "serving")
    deaths.judge(100.0 + PATIENCE, troubled=False)
    deaths.unasked(100.1 + PATIENCE)
    deaths.ended(101.0 + PATIENCE, "serving")
    deaths.judge(200.0, troubled=False)
    assert total(deaths) == 1


def test_a_sign_long_before_an_end_is_not_of_it() -> None:
    deaths = Deaths()
    deaths.unasked(100.0 - EARLY - 0.1)
    deaths.ended(100.0, "serving")
    deaths.judge(100.0 + PATIENCE, troubled=False)
    assert total(deaths) == 0


def test_deaths_of_processes_that_nobody_saw_count_by_the_log_alone() -> None:
    deaths = Deaths()
    deaths.tell(OOM, present=False)
    deaths.tell(OOM, present=False)
    assert total(deaths) == 2


def test_ten_thousand_ends_are_not_kept() -> None:
    deaths = Deaths()
    for n in range(10_000):
        deaths.ended(float(n), "serving")
        deaths.judge(float(n), troubled=False)
    assert len(deaths._ends) <= PATIENCE_LOG + 1


def test_a_death_soon_after_a_planned_restart_does_not_make_that_a_death() -> None:
    deaths = Deaths()
    deaths.ended(100.0, "serving")
    deaths.ended(102.0, "loading")
    deaths.unasked(102.5)
    deaths.judge(110.0, troubled=False)
    assert deaths.counts["unknown"] == 1


def test_a_crash_that_is_told_before_it_shows_does_not_make_the_planned_restart_before_it_a_death() -> None:
    deaths = Deaths()
    deaths.asked(99.0)  # the unit is being stopped
    deaths.ended(100.0, "serving")
    deaths.began()
    deaths.unasked(102.0, running=True)
    deaths.ended(102.2, "loading")
    deaths.judge(110.0, troubled=False)
    assert total(deaths) == 1
    assert deaths.last == Failure(102.2, "loading", "unknown")


def test_that_an_end_was_asked_for_may_be_told_after_it_shows() -> None:
    deaths = Deaths()
    deaths.ended(100.0, "serving")
    deaths.asked(100.5)
    deaths.began()
    deaths.unasked(102.0, running=True)
    deaths.judge(110.0, troubled=False)
    assert total(deaths) == 0


def test_a_stop_that_was_asked_for_long_ago_is_not_of_a_process_begun_since() -> None:
    deaths = Deaths()
    deaths.asked(100.0)
    deaths.began()
    deaths.ended(101.0, "starting")
    deaths.unasked(101.2)
    deaths.judge(110.0, troubled=False)
    assert total(deaths) == 1


def test_a_death_that_is_explained_late_is_remembered_with_its_cause() -> None:
    deaths = Deaths()
    for at in (100.0, 200.0):
        deaths.ended(at, "serving")
        deaths.unasked(at)
        deaths.judge(at + PATIENCE, troubled=False)
    deaths.tell(OOM, present=False)
    assert [death.cause for death in deaths.lately] == ["unknown", "runtime_oom"]


@pytest.mark.parametrize(
    ("state", "asked", "words", "running", "failing", "death"),
    [
        ("failed", None, "serving", False, False, True),
        ("failed", False, None, False, False, True),
        # It was told to stop and did not end well.
        ("failed", True, "stopped", False, False, False),
        ("auto_restart", None, None, True, False, True),
        # It ended with 0.
        ("inactive", False, "serving", False, False, True),
        ("inactive", False, "stopped", False, False, False),
        ("inactive", False, None, False, False, False),
        ("inactive", False, None, False, True, True),
        ("inactive", False, "serving", True, True, False),
        ("inactive", True, "serving", False, True, False),
        ("inactive", None, "serving", False, True, False),
        ("active", False, "serving", False, True, False),
    ],
)
def test_what_the_supervisors_word_makes_of_an_end(
    state: UnitState, asked: bool | None, words: Phase | None, running: bool, failing: bool, death: bool
) -> None:
    word = Supervision("systemd", "m.service", state, 0, asked=asked)
    report = None if words is None else BootReport(phase=words)
    assert died(word, report, running=running, failing=failing) is death


def test_restarts_that_nobody_asked_for_are_kept_and_only_the_newest() -> None:
    deaths = Deaths()
    deaths.unasked(100.0)
    deaths.unasked(101.0, restarts=2)
    deaths.unasked(102.0, restarts=10_000)
    assert deaths.restarts == [102.0] * KEPT
    deaths.unasked(103.0, restarts=1)
    assert deaths.restarts == [102.0] * (KEPT - 1) + [103.0]
