"""Default batches by release and device, and the sentence that says that they are defaults."""

from __future__ import annotations

from dataclasses import replace

import pytest

from budget_exporter import budget
from budget_exporter.budget.batch_defaults import batch_defaults, note_of
from budget_exporter.facts.boot import BootReport
from budget_exporter.facts.engine import Shape
from budget_exporter.facts.ledger import RankInput
from budget_exporter.units import GIB


@pytest.mark.parametrize(
    ("version", "platform", "size", "model", "want"),
    [
        ((0, 10, 2), "nvidia", 80 * GIB, "NVIDIA H100 80GB HBM3", (8192, 1024)),
        ((0, 31), "amd", 192 * GIB, "AMD Instinct MI300X", (8192, 1024)),
        ((0, 32), "amd", 192 * GIB, "AMD Instinct MI300X", (16384, 1024)),
        ((0, 32), "nvidia", 141 * GIB, "NVIDIA H200", (8192, 1024)),
        ((0, 32), "nvidia", 80 * GIB, "NVIDIA A100-SXM4-80GB", (2048, 256)),
        ((0, 19), "amd", 32 * GIB, "AMD Radeon AI PRO R9700", (2048, 256)),
        ((0, 19), "amd", 70 * GIB - 1, "", (2048, 256)),
        ((0, 19), "host", 70 * GIB, "", (2048, 128)),
        ((0, 10, 1), "amd", 32 * GIB, "", None),
        (None, "amd", 32 * GIB, "", None),
        ((0, 19), "gaudi", 96 * GIB, "", None),
    ],
)
def test_by_release_and_device(
    version: tuple[int, ...] | None, platform: str, size: int, model: str, want: tuple[int, int] | None
) -> None:
    found = batch_defaults(Shape(), version, platform, size, model)
    assert (None if found is None else (found.tokens, found.sequences)) == want


def test_throughput_doubles_and_a_cpu_counts_ranks() -> None:
    fast = Shape(given={"performance-mode": "throughput"})
    found = batch_defaults(fast, (0, 32), "amd", 32 * GIB, "")
    assert found is not None
    assert (found.tokens, found.sequences) == (4096, 512)
    many = batch_defaults(Shape(tensor_parallel_size=2, pipeline_parallel_size=2), (0, 32), "host", GIB, "")
    assert many is not None
    assert (many.tokens, many.sequences) == (8192, 512)


def test_only_what_is_not_given_is_named() -> None:
    rank = RankInput("0", 32 * GIB, platform="amd")
    both = "not given, so by default: --max-num-seqs 256, --max-num-batched-tokens at most 2048 (a device of less than"
    assert (note_of(Shape(), (0, 19), [rank]) or "").startswith(both)
    tokens = note_of(Shape(max_num_seqs=4), (0, 19), [rank])
    assert tokens is not None
    assert "--max-num-seqs" not in tokens
    assert note_of(Shape(max_num_seqs=4, max_num_batched_tokens=2048), (0, 19), [rank]) is None
    assert note_of(Shape(), (0, 19), []) is None


def test_the_ledger_says_so_for_vllm_itself_only() -> None:
    report = BootReport(version="0.19.0")
    rank = RankInput("0", 32 * GIB, platform="amd")
    said = [
        note for note in budget.compute(Shape(), [rank], report, None).notes if "by default: --max-num-seqs" in note
    ]
    assert len(said) == 1
    fork = budget.compute(replace(Shape(), expert_offload=True), [rank], report, None)
    assert not [note for note in fork.notes if "by default: --max-num-seqs" in note]
