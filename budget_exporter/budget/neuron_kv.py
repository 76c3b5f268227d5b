"""
How much KV memory a worker on AWS Neuron takes, by generation of the worker. All sizes in bytes.

Source: vllm-neuron 0.24 ``vllm/worker/neuron_worker.py`` and its document ``determine_available_memory_design``; for
older plugins ``worker/neuron_worker.py`` of 0.1.0, 0.2.0 and 0.5; vLLM 0.8.5 to 0.10 ``worker/neuron_worker.py``.
"""

from __future__ import annotations

from dataclasses import dataclass

from budget_exporter.errors import LawError
from budget_exporter.units import GIB

__all__ = [
    "FALLBACK",
    "PLACEHOLDER",
    "KvBudget",
    "budget",
    "bytes_used",
    "contiguous",
    "cpu_budget",
    "fair_share",
    "free_or_fallback",
    "hbm_total",
    "sequence_blocks",
]

PLACEHOLDER = GIB
"""What the plugin 0.1.0 gave for KV whatever the device had."""
FALLBACK = 20 * GIB
"""What the plugins 0.2 to 0.6 take, silently, where the runtime could not be asked."""


@dataclass(frozen=True, slots=True)
class KvBudget:
    """What the worker computes; ``user`` is signed, the worker itself takes nothing below 0 for 0."""

    requested: int
    user: int
    """What the weights leave of the request."""
    cap: int

    @property
    def available(self) -> int:
        """Return the KV pool: the smaller of both, signed."""
        return min(self.user, self.cap)


def bytes_used(parameters: int, buffers: int, drafter: int = 0) -> int:
    """
    Return the bytes that count as used: the model's parameters and buffers, and those of the model that drafts.

    Not what the runtime says is used, so that a host without a device, which only compiles, comes to the same KV size.
    """
    return parameters + buffers + drafter


def hbm_total(used: int, free: int) -> int:
    """
    Return the memory of a logical core from the runtime's figures for it.

    Raise LawError where the worker does: ``used`` below 0 or ``free`` not above it. A core that is full has no free
    memory, so it is refused too.
    """
    if used < 0 or free <= 0:
        raise LawError(f"the runtime's figures are unusable: used {used}, free {free}")
    return used + free


def budget(total: int, used: int, utilization: float, cap_fraction: float) -> KvBudget:
    """
    Return the KV budget of a logical core of ``total`` bytes of which the weights take ``used``.

    ``int(total x utilization)`` is requested; the cap is ``int(requested x cap_fraction)``, which leaves the compiled
    programs what they need: the compiler refuses a program whose tensors do not fit into a bank.
    """
    requested = int(total * utilization)
    return KvBudget(requested, requested - used, int(requested * cap_fraction))


def fair_share(available: int, workers: int) -> int:
    """Return a worker's share of the host's available memory; raise LawError where there is none to share."""
    if available <= 0:
        raise LawError(f"the host's available memory must be above 0, not {available}")
    return available // max(workers, 1)


def cpu_budget(share: int, utilization: float, cap_fraction: float) -> KvBudget:
    """
    Return the KV budget of a worker that runs on the host's CPU: the cap alone, weights are not subtracted.

    ``int(int(share x utilization) x cap_fraction)``. There is no minimum.
    """
    requested = int(share * utilization)
    return KvBudget(requested, requested, int(requested * cap_fraction))


def free_or_fallback(free: int | None) -> int:
    """Return the KV memory of the plugins 0.2 to 0.6: all that is free, FALLBACK where that could not be asked."""
    return FALLBACK if free is None else free


def contiguous(layers: int, block_size: int, head_size: int, dtype_bytes: int, cores: int, sequences: int) -> int:
    """
    Return the KV memory of all cores where each sequence lies in one piece (plugins 0.3 to 0.6).

    Keys and values of one head on each core, for every sequence and one block for padding.
    """
    return 2 * block_size * cores * head_size * dtype_bytes * layers * (sequences + 1)


def sequence_blocks(sequences: int) -> int:
    """Return the KV blocks of vLLM's own Neuron worker: one of ``max_model_len`` tokens a sequence, and one more."""
    return sequences + 1
