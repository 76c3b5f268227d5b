"""What flags and environment tell of the programs that an engine on AWS Neuron compiles."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["NeuronFacts"]


@dataclass(frozen=True, slots=True)
class NeuronFacts:
    """
    The settings that decide how many programs are compiled, and what is compiled in; None where nothing is given.

    They move no term of the budget by themselves: each bucket is one more program in the device's memory.
    """

    buckets: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Sizes by the engine's own name of the setting, such as ``context_encoding_buckets``."""
    enable_bucketing: bool | None = None
    is_block_kv_layout: bool | None = None
    """Whether the KV cache is cut into blocks; the other layout holds each sequence in one piece."""
    is_prefix_caching: bool | None = None
    pa_num_blocks: int | None = None
    pa_block_size: int | None = None
    quantization: str | None = None
    framework: str | None = None
    """VLLM_NEURON_FRAMEWORK: ``neuronx-distributed-inference`` or ``transformers-neuronx``."""
    backend: str | None = None
    """VLLM_NEURON_BACKEND: how the plugin compiles."""
    compiled_artifacts: str | None = None
    """Where compiled programs are loaded from or stored to, without credentials."""
