"""
What is known of AWS's accelerators, and what flags and environment tell of the programs that an engine compiles there.

Source of the sizes: AWS Neuron SDK 2.32 ``logical-neuroncore-config.rst`` and the pages of each chip; the banks' exact
bytes from aws-neuronx-dkms 2.24.7.0 ``v2`` and ``v3`` ``address_map.h``; trn3 from the SDK alone. Not read on a device.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["PLATFORMS", "PLATFORM_OF_NAME", "NeuronFacts", "Platform"]

_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Platform:
    """One kind of device: the bytes of a bank, banks and physical cores of a device, and whether cores are joined."""

    bank: int
    banks: int
    cores: int
    joins_cores: bool
    """Whether NEURON_LOGICAL_NC_CONFIG decides how many physical cores make a logical one: two by default."""

    @property
    def device(self) -> int:
        """Return the bytes of a whole device."""
        return self.bank * self.banks


_FIRST = Platform(16 * _GIB, 2, 2, joins_cores=False)
PLATFORMS: Mapping[str, Platform] = {
    "inf2": _FIRST,
    "trn1": _FIRST,
    "trn1n": _FIRST,
    "trn2": Platform(24 * _GIB, 4, 8, joins_cores=True),
    "trn3": Platform(36 * _GIB, 4, 8, joins_cores=True),
}
"""By the names that NEURON_PLATFORM_TARGET_OVERRIDE takes."""
PLATFORM_OF_NAME: Mapping[str, str] = {
    "Inferentia2": "inf2",
    "Trainium1": "trn1",
    "Trainium2": "trn2",
    # Assumed: no public driver has it.
    "Trainium3": "trn3",
}
"""The platform by what the driver calls the device (``info/architecture/device_name``)."""


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
