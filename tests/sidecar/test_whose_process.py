"""Whose a process is, by its title and those beside it: a part of a rank must not pass for all of it."""

from __future__ import annotations

import pytest

from budget_exporter.facts.engine import EngineSighting, ProcessKey, Shape, Worker
from budget_exporter.sidecar.owners import _processes


@pytest.mark.parametrize(
    ("titles", "ranks"),
    [
        (("VLLM::EngineCore_DP0", "VLLM::EngineCore_DP1"), ["d0.0", "d1.0"]),
        # Each core has a worker of its own that names no replica: it holds the memory, and whose it is is not known.
        (("VLLM::EngineCore_DP0", "VLLM::Worker", "VLLM::EngineCore_DP1", "VLLM::Worker"), [None] * 4),
        (("VLLM::EngineCore_DP0", "VLLM::Worker_DP0", "VLLM::Worker_DP1"), ["d0.0", "d0.0", "d1.0"]),
    ],
)
def test_a_core_is_all_of_its_rank_only_where_every_worker_names_its_own(
    titles: tuple[str, ...], ranks: list[str | None]
) -> None:
    workers = tuple(Worker(11 + at, title) for at, title in enumerate(titles))
    sighting = EngineSighting("procfs", ProcessKey(10, 1), 0.0, ("vllm", "serve", "m"), {}, workers)
    owners = _processes("qwen", sighting, Shape(data_parallel_size=2))
    assert owners[10].rank is None
    assert [owners[worker.pid].rank for worker in workers] == ranks
