"""What the page says of how an engine ended, whether it comes back, how it boots and how it goes on dying."""

from __future__ import annotations

from dataclasses import replace

import pytest

from budget_exporter.facts.boot import Phase
from budget_exporter.facts.engine import Supervision
from budget_exporter.facts.verdict import Verdict
from budget_exporter.publish.page.engine import is_troubled, section
from budget_exporter.publish.page.supervision import booting, fate
from tests.publish import snapshots
from tests.publish.snapshots import AT


def word(state: str, result: str = "", *, asked: bool | None = None, code: int | None = None) -> Supervision:
    return Supervision("systemd", "m.service", state, 3, exit_code=code, result=result, asked=asked)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("said", "text"),
    [
        (None, ""),
        (word("active"), ""),
        (word("auto_restart", "exit-code"), "Systemd is about to start it again."),
        (
            word("auto_restart", "oom-kill"),
            "It was killed for want of host memory; systemd is about to start it again.",
        ),
        (
            word("failed", "start-limit-hit"),
            "Systemd has given up starting it (start limit): it stays down until started.",
        ),
        (word("failed", "exit-code", asked=False, code=1), "Systemd does not start it again."),
        (word("failed", "timeout", asked=True, code=137), "It was stopped on request."),
        (word("inactive", "success", asked=True, code=0), "It was stopped on request."),
        (word("inactive", "success", asked=False, code=0), "It ended by itself with exit code 0."),
        (word("inactive", "success", code=0), ""),
        (word("inactive"), ""),
    ],
)
def test_who_ended_it_and_whether_it_comes_back(said: Supervision | None, text: str) -> None:
    (down,) = snapshots.crash_loop().engines
    down = replace(down, supervision=said)
    assert fate(down) == text
    assert text in str(section(down, now=AT))


@pytest.mark.parametrize(
    ("phase", "since", "up", "text"),
    [
        ("capturing", AT - 120, True, "for 10 min, capturing for 2 min"),
        ("loading", None, True, "for 10 min"),
        ("serving", AT - 120, True, None),
        ("failing", AT - 120, True, None),
        ("capturing", AT - 120, False, None),
    ],
)
def test_how_long_it_boots(phase: Phase, since: float | None, up: bool, text: str | None) -> None:
    (engine,) = snapshots.healthy().engines
    assert engine.sighting is not None
    sighting = replace(engine.sighting, started_at=AT - 600)
    assert booting(replace(engine, sighting=sighting, phase=phase, phase_since=since, up=up), AT) == text


def test_a_loop_is_told_with_the_phase_it_dies_in() -> None:
    (down,) = snapshots.crash_loop().engines
    said = "it died 3 times in the last 30 min, all while capturing (graph_capture_oom)"
    told = replace(down, verdict=Verdict(findings={"crash_loop": True}, said={"crash_loop": said}))
    assert said in str(section(told, now=AT))


def test_a_shape_that_died_of_its_first_request_is_trouble_though_no_figure_says_so() -> None:
    (engine,) = snapshots.healthy().engines
    assert not is_troubled(engine)
    assert is_troubled(replace(engine, verdict=Verdict(findings={"knife_edge": True})))
