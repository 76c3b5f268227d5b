"""Ranks from the titles of vLLM's worker processes."""

from __future__ import annotations

import pytest

from budget_exporter.engines._titles import rank_of, title_of


@pytest.mark.parametrize(
    ("title", "rank"),
    [
        ("VLLM::Worker_TP1", 1),
        ("VLLM::Worker_TP15", 15),
        ("VLLM::Worker_TP3_EP3", 3),
        ("VLLM::Worker_TP2_DCP0", 2),
        ("VLLM::Worker_PP1", 1),
        ("mine::Worker_TP0", 0),
        ("VLLM::Worker_PP1_TP3", None),
        ("VLLM::Worker_DP1_TP0_EP2", None),
        ("VLLM::Worker_PCP1_TP0", None),
        ("VLLM::Worker", None),
        ("VLLM::Worker_TP", None),
        ("VLLM::EngineCore_DP1", None),
        ("VLLM::EngineCore_TP1", 1),
        ("VLLM::EngineCore_PP1", 1),
        ("VLLM::EngineCore_PP0_TP1", None),
        ("VLLM::DPEngineCore_1_TP0", None),
        ("python3 -c spawn_main() --multiprocessing-fork_TP3", 3),
        ("Worker_TP1", None),
        ("", None),
    ],
)
def test_a_title_tells_a_rank_or_does_not(title: str, rank: int | None) -> None:
    assert rank_of(title) == rank


def test_a_title_is_what_is_left_of_the_command_line() -> None:
    assert title_of(("VLLM::Worker_TP1", "", ""), "VLLM::Worker_TP") == "VLLM::Worker_TP1"
    assert title_of(("python3", "x.py"), "python3") == "python3"
    assert title_of(("bash",), "bash") == "bash"
    assert title_of((), "kworker/0:1") == "kworker/0:1"
    assert (
        title_of(("python3 -c x --multiprocessing-fork_TP1", ""), "python3")
        == "python3 -c x --multiprocessing-fork_TP1"
    )
    assert title_of(("python3", "-c", "x", "--multiprocessing-fork"), "python3") == "python3"
