"""The phase is of the process that runs now, and of a log that is heard now."""

from __future__ import annotations

import pytest

from budget_exporter.facts.boot import BootReport, Phase
from budget_exporter.facts.endpoint import EndpointState, HealthState
from budget_exporter.facts.engine import EngineSighting, ProcessKey, Shape
from budget_exporter.sidecar.fleet import Engine, Running
from budget_exporter.sidecar.phases import Phases


def engine(pid: int, started: float) -> Engine:
    key = ProcessKey(pid, pid, "b")
    running = Running(EngineSighting("procfs", key, started, (), {}), Shape())
    return Engine("m", None, running=running, last=running, looked=True, main=key, started_at=started)


def test_the_phase_of_a_new_process_begins_with_it_though_it_has_the_same_name() -> None:
    phases = Phases()
    assert phases.of(engine(1, 100.0), 101.0) == ("unknown", 100.0)
    assert phases.of(engine(1, 100.0), 150.0) == ("unknown", 100.0)
    assert phases.of(engine(2, 200.0), 201.0) == ("unknown", 200.0)


def test_a_boot_whose_log_is_no_longer_heard_does_not_go_on_for_ever() -> None:
    """A known boot phase keeps pages away, so it must be known."""
    phases, booting = Phases(), engine(1, 100.0)
    booting.report, booting.heard = BootReport(phase="capturing", phase_at=130.0), True
    assert phases.of(booting, 140.0) == ("capturing", 130.0)
    booting.heard = False
    assert phases.of(booting, 150.0)[0] == "unknown"
    booting.heard = True
    assert phases.of(booting, 160.0) == ("capturing", 130.0)


def test_an_engine_nobody_looked_for_is_not_said_to_be_stopped() -> None:
    gone = engine(1, 100.0)
    gone.running, gone.looked = None, False
    assert Phases().of(gone, 150.0)[0] == "unknown"
    gone.looked, gone.ended_at = True, 149.0
    assert Phases().of(gone, 150.0) == ("stopped", 149.0)


@pytest.mark.parametrize(
    ("said", "health", "phase"),
    [
        ("serving", "unavailable", "failing"),
        ("sleeping", "unavailable", "failing"),
        ("warming_up", "unavailable", "failing"),
        ("unknown", "unavailable", "failing"),
        # A server that comes up may say so too, and one that is being stopped.
        ("loading", "unavailable", "loading"),
        ("stopped", "unavailable", "stopped"),
        ("serving", "refused", "serving"),
        ("serving", "timeout", "serving"),
        ("serving", "ok", "serving"),
        ("unknown", "ok", "serving"),
        ("unknown", "refused", "unknown"),
    ],
)
def test_a_core_that_is_dead_behind_its_server_shows_though_its_log_is_silent(
    said: Phase, health: HealthState, phase: Phase
) -> None:
    it = engine(1, 100.0)
    it.report, it.heard, it.endpoint = BootReport(phase=said, phase_at=130.0), True, EndpointState(health, since=140.0)
    assert Phases().of(it, 150.0)[0] == phase


def test_the_phase_it_worked_in_is_kept_for_the_day_of_its_death() -> None:
    phases, it = Phases(), engine(1, 100.0)
    it.endpoint = EndpointState("ok", since=110.0)
    phases.of(it, 111.0)
    it.endpoint = EndpointState("unavailable", since=140.0)
    assert phases.of(it, 141.0) == ("failing", 140.0)
    it.running = None
    phases.of(it, 142.0)
    assert (it.worked, it.shown) == ("serving", "failing")
