"""From the processes and files of a real start to its tokens: found, read, understood, counted, nothing by hand."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from budget_exporter import budget
from budget_exporter.demo.procfs_tree import build, vllm_engine
from budget_exporter.engines import arguments
from budget_exporter.engines.procfs import source
from budget_exporter.facts.boot import BootReport
from budget_exporter.facts.engine import EngineSighting
from budget_exporter.facts.ledger import RankInput
from budget_exporter.roots import Roots
from budget_exporter.units import GIB

STARTS: dict[str, Any] = yaml.safe_load((Path(__file__).parents[1] / "budget/goldens/kv_cpu.yaml").read_text())
NODE = 14_325_850_112


def argv(row: dict[str, Any]) -> list[str]:
    words = ["/opt/venv/bin/python3", "/opt/venv/bin/vllm", "serve", f"model/{row['config']}", "--max-num-seqs", "4"]
    words += ["--max-model-len", "auto" if row["max_model_len"] is None else str(row["max_model_len"])]
    words += [f"--{name}" for name in row.get("given", {})]
    for flag, key in (("-tp", "tp"), ("-pp", "pp"), ("--data-parallel-size", "dp")):
        words += [flag, str(row[key])] if key in row else []
    return words if "environment" in row["name"] else [*words, "--kv-cache-memory-bytes", str(row["pool"])]


def found(tmp_path: Path, row: dict[str, Any]) -> EngineSighting:
    """Return the engine with its model, as the finder sees it once the files were read."""
    root = tmp_path / "root"
    place = root / "srv/model" / row["config"]
    place.mkdir(parents=True)
    (place / "config.json").write_text(json.dumps(STARTS["configs"][row["config"]]))
    environ = {"VLLM_CPU_KVCACHE_SPACE": str(row["pool"] // GIB)} if "environment" in row["name"] else {}
    engine = vllm_engine(4000, argv(row), environ, cwd="/srv", root=root)
    build(tmp_path / "proc", engine, 4_000_000_000, "boot")
    finder = source(Roots(procfs=tmp_path / "proc"))
    deadline = time.monotonic() + 10
    while True:
        (sighting,) = finder.find()[0]
        if sighting.model_files is not None and sighting.model_files.config is not None:
            return sighting
        assert time.monotonic() < deadline, sighting.model_files
        time.sleep(0.01)


@pytest.mark.parametrize("row", STARTS["starts"], ids=lambda row: row["name"])
def test_a_real_start_on_cpu_to_the_last_digit(tmp_path: Path, row: dict[str, Any]) -> None:
    sighting = found(tmp_path, row)
    shape = arguments.shape(sighting.argv, sighting.environ)
    assert shape.faults == ()
    replicas = [f"d{n}." for n in range(row["dp"])] if "dp" in row else [""]
    ranks = [
        RankInput(f"{replica}{rank}", NODE, platform="host")
        for replica in replicas
        for rank in range(row.get("tp", 1) * row.get("pp", 1))
    ]
    ledger = budget.compute(shape, ranks, BootReport(version="0.32.0"), None, sighting.model_files)
    assert ledger.kv_blocks is not None
    assert ledger.kv_blocks * len(replicas) == row["blocks"]
    assert ledger.kv_pool_tokens == row["tokens"]
    assert ledger.kv_pool_tokens_rounding == 0
    assert ledger.kv_concurrency == row["concurrency"]
    assert not [note for note in ledger.notes if "KV cache" in note]
