"""Under which rank's name stands what a runtime says from inside an engine."""

from __future__ import annotations

import pytest

from budget_exporter.facts.device import RuntimeMemory
from budget_exporter.facts.engine import Placement
from budget_exporter.facts.ownership import Owner
from budget_exporter.sidecar.owners import _rank

TWO = (Placement("0", None), Placement("1", None))
REPLICAS = (Placement("d0.0", None), Placement("d1.0", None))


@pytest.mark.parametrize(
    ("own", "rank", "replica", "placed", "name"),
    [
        # A process's title goes before what its runtime was told.
        ("1", 0, 0, TWO, "1"),
        (None, 0, 0, TWO, "0"),
        (None, 0, None, TWO, "0"),
        # Both replicas have a rank 0: without the replica's number it would be anybody's.
        (None, 0, 1, REPLICAS, "d1.0"),
        (None, 0, None, REPLICAS, None),
        # One process for the cores of several ranks says of none that it is its own.
        (None, None, 0, TWO, None),
        (None, 7, 0, TWO, None),
        (None, 0, 0, (), None),
    ],
)
def test_the_name_of_a_rank(
    own: str | None, rank: int | None, replica: int | None, placed: tuple[Placement, ...], name: str | None
) -> None:
    told = RuntimeMemory(4711, 1.0, 5, 8, rank, replica)
    assert _rank(Owner("qwen", own), told, {"qwen": placed}) == name
