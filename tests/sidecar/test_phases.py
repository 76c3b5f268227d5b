"""The phase is of the process that runs now, and of a log that is heard now."""

from __future__ import annotations

from budget_exporter.facts.boot import BootReport
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
