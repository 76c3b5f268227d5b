"""What the environment and the flags of a Gaudi engine set: the graph reserve, the order of capture, its generation."""

from __future__ import annotations

import math
from dataclasses import dataclass

from budget_exporter.budget.buckets.releases import Sizes, flag
from budget_exporter.errors import LawError
from budget_exporter.facts.boot import BootReport
from budget_exporter.facts.engine import Shape
from budget_exporter.facts.ledger import Origin

__all__ = [
    "RESERVE",
    "SKIP_WARM_UP",
    "Reserve",
    "block_size",
    "capture_settings",
    "reserve",
    "sizes",
    "skips_warm_up",
    "v1",
]

RESERVE = "VLLM_GRAPH_RESERVED_MEM"
SKIP_WARM_UP = "VLLM_SKIP_WARMUP"
BLOCK_SIZE = 128
"""Tokens of a KV block unless --block-size says otherwise: every release."""


@dataclass(frozen=True, slots=True)
class Reserve:
    """The share of the usable memory that is kept back for graphs, and who says so."""

    ratio: float
    source: Origin
    note: str = ""


def reserve(shape: Shape, default: float, *, forgiving: bool) -> Reserve:
    """
    Return the graph reserve: none under ``--enforce-eager``, else VLLM_GRAPH_RESERVED_MEM, else ``default``.

    ``forgiving`` says that the engine takes its default for a value that is no number, as the plugin does from 0.17.1;
    before, it does not start. Raise LawError, naming the variable, for a value that is no number then, and for a share
    that is not 0 to 1.
    """
    text = shape.environ.get(RESERVE)
    if shape.enforce_eager:
        return Reserve(0.0, "flag", "none under --enforce-eager")
    if text is None:
        return Reserve(default, "default", f"{default} of the usable memory, the release's default")
    try:
        ratio = float(text)
    except ValueError:
        if not forgiving:
            raise LawError(f"{RESERVE} must be a number, not {text[:40]!r}: the engine does not start") from None
        return Reserve(default, "default", f"{RESERVE} is no number: the engine takes {default}")
    return Reserve(_share(RESERVE, ratio), "env", f"{ratio} of the usable memory")


def capture_settings(shape: Shape, default_ratio: float) -> tuple[float, tuple[str, str], float]:
    """
    Return the prompt's share of the graph budget, the orders of prompt and decode, and 1.16's memory margin.

    Raise LawError, naming the variable, for a share that is not a number of 0 to 1. Source: the environment names of
    HabanaAI/vllm-fork to 1.21.3; later releases read none of them.
    """
    environ = shape.environ
    orders = (
        environ.get("VLLM_GRAPH_PROMPT_STRATEGY", "min_tokens"),
        environ.get("VLLM_GRAPH_DECODE_STRATEGY", "max_bs"),
    )
    ratio = _ratio(shape, "VLLM_GRAPH_PROMPT_RATIO", default_ratio)
    return ratio, orders, _ratio(shape, "VLLM_GRAPH_MEM_MARGIN", 0.02)


def skips_warm_up(shape: Shape) -> bool:
    """Return whether nothing is warmed up ahead: the engine takes ``true`` alone for a yes."""
    return shape.environ.get(SKIP_WARM_UP, "").lower() == "true"


def v1(shape: Shape, report: BootReport, *, dummy_printed: bool) -> bool | None:
    """Return whether the engine is of generation V1, None where neither log nor environment tells."""
    if dummy_printed or report.core is not None:
        return dummy_printed or report.core == "V1"
    if "VLLM_USE_V1" in shape.environ:
        return flag(shape.environ, "VLLM_USE_V1", default=False)
    return None


def block_size(shape: Shape) -> int:
    """Return the tokens of a KV block."""
    return BLOCK_SIZE if shape.block_size is None else shape.block_size


def sizes(shape: Shape, report: BootReport, num_blocks: int | None, *, prefix_caching: bool) -> Sizes:
    """
    Return what the engine's buckets are cut for.

    ``prefix_caching`` is the release's default, which ``--enable-prefix-caching`` changes. Raise LawError for a wrong
    ``--max-num-prefill-seqs``.
    """
    prefill = shape.given.get("max-num-prefill-seqs")
    return Sizes(
        max_num_seqs=shape.max_num_seqs,
        max_model_len=report.max_model_len if shape.max_model_len is None else shape.max_model_len,
        max_num_batched_tokens=shape.max_num_batched_tokens,
        max_num_prefill_seqs=None if prefill is None else int(_number("max-num-prefill-seqs", prefill)),
        num_blocks=num_blocks,
        block_size=block_size(shape),
        prefix_caching=flag(shape.given, "enable-prefix-caching", default=prefix_caching),
        environ=shape.environ,
    )


def _ratio(shape: Shape, name: str, default: float) -> float:
    text = shape.environ.get(name)
    return default if text is None else _share(name, _number(name, text))


def _number(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise LawError(f"{name} must be a number, not {text[:40]!r}") from None
    if not math.isfinite(value):
        raise LawError(f"{name} must be a number, not {text[:40]!r}")
    return value


def _share(name: str, value: float) -> float:
    if not (math.isfinite(value) and 0 <= value <= 1):
        raise LawError(f"{name} must be 0 to 1, not {value}")
    return value
