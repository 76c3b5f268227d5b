"""Which ranks are shown where only the flags tell of them."""

from __future__ import annotations

import pytest

from budget_exporter.facts.boot import BootReport
from budget_exporter.facts.engine import Shape
from budget_exporter.facts.snapshot import EngineState
from budget_exporter.facts.verdict import Floors
from budget_exporter.publish.ranks import ranks_of


@pytest.mark.parametrize(("size", "ranks"), [(2, ["0", "1"]), (1024, None), (1025, []), (10**30, [])])
def test_flags_that_no_host_can_have_make_no_ranks(size: int, ranks: list[str] | None) -> None:
    engine = EngineState(
        "qwen",
        expected=True,
        up=True,
        supervisor="none",
        unit="",
        phase="loading",
        phase_since=None,
        restarts=0,
        failures={},
        floors=Floors(1, 2),
        shape=Shape(tensor_parallel_size=size),
        report=BootReport(),
    )
    assert ranks_of(engine) == ([str(rank) for rank in range(1024)] if ranks is None else ranks)
