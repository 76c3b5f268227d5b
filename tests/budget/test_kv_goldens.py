"""The KV geometry against real starts: on CPU to the last digit, on GPUs within the rounding of the printed pool."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from budget_exporter.budget.choose import parse_version
from budget_exporter.budget.kv_blocks import blocks, concurrency, longest, metric_blocks, tokens
from budget_exporter.budget.kv_geometry import KvGeometry, geometry
from budget_exporter.budget.kv_settings import batched_tokens
from budget_exporter.engines.model_config import parse
from budget_exporter.facts.engine import Shape
from budget_exporter.facts.model import ModelConfig, State
from budget_exporter.units import GIB

GOLDENS = Path(__file__).parent / "goldens"
ROUNDING = 0.005
MODELS: list[dict[str, Any]] = yaml.safe_load((GOLDENS / "kv_models.yaml").read_text())
CPU: dict[str, Any] = yaml.safe_load((GOLDENS / "kv_cpu.yaml").read_text())
PUBLIC: list[dict[str, Any]] = yaml.safe_load((GOLDENS / "kv_public.yaml").read_text())


def within(layout: KvGeometry, pool_gib: float) -> range:
    """Return the numbers of blocks that a printed pool may stand for."""
    low, high = (blocks(layout, [int((pool_gib + edge) * GIB)]) for edge in (-ROUNDING, ROUNDING))
    return range(low, high + 1)


@pytest.mark.parametrize("row", MODELS, ids=lambda r: f"{r['model']}-{r['tp']}-{r['pp']}-{r['max_model_len']}")
def test_real_starts_of_sixteen_models(row: dict[str, Any]) -> None:
    shape = Shape(
        tensor_parallel_size=row["tp"],
        pipeline_parallel_size=row["pp"],
        kv_cache_dtype=row["kv_cache_dtype"],
        max_num_batched_tokens=8192,
        given={"dtype": row["dtype"]},
    )
    layout = geometry(parse(json.dumps(row["config"])), shape, (0, 19, 0))
    length = row["max_model_len"]
    held = concurrency(layout, row["blocks"], length)
    assert layout.bytes_per_token == row["bytes_per_token"]
    assert row["blocks"] in within(layout, row["pool_gib"])
    assert tokens(layout, row["blocks"], length) == row["tokens"]
    assert f"{held:.2f}" == f"{row['concurrency']:.2f}"


@pytest.mark.parametrize("row", CPU["starts"], ids=lambda r: r["name"])
def test_starts_on_cpu_to_the_last_digit(row: dict[str, Any]) -> None:
    version = (0, 32, 0)
    shape = Shape(
        tensor_parallel_size=row.get("tp", 1),
        pipeline_parallel_size=row.get("pp", 1),
        data_parallel_size=row.get("dp", 1),
        max_num_seqs=4,
        given=row.get("given", {}),
    )
    config = parse(json.dumps(CPU["configs"][row["config"]]))
    length = row["max_model_len"] or row["fitted"]
    batch = batched_tokens(shape, version, "host", 14 << 30, "", length)
    layout = geometry(config, shape, version, platform="host", batched_tokens=batch)
    number = blocks(layout, [row["pool"]])
    assert layout.notes == ()
    assert metric_blocks(layout, number) == row["blocks"]
    assert tokens(layout, number, length) == row["tokens"]
    assert concurrency(layout, number, length) == row["concurrency"]
    if "fitted" in row:
        assert config.max_model_len is not None
        assert longest(layout, number, config.max_model_len) == row["fitted"]


@pytest.mark.parametrize("row", PUBLIC, ids=lambda r: r["model"])
def test_starts_that_others_published(row: dict[str, Any]) -> None:
    version = parse_version(row["version"])
    assert version is not None
    layout = geometry(parse(json.dumps(row["config"])), Shape(**row["shape"]), version)
    if "block_size" in row:
        assert {group.spec.block_size for group in layout.groups} == {row["block_size"]}
    if "tokens" not in row:
        return
    length = row.get("max_model_len", 1)
    numbers = [row["blocks"]] if row["pool_gib"] is None else within(layout, row["pool_gib"])
    if "blocks" in row:
        assert row["blocks"] in numbers
        numbers = [row["blocks"]]
    fitting = [number for number in numbers if tokens(layout, number, length) == row["tokens"]]
    assert fitting
    if "concurrency" in row:
        assert f"{row['concurrency']:.2f}" in {f"{concurrency(layout, number, length):.2f}" for number in fitting}


@pytest.mark.parametrize("row", [row for row in PUBLIC if "padding" in row], ids=lambda r: r["model"])
def test_the_padding_of_a_state_that_the_engine_printed(row: dict[str, Any]) -> None:
    """The padded page is the largest there is; an unpadded one comes from the same layers without attention."""
    version = parse_version(row["version"])
    assert version is not None
    config = parse(json.dumps(row["config"]))
    shape = Shape(**row["shape"])
    padded = geometry(config, shape, version)
    alone = geometry(states_only(config), shape, version)
    page, own = padded.groups[0].spec.page, alone.groups[0].spec.page
    assert f"{100 * (page - own) / own:.2f}" == f"{row['padding']:.2f}"


def states_only(config: ModelConfig) -> ModelConfig:
    layers = tuple(tuple(cache for cache in layer if isinstance(cache, State)) for layer in config.layers)
    return replace(config, layers=layers)
