"""Whose memory it is, as the page says it: of each rank, of no known engine, of nobody."""

from __future__ import annotations

from dataclasses import replace

import pytest

from budget_exporter.facts.device import ProcessMemory
from budget_exporter.facts.ownership import DeviceOwnership, RankMemory
from budget_exporter.publish import page
from budget_exporter.units import GIB
from tests.publish import snapshots

LINKS = page.Links(metrics="/metrics", api="/api/v1/snapshot", healthy="/-/healthy", ready="/-/ready")
FOREIGN = (ProcessMemory(5151, 2 * GIB, name="python<3>"), ProcessMemory(7, GIB))


def said(owned: DeviceOwnership | None, ranks: dict[str, RankMemory] | None = None) -> str:
    snapshot = snapshots.healthy()
    (engine,) = snapshot.engines
    devices = tuple(replace(state, ownership=owned) for state in snapshot.devices)
    snapshot = replace(snapshot, devices=devices, engines=(replace(engine, rank_memory=ranks or {}),))
    return page.render(snapshot, links=LINKS, now=snapshots.AT).decode()


def test_foreign_processes_are_named_and_what_nobody_holds_is_said() -> None:
    html = said(DeviceOwnership("x", 4 * GIB, 3 * GIB, round(0.57 * GIB), foreign=FOREIGN, evicted=GIB // 2))
    assert "3.00 held by no known engine: python&lt;3&gt; (PID 5151), process (PID 7)" in html
    assert "0.57 that no process accounts for" in html
    assert "0.50 moved to system memory" in html


@pytest.mark.parametrize("owned", [None, DeviceOwnership("x", 4 * GIB), DeviceOwnership("x", 0, 0, None, foreign=())])
def test_where_nothing_is_known_or_nobody_is_foreign_nothing_is_said(owned: DeviceOwnership | None) -> None:
    html = said(owned)
    assert not any(words in html for words in ("held by", "accounts for", "moved to"))


def test_a_rank_says_what_its_own_processes_hold() -> None:
    html = said(None, {"0": RankMemory(30 * GIB), "1": RankMemory(None, 5)})
    assert html.count("held by its processes") == 1
    assert "30.00 GiB held by its processes" in html
