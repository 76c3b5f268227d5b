"""Refuse what cannot be: sizes, ratios and counts that no engine and no device has, each named."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from math import inf, isnan

from budget_exporter.errors import LawError
from budget_exporter.facts.engine import Shape
from budget_exporter.facts.ledger import Constants, RankInput
from budget_exporter.units import GIB, MIB

__all__ = ["LARGEST_COUNT", "LARGEST_SIZE", "check", "flag_gib", "number", "switch"]

LARGEST_SIZE = 1 << 50
"""A pebibyte: no device and no host has it, so such a figure was misread."""
LARGEST_COUNT = 1 << 40
"""No engine counts as many tokens, sequences, blocks or ranks."""
_COUNTS = (
    "max_model_len",
    "max_num_seqs",
    "max_num_batched_tokens",
    "block_size",
    "num_gpu_blocks_override",
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "data_parallel_size",
)
_MEBIBYTES = ("graph_base_mib", "graph_per_graph_mib", "graph_estimate_mib")


def check(shape: Shape, ranks: Sequence[RankInput], constants: Constants | None = None) -> None:
    """
    Raise LawError, naming the field, for a size, ratio or length that cannot be: negative, zero, NaN or absurd.

    ``ranks`` have sizes in bytes; ``constants`` are the fitted figures, where the law takes any.
    """
    number("utilization", shape.utilization, above=0, most=1)
    for name in _COUNTS:
        number(name, getattr(shape, name), above=0, most=LARGEST_COUNT)
    number("kv_cache_memory_bytes", shape.kv_cache_memory_bytes, least=0, most=LARGEST_SIZE)
    for name in _MEBIBYTES:
        number(name, getattr(shape, name), least=0, most=LARGEST_SIZE // MIB)
    for rank in ranks:
        number(f"rank {rank.rank}: size", rank.size, above=0, most=LARGEST_SIZE)
        number(f"rank {rank.rank}: free_at_init", rank.free_at_init, least=0, most=LARGEST_SIZE)
        number(f"rank {rank.rank}: free_at_init_rounding", rank.free_at_init_rounding, least=0, most=LARGEST_SIZE)
    for field in () if constants is None else fields(constants):
        value = getattr(constants, field.name)
        if not isinstance(value, str):
            number(f"constants: {field.name}", value, least=0, most=LARGEST_SIZE)


def number(name: str, value: float | None, *, most: float, least: float = -inf, above: float = -inf) -> None:
    """Raise LawError where ``value`` is below ``least``, not above ``above``, above ``most``, or no number at all."""
    if value is None:
        return
    if value < least:
        raise LawError(f"{name} must not be negative, not {value}")
    if value <= above:
        raise LawError(f"{name} must be above {above:g}, not {value}")
    if value > most:
        raise LawError(f"{name} must be at most {most:g}, not {value}")
    if isnan(value):  # neither below nor above anything
        raise LawError(f"{name} must be a number, not {value}")


def switch(environ: Mapping[str, str], name: str) -> bool | None:
    """
    Return whether a variable that vLLM reads as ``bool(int(value))`` is on, None where it is not set.

    Raise LawError, naming it, for what is no whole number. Source: vLLM ``envs.py``.
    """
    text = environ.get(name)
    if text is None or not text.strip():
        return None
    try:
        return int(text) != 0
    except ValueError as error:
        raise LawError(f"{name} must be a whole number, not {text[:40]}") from error


def flag_gib(given: Mapping[str, str], name: str) -> int | None:
    """
    Return the bytes of a flag (its name without dashes) in GiB, None where it is not given.

    Raise LawError, naming it, for what is no number, negative or absurd.
    """
    text = given.get(name)
    if text is None or text in {"", "None"}:
        return None
    try:
        value = float(text)
    except ValueError as error:
        raise LawError(f"--{name} must be a number of GiB, not {text[:40]}") from error
    number(f"--{name}", value, least=0, most=LARGEST_SIZE / GIB)
    return int(value * GIB)
