"""What the hardware says: one device, one sample, one window of samples."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DeviceIdentity:
    """
    Name one physical memory domain.

    ``device`` is its key: the PCI address for a card. Index numbers (cardN, HIP, rocm-smi) disagree with each other,
    so none of them is a key; ``order`` is only the place the compute runtime gives the device before any
    ``*_VISIBLE_DEVICES``.
    """

    device: str
    platform: str
    model: str
    driver: str
    sampler: str
    """Which counters ``used`` comes from: ``amdgpu_vram``, or ``amdgpu_gtt`` where the memory is the host's."""
    uuid: str | None = None
    """The card itself, where it says so: another card in the same slot is another device to the mark."""
    order: int | None = None
    """Index in the compute runtime's own order; None where the runtime cannot open the device."""
    integrated: bool = False
    """True for an iGPU or APU, whose memory is the host's."""
    high_water_source: str = "sampled"
    """Where the high-water mark comes from: ``sampled`` here, ``driver`` where the driver keeps a peak of its own."""


@dataclass(frozen=True, slots=True)
class MemorySample:
    """One device's memory at one instant, in bytes; None where the driver has no such counter."""

    at: float
    """Unix time in seconds."""
    size: int
    used: int
    gtt_size: int | None = None
    gtt_used: int | None = None


@dataclass(frozen=True, slots=True)
class DeviceSample:
    """A device and what its counters said."""

    identity: DeviceIdentity
    memory: MemorySample


@dataclass(frozen=True, slots=True)
class DeviceReport:
    """One run of a device source: the devices that answered, and one sentence for each that did not."""

    devices: tuple[DeviceSample, ...] = ()
    faults: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DeviceWindow:
    """Newest, smallest and largest use of one device between two hand-overs of its sampler."""

    identity: DeviceIdentity
    newest: MemorySample
    used_min: int
    used_max: int
    used_max_at: float
    samples: int


@dataclass(frozen=True, slots=True)
class HighWater:
    """
    What is remembered of one device's use.

    ``epoch`` names the newest engine on the device (``name@start``), None before any engine was seen. ``window`` holds
    (unix second, largest use in it) for the last 60 s.
    """

    device: str
    uuid: str | None
    epoch: str | None
    used: int
    at: float
    since: float
    all_time: int
    baseline: int | None = None
    window: tuple[tuple[float, int], ...] = ()
    size: int | None = None
    """Size of the card the mark is of: where the card has no ``uuid``, another size is another card."""
