"""The command lines that we read, read by vLLM 0.32's own parser: the same values, the same refusals."""

from __future__ import annotations

import json
import math
import os
import random
import subprocess
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from budget_exporter.budget.batch_defaults import batch_defaults
from budget_exporter.engines._flag_table import options
from budget_exporter.engines.arguments import GIVEN_ALLOWED, shape
from budget_exporter.facts.engine import Shape
from tests.integration import rig_vllm
from tests.integration.command_lines import CONFIGS, FORK, Lines

pytestmark = pytest.mark.real_part("vllm")

LINES = 6000
SEED = 32
CHILD = Path(__file__).with_name("vllm_parser_child.py")
FIELDS = {
    "utilization": "gpu_memory_utilization",
    "kv_cache_memory_bytes": "kv_cache_memory_bytes",
    "num_gpu_blocks_override": "num_gpu_blocks_override",
    "max_model_len": "max_model_len",
    "max_num_seqs": "max_num_seqs",
    "max_num_batched_tokens": "max_num_batched_tokens",
    "block_size": "block_size",
    "kv_cache_dtype": "kv_cache_dtype",
    "tensor_parallel_size": "tensor_parallel_size",
    "pipeline_parallel_size": "pipeline_parallel_size",
    "data_parallel_size": "data_parallel_size",
    "enforce_eager": "enforce_eager",
    "port": "port",
}
"""Our fields and the parser's names for them."""


class RealParser:
    """vLLM's parser in a process of its own."""

    def __init__(self, python: Path) -> None:
        environ = {**os.environ, "VLLM_LOGGING_LEVEL": "ERROR", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
        environ.pop("PYTHONPATH", None)
        self.process = subprocess.Popen(
            [python, CHILD], env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        first = self._read()
        self.options: set[str] = set(first["options"])
        self.defaults: dict[str, Any] = first["defaults"]
        self.batches: list[list[int]] = first["batches"]

    def _read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"vLLM's parser ended with {self.process.wait(30)}"
        answer: dict[str, Any] = json.loads(line)
        return answer

    def ask(self, args: Sequence[str], *, serve: bool = True) -> dict[str, Any]:
        """Return the parser's answer to the arguments of ``vllm``, or of the API server module."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"args": list(args), "serve": serve}).encode() + b"\n")
        self.process.stdin.flush()
        return self._read()

    def close(self) -> None:
        """End it."""
        self.process.communicate(timeout=30)


@pytest.fixture(scope="module")
def parser() -> Iterator[RealParser]:
    real = RealParser(rig_vllm.installed() / "bin/python")
    try:
        yield real
    finally:
        real.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a folder with the files that command lines name after ``--config``."""
    where = tmp_path_factory.mktemp("configs")
    for name, text in CONFIGS.items():
        (where / name).write_text(text)
    return where


def ours(args: Sequence[str], *, serve: bool = True) -> Shape:
    start = ["/opt/venv/bin/vllm"] if serve else ["python3", "-m", "vllm.entrypoints.openai.api_server"]
    return shape([*start, *args], {}, lambda path: Path(path).read_text(), rig_vllm.VERSION)


def differences(args: Sequence[str], real: dict[str, Any], defaults: dict[str, Any], *, serve: bool) -> list[str]:
    """Return where we read ``args`` otherwise than the real parser; what it refuses must have a fault."""
    got = ours(args, serve=serve)
    if "error" in real:
        return [] if got.faults else [f"no fault, but {real['error']}"]
    values = real["values"]
    # A value that is typed well and refused by the engine's configuration a moment later is a fault of ours as well.
    beyond = {name for fault in got.faults if "must be" in fault for name in (fault[2:].partition(" ")[0],)}
    found = [f"fault: {fault}" for fault in got.faults if "must be" not in fault]
    for field, name in FIELDS.items():
        if name.replace("_", "-") in beyond:
            found += [] if outside(name, values[name]) else [f"{field}: {values[name]} is not out of range"]
        elif not same(getattr(got, field), values[name], defaults[name]):
            found.append(f"{field}: {getattr(got, field)!r}, not {values[name]!r}")
    found += names_of_models(got, values, defaults, serve=serve) + graphs(got, values, beyond)
    for flag in GIVEN_ALLOWED - FORK:
        name = flag.replace("-", "_")
        if name in values and not typed_same(got.given.get(flag), values[name], defaults[name]):
            found.append(f"given {flag}: {got.given.get(flag)!r}, not {values[name]!r}")
    return found


def names_of_models(got: Shape, values: dict[str, Any], defaults: dict[str, Any], *, serve: bool) -> list[str]:
    model = values["model_tag"] if serve and values["model_tag"] is not None else values["model"]
    found = []
    if got.model != (None if model == defaults["model"] else model):
        found.append(f"model: {got.model!r}, not {model!r}")
    names = values["served_model_name"]
    if got.served_model_name != (names[0] if names else None):
        found.append(f"served_model_name: {got.served_model_name!r}, not {names!r}")
    return found


def graphs(got: Shape, values: dict[str, Any], beyond: set[str]) -> list[str]:
    """Return what differs of the graphs: flags of their own go before the JSON, as in the engine."""
    found = []
    for field in ("cudagraph_mode", "cudagraph_capture_sizes", "max_cudagraph_capture_size"):
        own = values.get(field)
        wanted = values[f"compilation_{field}"] if own is None else own
        mine = getattr(got, field)
        if field.replace("_", "-") not in beyond and (list(mine) if isinstance(mine, tuple) else mine) != wanted:
            found.append(f"{field}: {mine!r}, not {wanted!r}")
    return found


def outside(name: str, value: Any) -> bool:
    if name == "gpu_memory_utilization":
        return not 0 < float(value) <= 1
    return int(value) < 1 or (name == "port" and int(value) > 65535)


def same(mine: Any, value: Any, default: Any) -> bool:
    if mine is None:
        return value in (None, -1, default)
    if isinstance(mine, float):
        return float(value) == mine
    return bool(mine == value)


def typed_same(text: str | None, value: Any, default: Any) -> bool:
    """Return whether ``text``, a flag as it was typed, is what the parser made ``value`` of."""
    if text is None:
        return bool(value == default)
    if value is None:
        return text in ("", "None")
    if isinstance(value, bool):
        return text == ("true" if value else "false")
    if isinstance(value, list):
        return [str(each) for each in value] in (text.split(), text.split(","))
    try:
        number = float(value)
        return (
            (text.strip().lower() == "auto" and value == -1)
            or float(text) == number
            or (math.isnan(number) and math.isnan(float(text)))
        )
    except ValueError:
        # A suffix: what it stands for is compared in the field of that name.
        return text == str(value) or text.strip()[-1:] in "kKmMgGtTo"


def test_the_same_option_strings(parser: RealParser) -> None:
    mine = {text for text, option in options((0, 32)).items() if not option.fork}
    assert mine == parser.options - {"-h", "--help"}


def test_the_same_default_batches_on_a_cpu(parser: RealParser) -> None:
    made = [batch_defaults(Shape(tensor_parallel_size=ranks), (0, 32), "host", 16 << 30, "") for ranks in (1, 2)]
    assert [[batch.tokens, batch.sequences] for batch in made if batch] == parser.batches


def test_generated_command_lines(parser: RealParser, folder: Path) -> None:
    random_lines = Lines(random.Random(SEED), folder)  # noqa: S311 - a seed that can be repeated is wanted
    wrong: list[str] = []
    told: Counter[str] = Counter()
    for _ in range(LINES):
        args, serve = random_lines.line()
        real = parser.ask(args, serve=serve)
        told["refused" if "error" in real else "taken"] += 1
        wrong += [f"{args}: {each}" for each in differences(args, real, parser.defaults, serve=serve)]
    assert not wrong, f"{len(wrong)} of {LINES}:\n" + "\n".join(wrong[:40])
    assert min(told["refused"], told["taken"]) > LINES / 5, told
