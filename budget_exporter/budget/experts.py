"""
Sizes of routed experts: one of them, all of a model's, the resident layers, and the host memory for the rest.

Source: public notes of the expert-offload fork (vllm-toolchest, 2026-10) and its flags' documentation there.
"""

from __future__ import annotations

from budget_exporter.errors import LawError
from budget_exporter.units import GIB

__all__ = ["DEFAULT_RESIDENT", "MXFP4_BITS", "all_experts", "host_room", "one_expert", "resident_layers"]

MXFP4_BITS = 4.25
"""Four bits a parameter and an eight-bit scale for 32 of them."""
DEFAULT_RESIDENT = (0, 1, 2)
"""Layers whose experts stay on the device where ``--expert-resident-layers`` is not given."""
_HOST_SHARE_PERCENT = 90
_RANK_PROCESS = 7 * GIB
_ENGINE = 5 * GIB


def one_expert(hidden: int, moe_intermediate: int, bits: float, tensor_parallel_size: int = 1) -> int:
    """
    Return the bytes of one expert's gate, up and down projection on one rank.

    ``3 x hidden x moe_intermediate`` parameters of ``bits`` bits: 2560 and 640 in FP8 on two ranks are 2457600 B, the
    2.344 MiB of a slot.
    """
    return round(3 * hidden * moe_intermediate * bits / 8 / tensor_parallel_size)


def all_experts(moe_layers: int, experts: int, hidden: int, moe_intermediate: int, bits: float = MXFP4_BITS) -> int:
    """
    Return the bytes of a model's routed experts, all ranks together.

    48 layers of 512 experts, hidden size 2560, intermediate 640: 59.77 GiB, where the engine counts 59.9.
    """
    return round(moe_layers * experts * 3 * hidden * moe_intermediate * bits / 8)


def resident_layers(text: str | None) -> tuple[int, ...]:
    """
    Return the layers of ``--expert-resident-layers``: indices, not a count; the default where it is not given.

    Raise LawError for anything but whole numbers with commas between.
    """
    if not text:
        return DEFAULT_RESIDENT
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and len(part) <= len("9999") for part in parts):
        raise LawError(f"--expert-resident-layers must be layer numbers with commas between, not {text[:40]}")
    return tuple(sorted({int(part) for part in parts}))


def host_room(memory: int, ranks: int) -> int:
    """
    Return the bytes of host memory that experts and PLE table may take together, signed.

    The engine's own sum: 90 % of the host's ``memory`` (MemTotal, bytes), less 7 GiB for each rank's process and 5 GiB
    for the engine.
    """
    return memory * _HOST_SHARE_PERCENT // 100 - _RANK_PROCESS * ranks - _ENGINE
