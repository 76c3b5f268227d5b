"""The health of sources that are told of changes: what success, an answer and a failure are."""

from __future__ import annotations

from budget_exporter.sidecar.health import ANSWER, Health


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_task_is_waited_for_and_not_for_ever() -> None:
    clock = Clock()
    health = Health("journal", 1.0, clock, clock)
    health.joined("a")
    first = health.health()
    assert (first.settled, first.runs, first.last_success) == (False, 0, None)
    clock.now += ANSWER + 0.1
    late = health.health()
    assert (late.settled, late.success, late.error, late.last_success) == (True, False, "no answer", None)
    health.ran("a")
    assert health.health().success
    assert health.health().last_success == clock.now


def test_a_long_log_that_is_still_being_read_is_no_failure_and_not_settled() -> None:
    clock = Clock()
    health = Health("file", 1.0, clock, clock)
    health.joined("a")
    for _ in range(10):
        clock.now += ANSWER - 1
        health.ran("a", more=True)
        assert (health.health().success, health.health().settled) == (True, False)
    health.ran("a")
    assert health.health().settled


def test_a_task_with_a_beat_that_is_not_heard_of_hangs() -> None:
    clock = Clock()
    health = Health("file", 1.0, clock, clock)
    health.joined("a")
    health.ran("a", beat=2.0)
    clock.now += ANSWER + 2
    assert (health.health().success, health.overdue("a")) == (True, False)
    clock.now += 0.1
    assert (health.health().success, health.overdue("a"), health.health().settled) == (False, True, True)
    health.ran("a", beat=2.0)
    assert (health.health().success, health.overdue("a")) == (True, False)


def test_between_two_changes_a_connected_source_goes_on_succeeding() -> None:
    clock = Clock()
    health = Health("systemd", 1.0, clock, clock)
    health.joined("a")
    health.ran("a")
    clock.now += 3600
    assert (health.health().success, health.health().last_success, health.health().runs) == (True, clock.now, 1)


def test_one_task_that_fails_fails_the_source_until_it_is_well_or_gone() -> None:
    clock = Clock()
    health = Health("systemd", 1.0, clock, clock)
    for task in ("a", "b"):
        health.joined(task)
        health.ran(task)
    well = health.health().last_success
    clock.now += 10
    health.ran("b", "b.service: refused")
    failing = health.health()
    assert (failing.success, failing.error, failing.failures) == (False, "b.service: refused", 1)
    assert failing.last_success == well
    health.left("b")
    assert health.health().success
    health.ran("b", "too late: its task was ended")
    assert health.health().success
    health.left("a")
    assert not health.used
